"""The first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

import batch_assets.store.tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "item_owner",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("task", "item_id", name=op.f("pk_item_owner")),
    )
    op.create_index(op.f("ix_item_owner__task_batch"), "item_owner", ["task", "batch"], unique=False)
    op.create_table(
        "llm_attempts",
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("prompt_ver", sa.String(length=100), nullable=False),
        sa.Column("model_id", sa.String(length=100), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("request_key", sa.String(length=24), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("is_alone", sa.Boolean(), nullable=False),
        sa.Column(
            "parameters",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=False,
        ),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("started_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column(
            "ended_at",
            batch_assets.store.tables.UtcDateTime(timezone=True),
            nullable=True,
            comment="null: in flight, or died in flight",
        ),
        sa.Column(
            "outcome",
            sa.String(length=10),
            nullable=True,
            comment="ok, invalid, error, or released: given back unanswered",
        ),
        sa.Column("completion", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.String(length=40), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("latency_s", sa.Float(), nullable=True),
        sa.Column("engine_s", sa.Float(), nullable=True, comment="this attempt's share of the engine's busy time"),
        sa.Column("error_kind", sa.String(length=30), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_llm_attempts")),
    )
    op.create_index(op.f("ix_llm_attempts__request_key"), "llm_attempts", ["request_key"], unique=False)
    op.create_index(
        op.f("ix_llm_attempts__task_item_id_prompt_ver_model_id"),
        "llm_attempts",
        ["task", "item_id", "prompt_ver", "model_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_llm_attempts__task_prompt_ver_model_id_batch"),
        "llm_attempts",
        ["task", "prompt_ver", "model_id", "batch"],
        unique=False,
    )
    op.create_table(
        "llm_batch_results",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("prompt_ver", sa.String(length=100), nullable=False),
        sa.Column("model_id", sa.String(length=100), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=True, comment="null: the record is in the source no more"),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column(
            "payload",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=True,
        ),
        sa.Column("error_kind", sa.String(length=30), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("input_hash", sa.String(length=24), nullable=False),
        sa.Column("request_spec", sa.String(length=24), nullable=False),
        sa.Column("accept_spec", sa.String(length=24), nullable=False),
        sa.Column("request_key", sa.String(length=24), nullable=True, comment="null: nothing could be asked"),
        sa.Column("attempt_id", sa.String(length=32), nullable=True),
        sa.Column("ladder_step", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "reused_from", sa.String(length=32), nullable=True, comment="the earlier attempt whose answer this is"
        ),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("updated_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(status = 'ok') = (error_kind IS NULL)", name="ck_llm_batch_results__reason"),
        sa.CheckConstraint("status IN ('ok', 'invalid', 'error')", name="ck_llm_batch_results__status"),
        sa.PrimaryKeyConstraint("task", "item_id", "prompt_ver", "model_id", name=op.f("pk_llm_batch_results")),
    )
    op.create_index(
        op.f("ix_llm_batch_results__task_prompt_ver_model_id_batch_status"),
        "llm_batch_results",
        ["task", "prompt_ver", "model_id", "batch", "status"],
        unique=False,
    )
    op.create_table(
        "llm_batches",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False, comment="order of first sight: the later owns a repeated id"),
        sa.Column(
            "stamp", sa.Text(), nullable=False, comment="what the source cheaply tells of its state: size and mtime"
        ),
        sa.Column("source_hash", sa.String(length=24), nullable=False),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column(
            "malformed",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=False,
            comment="lines set aside: [[line, reason], …]",
        ),
        sa.Column("superseded", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "superseded_hash",
            sa.String(length=24),
            nullable=False,
            comment="of the ids that later batches own; empty for none",
        ),
        sa.Column("frozen_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "batch", name=op.f("pk_llm_batches")),
    )
    op.create_table(
        "llm_leases",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("variant", sa.String(length=100), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "process_started", sa.Float(), nullable=False, comment="tells a process from a later one with its pid"
        ),
        sa.Column("expires_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "batch", "variant", name=op.f("pk_llm_leases")),
    )
    op.create_table(
        "llm_partitions",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("variant", sa.String(length=100), nullable=False),
        sa.Column("fingerprint", sa.String(length=24), nullable=False),
        sa.Column("content", sa.String(length=24), nullable=False),
        sa.Column(
            "parts",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=False,
            comment="what the fingerprint is made of, by name",
        ),
        sa.Column(
            "counts",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=False,
        ),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("finished_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "batch", "variant", name=op.f("pk_llm_partitions")),
    )
    op.create_table(
        "qa_samples",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("variant", sa.String(length=100), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column(
            "rank_hash",
            sa.String(length=16),
            nullable=False,
            comment="samples of batches merge by the smallest of these",
        ),
        sa.Column(
            "payload",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("task", "batch", "variant", "item_id", name=op.f("pk_qa_samples")),
    )
    op.create_table(
        "run_reports",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("variant", sa.String(length=100), nullable=False),
        sa.Column("data_version", sa.String(length=63), nullable=False),
        sa.Column(
            "figures",
            sa.JSON(none_as_null=True).with_variant(
                postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
            ),
            nullable=False,
        ),
        sa.Column("made_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "batch", "variant", name=op.f("pk_run_reports")),
    )
