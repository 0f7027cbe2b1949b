"""Under which identity the rows of a local model were made before its folder's path was left out of it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; it is filled when a task's local models are first met."""
    op.create_table(
        "llm_model_identities",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("model_id", sa.String(length=100), nullable=False),
        sa.Column("model_digest", sa.String(length=24), nullable=False, comment="by the present rules, without a path"),
        sa.Column("used_digest", sa.String(length=24), nullable=False, comment="what the task's rows were made under"),
        sa.PrimaryKeyConstraint("task", "model_id", "model_digest", name=op.f("pk_llm_model_identities")),
    )
