"""Writes a task's validated results as one file, which is there as a whole or not at all."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import polars as pl
from dagster import DagsterInstance
from polars.exceptions import PolarsError
from polars.io.plugins import register_io_source
from rich.console import Console
from rich.progress import Progress

from batch_assets.cli.export_output import Format, write_output
from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.errors import ConfigError, NotReadyError
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import load_recorded
from batch_assets.pipeline.frame_schemas import validated_results_schema
from batch_assets.pipeline.plan import Selection, make_plan
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import Source
from batch_assets.store.batches import load_batches, load_owned
from batch_assets.store.database import Connection
from batch_assets.store.failures import load_failing
from batch_assets.store.fallbacks import load_fallbacks
from batch_assets.store.partitions import load_partitions

SHOWN_NAMES = 5
BAR_AFTER_S = 1.0
_FORMULA = r"^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""How a cell begins that a spreadsheet takes for a formula, the wide signs of East Asian ones among them: https://owasp.org/www-community/attacks/CSV_Injection"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Which partitions there are to export, and what is wrong with the rest. `outdated` ones have results too."""

    found: tuple[PartitionKey, ...]
    missing: tuple[PartitionKey, ...] = ()
    """Not done yet: no results."""
    outdated: tuple[PartitionKey, ...] = ()
    """Their results are of an earlier state of source, prompt, model or rules, or their fallback is yet to be asked."""
    lost: tuple[PartitionKey, ...] = ()
    """Done, but their frame is gone from the home folder."""
    held: tuple[PartitionKey, ...] = ()
    """Those of `missing` and `outdated` whose new results a check holds back: to run them again changes nothing."""

    @property
    def is_whole(self) -> bool:
        """Say whether each partition's results are there and up to date."""
        return not (self.missing or self.outdated or self.lost)


@dataclass(slots=True, kw_only=True)
class Exported:
    """What was written, in rows and bytes. `left_out`: rows of records that their batch owns no more."""

    path: str
    rows: int = 0
    partitions: int = 0
    bytes: int = 0
    left_out: int = 0
    has_changed: bool = False
    """The store changed meanwhile: the file may hold one partition as it was before and another as it was after."""
    missing: list[str] = field(default_factory=list[str])
    outdated: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    held: list[str] = field(default_factory=list[str])


class Exporter:
    """Writes the validated results of a task. One row per accepted answer, by batch, variant and item_id.

    A record that came again in a later batch counts there alone, so an id stands once per variant. The store is read
    in one state throughout. Memory holds a few partitions at a time.
    """

    def __init__(self, task: Task, source: Source, platform: Platform, instance: DagsterInstance) -> None:
        self._task = task
        self._source = source
        self._platform = platform
        self._instance = instance

    def export(self, selection: Selection, form: Format, output: str, *, strict: bool = False) -> Exported:
        """Write the file, or to stdout for `-`.

        Raises ConfigError if there is nothing to export or no way to write it. With `strict`, NotReadyError if
        anything is missing or outdated, or changes meanwhile; nothing is written then.
        """
        with self._platform.database.read() as connection:
            state = _read_state(connection, self._task.name)
            survey = self._survey(selection, list(state[0]))
            if strict and not survey.is_whole:
                raise NotReadyError("\n".join(describe(self._task.name, survey)))
            if not survey.found:
                task = self._task.name
                why = "; ".join(describe(task, survey)) if survey.held else f"batch-assets run {task}"
                raise ConfigError(f"task {task} has no validated results here yet: {why}")
            done = Exported(path=output)
            done.missing, done.outdated, done.lost, done.held = (
                [str(p) for p in group] for group in (survey.missing, survey.outdated, survey.lost, survey.held)
            )

            def write(file: BinaryIO) -> None:
                _write_rows(self._scan(connection, survey.found, form, done), form, file)
                with self._platform.database.read() as later:
                    done.has_changed = _read_state(later, self._task.name) != state
                if strict and done.has_changed:
                    raise NotReadyError(f"task {self._task.name} changed while it was exported: export it again")

            done.bytes = write_output(output, write)
        return done

    def _survey(self, selection: Selection, order: Sequence[str]) -> Survey:
        recorded = load_recorded(self._instance, self._task)
        plan = make_plan(self._task, self._source, self._platform, recorded, selection=selection)
        places = {batch: n for n, batch in enumerate(order)}
        variants = list(self._task.variants)
        late = {n.partition for n in plan.needs} | {*plan.outdated, *plan.fallbacks}
        everything = sorted(
            {*plan.done, *late},
            key=lambda p: (places.get(p.batch, len(places)), p.batch, variants.index(p.variant)),
        )
        there = {p for p in everything if self._find_frame(p).is_file()}
        with self._platform.database.read() as connection:
            refused = {p for step, p in load_failing(connection, self._task.name) if step is Step.RESULTS}
        return Survey(
            found=tuple(p for p in everything if p in there),
            missing=tuple(p for p in everything if p not in there and p in late),
            outdated=tuple(p for p in everything if p in there and p in late),
            lost=tuple(p for p in everything if p not in there and p not in late),
            held=tuple(p for p in everything if p in plan.outdated and str(p) in refused),
        )

    def _find_frame(self, partition: PartitionKey) -> Path:
        return self._platform.frames.path(self._task.name, VALIDATED_RESULTS, partition.batch, partition.variant)

    def _scan(
        self, connection: Connection, partitions: Sequence[PartitionKey], form: Format, done: Exported
    ) -> pl.LazyFrame:
        """Return all rows as a frame that polars' sinks take in piece by piece."""
        columns = result_columns(self._task)

        def read(*_pushed_down: object) -> Iterator[pl.DataFrame]:  # a sink pushes nothing down
            owner, owned = "", pl.Series(dtype=pl.String)
            with _Bar(len(partitions)) as bar:
                for partition in partitions:
                    if partition.batch != owner:
                        owner = partition.batch
                        owned = pl.Series(sorted(load_owned(connection, self._task.name, owner)), dtype=pl.String)
                    frame = self._platform.frames.read(
                        self._task.name, VALIDATED_RESULTS, partition.batch, partition.variant
                    )
                    if frame is None:
                        raise NotReadyError(f"{partition}: its results vanished while they were exported")
                    kept = fit_columns(frame, columns, str(partition)).filter(pl.col("item_id").is_in(owned.implode()))
                    done.left_out += frame.height - kept.height
                    done.rows += kept.height
                    done.partitions += 1
                    bar.advance()
                    yield neutralise_formulas(kept) if form is Format.CSV else kept

        return register_io_source(read, schema=columns)


