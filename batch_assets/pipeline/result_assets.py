"""The assets that follow llm_outputs, made together, one entry each. Adding one for every task is adding an entry.

validated_results comes first: its checks decide whether any of them is made (pipeline/make_results.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from batch_assets.core.asset_names import LLM_OUTPUTS, QA_SAMPLES, QUARANTINE, RUN_REPORTS, VALIDATED_RESULTS
from batch_assets.core.outcomes import Figures, FilePath, Table
from batch_assets.pipeline.ask_partitions import tabulate_failures
from batch_assets.pipeline.frame_schemas import OUTPUT_PREFIX
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.validated_frame import ValidatedFrame
from batch_assets.reports.labels import Labels
from batch_assets.reports.qa_sample import take_sample
from batch_assets.reports.run_report import RunReport
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.figures import load_quarantine
from batch_assets.store.qa_samples import SampledRecord, save_qa_samples
from batch_assets.store.run_reports import save_run_report

SHOWN = 20
BAR_LENGTH = 20
SHOWN_FIRST = (
    "latency_p50_s",
    "latency_p95_s",
    "cost",
    "error_share",
    "invalid_share",
    "records_per_s",
    "tokens_per_s",
)
"""Figures of a run report that stand before its counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPartition:
    """What the result assets of one partition are made of. Its gates and the checks of its frame have passed."""

    platform: Platform
    inputs: PartitionInputs
    validated: ValidatedFrame
    report: RunReport
    data_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAsset:
    """An asset after llm_outputs. `make` writes what it is made of and returns its figures; `upstream` is its parent.

    The frame is in its place by then, and `validated.staged.scan()` reads it.
    """

    name: str
    upstream: str
    description: str
    kinds: frozenset[str]
    make: Callable[[FinishedPartition], Figures]


def _report_frame(finished: FinishedPartition) -> Figures:
    path = finished.validated.staged.path
    return {"rows": finished.validated.rows, "frame": FilePath(str(path))}


def _summarise_quarantine(finished: FinishedPartition) -> Figures:
    """Return what has no accepted answer from anybody."""
    inputs, answered = finished.inputs, finished.validated.fallback_ids
    with finished.platform.database.read() as connection:
        reasons, first = load_quarantine(connection, inputs.key, inputs.batch, answered, SHOWN)
    rows = sorted(reasons.items(), key=lambda reason: (-reason[1], reason[0]))
    return {
        "rows": sum(reasons.values()),
        **({"answered_by_fallback": len(answered)} if inputs.task.fallbacks else {}),
        "reasons": Table(columns=("reason", "records"), rows=rows),
        "first_failures": tabulate_failures(first),
    }


def _save_sample(finished: FinishedPartition) -> Figures:
    """Replace a partition's sample, the records that a person is to look at.

    The seed is the task's name: the same records are sampled for each variant, so that samples can be compared.
    """
    inputs, own = finished.inputs, finished.validated.scan_own()
    ids = own.select("item_id").collect()["item_id"].to_list()
    ranks = {item_id: rank for rank, item_id in take_sample(ids, inputs.task.name, inputs.task.qa_sample_size)}
    rows = own.filter(pl.col("item_id").is_in(list(ranks))).collect().to_dicts()
    sample = [
        SampledRecord(
            item_id=row["item_id"],
            rank_hash=ranks[row["item_id"]],
            answer={k.removeprefix(OUTPUT_PREFIX): v for k, v in row.items() if k.startswith(OUTPUT_PREFIX)},
        )
        for row in rows
    ]
    with finished.platform.database.write() as connection:
        save_qa_samples(connection, inputs.task.name, inputs.batch, inputs.variant.key, sample)
    return {"rows": len(sample)}


def _save_report(finished: FinishedPartition) -> Figures:
    """Replace a partition's report."""
    inputs, report = finished.inputs, finished.report
    with finished.platform.database.write() as connection:
        figures = report.model_dump(mode="json")
        save_run_report(
            connection, inputs.task.name, inputs.batch, inputs.variant.key, figures, finished.data_version
        )  # fmt: skip
    numbers = report.numbers()
    return {
        **{name: numbers[name] for name in SHOWN_FIRST if name in numbers},
        "labels": tabulate_labels(report.labels),
        **{name: number for name, number in numbers.items() if name not in SHOWN_FIRST},
    }


def tabulate_labels(labels: Labels) -> Table:
    """Return each field's labels, the most frequent first, with their shares of the field's answers and a bar."""
    rows: list[tuple[str, str, int, str, str]] = []
    for field, counts in labels.items():
        total = sum(counts.values())
        for label, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            share = count / total if total else 0.0
            rows.append((field, label, count, f"{share:.1%}", "█" * round(share * BAR_LENGTH)))
    return Table(columns=("field", "label", "answers", "share", "bar"), rows=rows)


RESULT_ASSETS: Sequence[ResultAsset] = (
    ResultAsset(
        name=VALIDATED_RESULTS,
        upstream=LLM_OUTPUTS,
        description="One row per record whose answer is accepted: the answer's fields as typed columns, in Parquet.",
        kinds=frozenset({"pydantic", "pandera", "parquet"}),
        make=_report_frame,
    ),
    ResultAsset(
        name=QUARANTINE,
        upstream=LLM_OUTPUTS,
        description="One row per record without an accepted answer, and why: work for another model or a person.",
        kinds=frozenset({"sql"}),
        make=_summarise_quarantine,
    ),
    ResultAsset(
        name=QA_SAMPLES,
        upstream=VALIDATED_RESULTS,
        description="One row per sampled result: those of smallest seeded hash, stable and mergeable over batches.",
        kinds=frozenset({"sql"}),
        make=_save_sample,
    ),
    ResultAsset(
        name=RUN_REPORTS,
        upstream=QA_SAMPLES,
        description="One row per batch and variant: counts, tokens, seconds, rates, cost and latency.",
        kinds=frozenset({"sql"}),
        make=_save_report,
    ),
)

RESULT_NAMES = tuple(asset.name for asset in RESULT_ASSETS)
"""Their names; each has the data version of its whole output."""
