"""The tables. A change here comes with a migration; a test compares the two."""

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect

metadata = sa.MetaData(
    naming_convention={"ix": "ix_%(table_name)s__%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)

Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Key = sa.String(100)
Digest = sa.String(24)


class UtcDateTime(sa.types.TypeDecorator[dt.datetime]):
    """A moment in UTC, aware on both databases: TIMESTAMPTZ on PostgreSQL, ISO text on SQLite."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        """Refuse a naive moment; SQLite gets UTC without the offset."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a time zone can't be stored")
        utc = value.astimezone(dt.UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:  # noqa: ARG002
        """Give the moment its zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _task() -> sa.Column[Any]:
    return sa.Column("task", sa.String(50), primary_key=True)


results = sa.Table(
    "llm_batch_results",
    metadata,
    _task(),
    sa.Column("item_id", sa.Text, primary_key=True),
    sa.Column("prompt_ver", Key, primary_key=True),
    sa.Column("model_id", Key, primary_key=True),
    sa.Column("batch", Key, comment="null: the record is in the source no more"),
    sa.Column("status", sa.String(10), nullable=False),
    sa.Column("payload", Json),
    sa.Column("error_kind", sa.String(30)),
    sa.Column("error", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("input_hash", Digest, nullable=False),
    sa.Column("request_spec", Digest, nullable=False),
    sa.Column("accept_spec", Digest, nullable=False),
    sa.Column("request_key", Digest, comment="null: nothing could be asked"),
    sa.Column("attempt_id", sa.String(32)),
    sa.Column("ladder_step", sa.Integer, nullable=False, server_default="0"),
    sa.Column(
        "is_fallback",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="made for another variant's quarantine; not one of its own variant's rows",
    ),
    sa.Column("reused_from", sa.String(32), comment="the earlier attempt whose answer this is"),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.CheckConstraint("status IN ('ok', 'invalid', 'error')", name="ck_llm_batch_results__status"),
    sa.CheckConstraint("(status = 'ok') = (error_kind IS NULL)", name="ck_llm_batch_results__reason"),
    sa.Index(None, "task", "prompt_ver", "model_id", "batch", "status"),
)

attempts = sa.Table(
    "llm_attempts",
    metadata,
    sa.Column("attempt_id", sa.String(32), primary_key=True),
    sa.Column("task", sa.String(50), nullable=False),
    sa.Column("item_id", sa.Text, nullable=False),
    sa.Column("prompt_ver", Key, nullable=False),
    sa.Column("model_id", Key, nullable=False),
    sa.Column("batch", Key, nullable=False),
    sa.Column("request_key", Digest, nullable=False),
    sa.Column("base_key", Digest, nullable=False, comment="the request_key of the ladder's first step"),
    sa.Column("ladder_step", sa.Integer, nullable=False, server_default="0"),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("is_alone", sa.Boolean, nullable=False),
    sa.Column("parameters", Json, nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("ended_at", UtcDateTime, comment="null: in flight, or died in flight"),
    sa.Column("outcome", sa.String(10), comment="ok, invalid, error, or released: given back unanswered"),
    sa.Column("completion", sa.Text),
    sa.Column("reasoning", sa.Text, comment="what the server returned as the model's thinking"),
    sa.Column("refusal", sa.Text, comment="the model's words where it declined"),
    sa.Column("finish_reason", sa.String(40)),
    sa.Column("prompt_tokens", sa.Integer),
    sa.Column("completion_tokens", sa.Integer),
    sa.Column("cached_tokens", sa.Integer),
    sa.Column("latency_s", sa.Float),
    sa.Column("engine_s", sa.Float, comment="this attempt's share of the engine's busy time"),
    sa.Column("error_kind", sa.String(30)),
    sa.Column("error", sa.Text),
    sa.Index(None, "request_key"),
    sa.Index(None, "task", "item_id", "prompt_ver", "model_id"),
    sa.Index(None, "task", "prompt_ver", "model_id", "batch"),
)

batches = sa.Table(
    "llm_batches",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False, comment="order of first sight: the later owns a repeated id"),
    sa.Column(
        "stamp",
        sa.Text,
        key="change_token",
        nullable=False,
        comment="what the source cheaply tells of its state: size and mtime",
    ),
    sa.Column("source_hash", Digest, nullable=False),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("malformed", Json, nullable=False, comment="lines set aside: [[line, reason], …]"),
    sa.Column("superseded", sa.Integer, nullable=False, server_default="0"),
    sa.Column("superseded_hash", Digest, nullable=False, comment="of the ids that later batches own; empty for none"),
    sa.Column("frozen_at", UtcDateTime, nullable=False),
)

item_owner = sa.Table(
    "item_owner",
    metadata,
    _task(),
    sa.Column("item_id", sa.Text, primary_key=True),
    sa.Column("batch", Key, nullable=False),
    sa.Index(None, "task", "batch"),
)

partitions = sa.Table(
    "llm_partitions",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("variant", sa.String(100), primary_key=True),
    sa.Column("fingerprint", Digest, nullable=False),
    sa.Column("content", Digest, nullable=False),
    sa.Column("parts", Json, nullable=False, comment="what the fingerprint is made of, by name"),
    sa.Column("counts", Json, nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("finished_at", UtcDateTime, nullable=False),
)

fallbacks = sa.Table(
    "llm_fallbacks",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("variant", sa.String(100), primary_key=True, comment="whose quarantined records were asked"),
    sa.Column("model_id", Key, nullable=False, comment="of whom they were asked"),
    sa.Column("fingerprint", Digest, nullable=False, comment="the output's data version and the fallback's identity"),
    sa.Column("content", Digest, nullable=False),
    sa.Column("counts", Json, nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("finished_at", UtcDateTime, nullable=False),
)

leases = sa.Table(
    "llm_leases",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("variant", sa.String(100), primary_key=True),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process_started", sa.Float, nullable=False, comment="tells a process from a later one with its pid"),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)

model_identities = sa.Table(
    "llm_model_identities",
    metadata,
    _task(),
    sa.Column("model_id", Key, primary_key=True),
    sa.Column("model_digest", Digest, primary_key=True, comment="by the present rules, without a path"),
    sa.Column("used_digest", Digest, nullable=False, comment="what the task's rows were made under"),
)

runs = sa.Table(
    "llm_runs",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process_started", sa.Float, nullable=False, comment="tells a process from a later one with its pid"),
    sa.Column("beat_at", UtcDateTime, nullable=False, comment="its last sign of life, by the database's clock"),
    sa.Column("doubted_at", UtcDateTime, comment="since when another host misses a sign of life; null: nobody does"),
)

frame_folders = sa.Table(
    "llm_frame_folders",
    metadata,
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("folder", sa.Text, primary_key=True, comment="where this host has its frames"),
    sa.Column("marker", sa.String(32), nullable=False, comment="what lies in the folder: one folder has one marker"),
    sa.Column("seen_at", UtcDateTime, nullable=False, comment="when the host last opened it, to the day"),
)

qa_samples = sa.Table(
    "qa_samples",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("variant", sa.String(100), primary_key=True),
    sa.Column("item_id", sa.Text, primary_key=True),
    sa.Column("rank_hash", sa.String(16), nullable=False, comment="samples of batches merge by the smallest of these"),
    sa.Column("payload", Json, nullable=False),
)

run_reports = sa.Table(
    "run_reports",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("variant", sa.String(100), primary_key=True),
    sa.Column("data_version", sa.String(63), nullable=False),
    sa.Column("figures", Json, nullable=False),
    sa.Column("made_at", UtcDateTime, nullable=False),
)

failures = sa.Table(
    "llm_failures",
    metadata,
    _task(),
    sa.Column("step", sa.String(20), primary_key=True, comment="sources, outputs, fallbacks or results"),
    sa.Column("partition", sa.String(201), primary_key=True),
    sa.Column("wanted", sa.Text, nullable=False, comment="what was being made; another starts the count anew"),
    sa.Column("failures", sa.Integer, nullable=False, comment="starts since the last success that came to no end"),
    sa.Column("error", sa.Text, comment="null: killed, or at work now"),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("failed_at", UtcDateTime, nullable=False),
)

alerts = sa.Table(
    "llm_alerts",
    metadata,
    sa.Column("alert_key", sa.Text, primary_key=True, comment="run, asset, check and partition: one alert for each"),
    sa.Column("kind", sa.String(20), nullable=False, comment="check_failed, check_warned or run_failed"),
    sa.Column("subject", sa.Text, nullable=False, comment="the task, for the title of a message"),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("link", sa.Text, nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("sent_at", UtcDateTime, comment="null: to be sent"),
    sa.Column("delivered_to", Json, nullable=False, comment="hashes of the receivers that have it"),
    sa.Column("claimed_until", UtcDateTime, comment="null: nobody is sending it"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("next_try_at", UtcDateTime, nullable=False),
    sa.Column("error", sa.Text, comment="of the last try that failed"),
    sa.Index(None, "sent_at", "next_try_at"),
)

microbatches = sa.Table(
    "llm_microbatches",
    metadata,
    _task(),
    sa.Column("batch", Key, primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False, comment="order in which they were formed, from 1"),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("formed_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("task", "seq", name="uq_llm_microbatches__task_seq"),
)

microbatch_items = sa.Table(
    "llm_microbatch_items",
    metadata,
    _task(),
    sa.Column("item_id", sa.Text, primary_key=True),
    sa.Column("cursor", sa.Text, primary_key=True, comment="the row's cursor value, as text"),
    sa.Column("batch", Key, nullable=False),
    sa.Index(None, "task", "batch"),
    sa.Index(None, "task", "cursor"),
)

streams = sa.Table(
    "llm_streams",
    metadata,
    _task(),
    sa.Column("position", Json, comment="the greatest cursor value that is in a batch, with its type"),
    sa.Column("waiting_since", UtcDateTime, comment="when rows that are in no batch were first seen; null: none"),
)