def result_columns(task: Task) -> dict[str, pl.DataType]:
    """Return the columns of a task's validated results as its output model is now."""
    contract = validated_results_schema(task.output)
    return {str(name): column.dtype.type for name, column in contract.columns.items()}


def fit_columns(frame: pl.DataFrame, columns: Mapping[str, pl.DataType], partition: str) -> pl.DataFrame:
    """Give a frame of an earlier output model the columns of the present one; what it lacks is null.

    NotReadyError if a value doesn't fit its column's present type.
    """
    if frame.schema == pl.Schema(columns):
        return frame
    try:
        return frame.select(
            (pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name))
            for name, dtype in columns.items()
        )
    except PolarsError as e:
        raise NotReadyError(
            f"{partition}: its results are of an earlier output model and don't fit the present one: make them anew"
        ) from e


def neutralise_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Put a `'` before text that a spreadsheet would take for a formula; numbers stay."""
    text = [pl.col(name) for name, dtype in frame.schema.items() if dtype == pl.String]
    return frame.with_columns(
        pl.when(column.str.contains(_FORMULA)).then(pl.concat_str(pl.lit("'"), column)).otherwise(column).name.keep()
        for column in text
    )


def describe(task: str, survey: Survey | Exported) -> list[str]:
    """Return what is missing or outdated and the command that mends it, a line for each kind."""
    lines: list[str] = []
    total = (
        len(survey.missing)
        + len(survey.lost)
        + (len(survey.found) if isinstance(survey, Survey) else survey.partitions)
    )
    run = f"batch-assets run {task}"
    held = {str(p) for p in survey.held}
    for group, words in ((survey.missing, "have no results yet"), (survey.outdated, "are out of date")):
        if late := [p for p in group if str(p) not in held]:
            lines.append(f"{len(late)} of {total} partitions {words}: {_name(late)}: {run}")
    if held:
        lines.append(
            f"{len(held)} of {total} partitions have new results that a check holds back: {_name(survey.held)}: "
            f"batch-assets status {task} says why, {run} --retry failed asks what is not ok again"
        )
    if survey.lost:
        lines.append(
            f"{len(survey.lost)} of {total} partitions are done and their frames are gone: {_name(survey.lost)}: "
            "materialize their validated_results again in the web UI"
        )
    return lines


def describe_rows(done: Exported) -> list[str]:
    """Return what else a reader of the file should know."""
    lines: list[str] = []
    if done.left_out:
        lines.append(f"{done.left_out} rows left out: a later batch has their records now, or the source has no more")
    if done.has_changed:
        lines.append("the task changed while it was exported: export it again to have one state of it")
    return lines


def _read_state(connection: Connection, task: str) -> tuple[dict[str, str], *tuple[dict[tuple[str, str], str], ...]]:
    """Return what the store holds of a task, to tell later whether it changed: batches, in order, and partitions."""
    batches = {name: state.content for name, state in load_batches(connection, task).items()}
    finished = {key: state.data_version for key, state in load_partitions(connection, task).items()}
    return batches, finished, {key: state.data_version for key, state in load_fallbacks(connection, task).items()}


def _write_rows(rows: pl.LazyFrame, form: Format, file: BinaryIO) -> None:
    match form:
        case Format.PARQUET:
            rows.sink_parquet(file)
        case Format.CSV:
            rows.sink_csv(file, datetime_format="%Y-%m-%dT%H:%M:%S%.6f%:z")
        case Format.JSONL:
            rows.sink_ndjson(file)


class _Bar:
    """A bar on stderr, if that is a terminal, once the export has taken a while."""

    def __init__(self, total: int) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
        self._row = self._bar.add_task("exporting", total=total)
        self._started = time.monotonic()
        self._is_shown = False

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:  # to stop a bar that never started prints an empty line
            self._bar.stop()

    def advance(self) -> None:
        self._bar.advance(self._row)
        if not self._is_shown and self._bar.console.is_terminal and time.monotonic() - self._started > BAR_AFTER_S:
            self._is_shown = True
            self._bar.start()


def _name(partitions: Sequence[object]) -> str:
    shown = ", ".join(str(p) for p in partitions[:SHOWN_NAMES])
    more = len(partitions) - SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
