"""Failures, alerts and microbatches."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

import batch_assets.store.tables

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables that operating from the web UI needs."""
    op.create_table(
        "llm_alerts",
        sa.Column(
            "alert_key", sa.Text(), nullable=False, comment="run, asset, check and partition: one alert for each"
        ),
        sa.Column("kind", sa.String(length=20), nullable=False, comment="check_failed, check_warned or run_failed"),
        sa.Column("subject", sa.Text(), nullable=False, comment="the task, for the title of a message"),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("link", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column(
            "sent_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=True, comment="null: to be sent"
        ),
        sa.Column(
            "delivered_to",
            sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql"),
            nullable=False,
            comment="hashes of the receivers that have it",
        ),
        sa.Column(
            "claimed_until",
            batch_assets.store.tables.UtcDateTime(timezone=True),
            nullable=True,
            comment="null: nobody is sending it",
        ),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_try_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("error", sa.Text(), nullable=True, comment="of the last try that failed"),
        sa.PrimaryKeyConstraint("alert_key", name=op.f("pk_llm_alerts")),
    )
    op.create_index(op.f("ix_llm_alerts__sent_at_next_try_at"), "llm_alerts", ["sent_at", "next_try_at"], unique=False)
    op.create_table(
        "llm_failures",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("step", sa.String(length=20), nullable=False, comment="sources, outputs or results"),
        sa.Column("partition", sa.String(length=201), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False, comment="what was being made; another starts the count anew"),
        sa.Column(
            "failures", sa.Integer(), nullable=False, comment="starts since the last success that came to no end"
        ),
        sa.Column("error", sa.Text(), nullable=True, comment="null: killed, or at work now"),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("failed_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "step", "partition", name=op.f("pk_llm_failures")),
    )
    op.create_table(
        "llm_microbatch_items",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=False, comment="the row's cursor value, as text"),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("task", "item_id", "cursor", name=op.f("pk_llm_microbatch_items")),
    )
    op.create_index(
        op.f("ix_llm_microbatch_items__task_batch"), "llm_microbatch_items", ["task", "batch"], unique=False
    )
    op.create_index(
        op.f("ix_llm_microbatch_items__task_cursor"), "llm_microbatch_items", ["task", "cursor"], unique=False
    )
    op.create_table(
        "llm_microbatches",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column("batch", sa.String(length=100), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False, comment="order in which they were formed, from 1"),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("formed_at", batch_assets.store.tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task", "batch", name=op.f("pk_llm_microbatches")),
        sa.UniqueConstraint("task", "seq", name="uq_llm_microbatches__task_seq"),
    )
    op.create_table(
        "llm_streams",
        sa.Column("task", sa.String(length=50), nullable=False),
        sa.Column(
            "position",
            sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql"),
            nullable=True,
            comment="the greatest cursor value that is in a batch, with its type",
        ),
        sa.Column(
            "waiting_since",
            batch_assets.store.tables.UtcDateTime(timezone=True),
            nullable=True,
            comment="when rows that are in no batch were first seen; null: none",
        ),
        sa.PrimaryKeyConstraint("task", name=op.f("pk_llm_streams")),
    )
