"""The ladder: its steps in attempts, another model's answers for the quarantined."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

import batch_assets.store.tables

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what ladder, fallback model and the answer's other fields need."""
    with op.batch_alter_table("llm_batch_results") as table:
        table.add_column(
            sa.Column(
                "is_fallback",
                sa.Boolean(),
                server_default=sa.false(),
                nullable=False,
                comment="made for another variant's quarantine; not one of its own variant's rows",
            )
        )
    with op.batch_alter_table("llm_attempts") as table:
        table.add_column(
            sa.Column(
                "base_key", sa.String(length=24), nullable=True, comment="the request_key of the ladder's first step"
            )
        )
        table.add_column(sa.Column("ladder_step", sa.Integer(), server_default="0", nullable=False))
        table.add_column(
            sa.Column("reasoning", sa.Text(), nullable=True, comment="what the server returned as the model's thinking")
        )
        table.add_column(sa.Column("refusal", sa.Text(), nullable=True, comment="the model's words where it declined"))
    op.execute("UPDATE llm_attempts SET base_key = request_key")
    with op.batch_alter_table("llm_attempts") as table:
        table.alter_column(
            "base_key",
            existing_type=sa.String(length=24),
            existing_comment="the request_key of the ladder's first step",
            nullable=False,
        )
    with op.batch_alter_table("llm_failures") as table:
        table.alter_column(
            "step",
            existing_type=sa.String(length=20),
            existing_nullable=False,
            existing_comment="sources, outputs or results",
            comment="sources, outputs, fallbacks or results",
        )
    op.create_table(
        "llm_fallbacks",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("variant", sa.String(length=100), nullable=False, comment="whose quarantined records were asked"),
        sa.Column("model_id", sa.String(length=100), nullable=False, comment="of whom they were asked"),
        sa.Column(
            "fingerprint",
            sa.String(length=24),
            nullable=False,
            comment="the output's data version and the fallback's identity",
        ),
        sa.Column("content", sa.String(length=24), nullable=False),
        sa.Column(
            "counts",
            sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql"),
            nullable=False,
        ),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("finished_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "batch", "variant", name=op.f("pk_llm_fallbacks")),
    )
