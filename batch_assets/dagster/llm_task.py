"""LlmTask: the component that a task folder declares. From it come assets, checks, jobs and a sensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import dagster as dg
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue
from pydantic import BaseModel

from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.checks import Check
from batch_assets.core.entries import Entry
from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.core.names import check_task_name
from batch_assets.core.prompts import check_fields, load_prompts
from batch_assets.core.task_settings import Acceptance, Asking, Operations
from batch_assets.core.tasks import Nightly, Rule, Task, Thresholds
from batch_assets.dagster.assets.fallback_outputs import build_fallback_outputs
from batch_assets.dagster.assets.llm_outputs import build_llm_outputs
from batch_assets.dagster.assets.results import build_results
from batch_assets.dagster.assets.source_records import build_source_records
from batch_assets.dagster.assets.variant_specs import build_variant_specs
from batch_assets.dagster.jobs.launch_jobs import build_launch_jobs
from batch_assets.dagster.new_task import find_package, write_task
from batch_assets.dagster.schedules import build_nightly_schedule
from batch_assets.dagster.sensors.microbatches import build_microbatch_sensor
from batch_assets.dagster.sensors.planner import build_planner_sensors
from batch_assets.dagster.sensors.sync import build_sync_sensor
from batch_assets.dagster.yaml_fields import (
    AcceptanceField,
    AskingField,
    LadderField,
    NightlyField,
    OperationsField,
    RetryField,
    ThresholdsField,
    resolve_checks,
    resolve_output,
    resolve_rules,
    resolve_source,
)
from batch_assets.engines.factory import check_entry
from batch_assets.engines.models_file import load_models
from batch_assets.pipeline.checks.of_task import list_checks
from batch_assets.pipeline.stored_batches import bind_source
from batch_assets.sources.base import Source, StreamSource
from batch_assets.sources.stream import Microbatched

G = TypeVar("G", bound=Entry)

TASK_METADATA = "batch_assets/task:"
"""How the keys begin under which definitions carry the tasks that they were made from, each with its source."""


class TaskScaffolder(dg.Scaffolder[Any]):
    """`dg scaffold defs batch_assets.dagster.llm_task.LlmTask my_task`: what `batch-assets new my_task` writes."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the task's folder. Raises ConfigError if the name or the place won't do."""
        folder = request.target_path
        is_yaml = request.scaffold_format == "yaml"
        write_task(folder, package=find_package(folder.parent), is_yaml=is_yaml, module="component.py")  # dg wants it


@dataclass(kw_only=True)
class SettingsBefore:
    """The settings of task folders made before version 0.2, which weren't in groups. They are taken as ever.

    None: not given. What is given here and in a group as well is refused.
    """

    rules: Annotated[Sequence[Rule] | None, dg.Resolver(resolve_rules, model_field_type=list[str])] = None
    rules_version: str | None = None
    checks: Annotated[Sequence[Check[Any]] | None, dg.Resolver(resolve_checks, model_field_type=list[str])] = None
    required_fields: Sequence[str] | None = None
    retry: RetryField | None = None
    ladder: LadderField | None = None
    fallback: str | None = None
    description: str | None = None
    owners: Sequence[str] | None = None
    nightly: NightlyField | None = None
    qa_sample_size: int | None = None


