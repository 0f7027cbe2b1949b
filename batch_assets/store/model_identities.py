"""Under which identity the rows of a local model were made.

Version 0.1 counted a local folder's path as part of a model's identity. Its rows are valid under that identity, and
whoever knows which one it was goes on with it, so that nothing is asked again.
"""

from collections.abc import Collection

import sqlalchemy as sa

from batch_assets.store.tables import model_identities, partitions, results


def load_used_digest(connection: sa.Connection, task: str, model_id: str, digest: str) -> str | None:
    """Return the digest that a task goes on with for a model's present one; None if nobody has decided yet."""
    c = model_identities.c
    where = (c.task == task, c.model_id == model_id, c.model_digest == digest)
    return connection.scalar(sa.select(c.used_digest).where(*where))


def save_used_digest(connection: sa.Connection, task: str, model_id: str, digest: str, used: str) -> None:
    """Decide which digest a task goes on with. The first decision stands."""
    if load_used_digest(connection, task, model_id, digest) is None:
        connection.execute(
            sa.insert(model_identities).values(task=task, model_id=model_id, model_digest=digest, used_digest=used)
        )


def has_rows_of(connection: sa.Connection, task: str, model_id: str, used: str, request_specs: Collection[str]) -> bool:
    """Say whether a task has rows or finished partitions of a model under an identity.

    `request_specs` are those of the task's present prompts with it. Partitions tell of earlier prompts too.
    """
    c = results.c
    mine = (c.task == task, c.model_id == model_id, c.request_spec.in_(list(request_specs)))
    if connection.scalar(sa.select(sa.exists().where(*mine))):
        return True
    parts = connection.scalars(sa.select(partitions.c.parts).where(partitions.c.task == task))
    return any(found.get("model") == used for found in parts)
