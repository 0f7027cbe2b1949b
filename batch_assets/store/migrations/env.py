"""Alembic's entry: runs migrations on the connection that store.database hands over."""

from alembic import context

from batch_assets.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    target_metadata=metadata,
    transactional_ddl=False,
)
context.run_migrations()