@dg.scaffold_with(TaskScaffolder)
@dataclass(kw_only=True)
class LlmTask(SettingsBefore, dg.Component, dg.Resolvable):
    """One task: what is asked of each record of a source, of which models, and what an answer must be.

    `prompts` is a folder of prompt files and `models` names entries of models.yaml; both are taken from the task's
    folder and the one above it. The groups `acceptance`, `asking` and `operations` are those of core/task_settings.py.
    Whatever is wrong with any of it is a ConfigError when the definitions load.

    In YAML (`defs.yaml`, `type: batch_assets.dagster.llm_task.LlmTask`) `source` is {files, key, delimiter} or
    {table, url_env, key, cursor, …} as SqlSource has it. `output`, rules and checks are dotted names.
    """

    name: str
    source: Annotated[Source | StreamSource, dg.Resolver(resolve_source, model_field_type=dict[str, Any])]
    output: Annotated[type[BaseModel], dg.Resolver(resolve_output, model_field_type=str)]
    models: Sequence[str]
    prompts: str = "prompts"
    thresholds: ThresholdsField = Thresholds()
    acceptance: AcceptanceField = Acceptance()
    asking: AskingField = Asking()
    operations: OperationsField = Operations()

    def build_task(self, folder: Path) -> tuple[Task, Source]:
        """Read the task's files, as they are in `folder`."""
        check_task_name(self.name)
        acceptance = self._merge("acceptance", self.acceptance, Acceptance)
        asking = self._merge("asking", self.asking, Asking)
        operations = self._merge("operations", self.operations, Operations)
        thresholds = self._require("thresholds", self.thresholds, Thresholds)
        source = bind_source(self.name, self.source.bind(folder))
        prompts = load_prompts(folder / self.prompts, self.output)
        try:
            columns = source.columns()
        except SourceError:
            columns = None  # one unreadable file is no reason to lose the other tasks; reading it says what is wrong
        for prompt in prompts.values():
            if columns is not None:
                check_fields(prompt, columns)
        entries = load_models(folder.parent / "models.yaml")
        named = [*self.models, *([asking.fallback] if asking.fallback else [])]
        unknown = [m for m in named if m not in entries]
        if unknown or not self.models:
            raise ConfigError(f"task {self.name}: models: {unknown or 'none'}; models.yaml has {', '.join(entries)}")
        used = {field for prompt in prompts.values() for field in prompt.fields}
        lost = sorted({*asking.required_fields} - used)
        if lost:
            words = f"{', '.join(lost)}: no prompt uses it"
            raise ConfigError(f"task {self.name}: required_fields: {words}; they use {', '.join(sorted(used))}")
        models = {m: entries[m] for m in self.models}
        if len(models) != len(self.models):
            doubled = sorted({m for m in self.models if list(self.models).count(m) > 1})
            raise ConfigError(f"task {self.name}: models: {', '.join(doubled)} comes twice: name each model once")
        for name in named:
            check_entry(entries[name])
        task = Task(
            name=self.name,
            output=self.output,
            prompts=prompts,
            models=models,
            rules=tuple(acceptance.rules),
            rules_version=acceptance.rules_version,
            required_fields=tuple(asking.required_fields),
            thresholds=thresholds,
            retry=asking.retry,
            ladder=asking.ladder,
            fallback=entries[asking.fallback] if asking.fallback else None,
            nightly=operations.nightly,
            checks=tuple(acceptance.checks),
            qa_sample_size=operations.qa_sample_size,
            description=operations.description,
            owners=tuple(operations.owners),
        )
        _ = task.variants, task.rules_text, list_checks(task)  # each refuses what can't be used
        return task, source

    def _require(self, name: str, value: object, kind: type[G]) -> G:
        if not isinstance(value, kind):  # Python takes whatever it is given
            raise ConfigError(f"task {self.name}: {name}: expected {kind.__name__}(…)")
        return value

    def _merge(self, name: str, found: object, kind: type[G]) -> G:
        """Return a group with what is given in the spelling of before. Raises ConfigError for what can't be."""
        group = self._require(name, found, kind)
        before = {f: getattr(self, f) for f in kind.model_fields if getattr(self, f) is not None}
        twice = sorted(group.model_fields_set & before.keys())
        if twice:
            raise ConfigError(f"task {self.name}: {', '.join(twice)}: given by itself and in {name}: once is enough")
        for field, wanted in (("retry", RetryPolicy), ("ladder", Ladder), ("nightly", Nightly)):
            if field in before:
                self._require(field, before[field], wanted)
        if isinstance(before.get("required_fields"), str):
            raise ConfigError(f"task {self.name}: required_fields: a list of fields is wanted")
        # As they are: YAML's `rules_version: 2` is a number, and the identity of that task's rows has it as one.
        return group.model_copy(update=before)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build everything of the task."""
        folder = context.path if context.path.is_dir() else context.path.parent
        task, source = self.build_task(folder)
        return dg.Definitions(
            metadata={f"{TASK_METADATA}{folder}": ObjectMetadataValue((task, source))},
            assets=[
                build_source_records(task, source),
                build_variant_specs(task),
                build_llm_outputs(task, source),
                *([build_fallback_outputs(task, task.fallback)] if task.fallback else []),
                build_results(task),
            ],
            jobs=build_launch_jobs(task, source),
            sensors=[
                build_sync_sensor(task, source),
                *build_planner_sensors(task, source),
                *([build_microbatch_sensor(task, source.stream)] if isinstance(source, Microbatched) else []),
            ],
            schedules=[build_nightly_schedule(task)],
        )
