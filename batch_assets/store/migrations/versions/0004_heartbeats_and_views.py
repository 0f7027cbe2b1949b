"""A heartbeat per run, a marker per folder of frames, and the views that people ask.

A later migration that rebuilds or alters a column of llm_batch_results, item_owner or llm_fallbacks drops the two views
first and makes them again: both databases refuse it otherwise.
"""

import sqlalchemy as sa
from alembic import op

import batch_assets.store.tables

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CURRENT_RESULTS = """
CREATE VIEW current_results AS
SELECT
    r.task, r.item_id, r.batch, r.prompt_ver, r.model_id,
    r.status, r.payload, r.error_kind, r.error, r.attempts, r.ladder_step, r.run_id, r.updated_at,
    CASE WHEN r.status = 'ok' THEN r.model_id ELSE a.model_id END AS answered_by,
    CASE WHEN r.status = 'ok' THEN r.payload ELSE a.payload END AS final_payload,
    CASE WHEN r.status = 'ok' THEN r.updated_at ELSE a.updated_at END AS answered_at
FROM llm_batch_results r
JOIN item_owner o ON o.task = r.task AND o.item_id = r.item_id AND o.batch = r.batch
LEFT JOIN llm_fallbacks f
    ON f.task = r.task AND f.batch = r.batch AND f.variant = r.prompt_ver || '--' || r.model_id AND r.status <> 'ok'
LEFT JOIN llm_batch_results a
    ON a.task = r.task AND a.item_id = r.item_id AND a.prompt_ver = r.prompt_ver AND a.model_id = f.model_id
    AND a.status = 'ok' AND a.input_hash = r.input_hash AND a.accept_spec = r.accept_spec
WHERE NOT r.is_fallback
"""
"""One row per record that the source has, in the batch that owns it, and variant. `answered_by` is null: by nobody."""

QUARANTINE = """
CREATE VIEW quarantine AS
SELECT
    task, item_id, batch, prompt_ver, model_id, status, payload, error_kind, error, attempts, ladder_step, run_id,
    updated_at
FROM current_results
WHERE answered_by IS NULL
"""


def upgrade() -> None:
    """Add the tables and the views."""
    op.create_table(
        "llm_runs",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "process_started", sa.Float(), nullable=False, comment="tells a process from a later one with its pid"
        ),
        sa.Column(
            "beat_at",
            batch_assets.store.tables.UtcDateTime(timezone=True),
            nullable=False,
            comment="its last sign of life, by the database's clock",
        ),
        sa.Column(
            "doubted_at",
            batch_assets.store.tables.UtcDateTime(timezone=True),
            nullable=True,
            comment="since when another host misses a sign of life; null: nobody does",
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_llm_runs")),
    )
    op.create_table(
        "llm_frame_folders",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False, comment="where this host has its frames"),
        sa.Column(
            "marker",
            sa.String(length=32),
            nullable=False,
            comment="what lies in the folder: one folder has one marker",
        ),
        sa.Column(
            "seen_at",
            batch_assets.store.tables.UtcDateTime(timezone=True),
            nullable=False,
            comment="when the host last opened it, to the day",
        ),
        sa.PrimaryKeyConstraint("host", "folder", name=op.f("pk_llm_frame_folders")),
    )
    op.execute(CURRENT_RESULTS)
    op.execute(QUARANTINE)
