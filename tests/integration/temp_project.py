"""A defs folder of its own, loaded as the webserver loads it, with a Dagster instance beside it."""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from factories import ScriptedEngine, make_instance, write_csv, write_prompt

from batch_assets.cli.launch import Launcher, RunSummary
from batch_assets.core.attempts import RetryMode
from batch_assets.core.models import ModelEntry
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key, load_recorded
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.platform_resource import PLATFORM, build_platform_resource
from batch_assets.dagster.project import Project, load_project
from batch_assets.dagster.runs import PLAN_JOB, job_name, op_config, op_name, read_config
from batch_assets.engines.base import Engine
from batch_assets.engines.factory import build_engine
from batch_assets.pipeline.plan import Plan, Selection, make_plan
from batch_assets.pipeline.platform import BuildEngine, Platform, open_platform
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source

TASK = """
from typing import Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.tasks import Thresholds
from batch_assets.sources.files import FileSource


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Literal["a", "b", "c"]
    score: int


@dg.component_instance
def t(_context) -> LlmTask:
    return LlmTask(
        name="t",
        source=FileSource("files/*.csv"),
        output=Answer,
        models=["m1"],
        retry=RetryPolicy(base_s=0, cap_s=0),
        ladder=Ladder(steps=0),
        thresholds=Thresholds(max_error_share=0.25, max_invalid_share=0.5, min_records=4),
        qa_sample_size=2,
    )
"""
MODELS = "m1:\n  weights: none\n  engine: fake\n"
RESULTS = ("validated_results", "quarantine", "qa_samples", "run_reports")
_numbers = itertools.count(1)


class TempProject:
    """One task `t` with prompts v1 and v2, asked of the fake model m1 unless an engine is given.

    Dagster's instance lies in memory, which is twice as quick, unless it is to lie on disk as a real one does.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, on_disk: bool = False) -> None:
        # A package name of its own: modules of defs folders stay loaded for the life of a process.
        self.defs = root / f"own_defs_{next(_numbers)}"
        self.folder = self.defs / "t"
        self.folder.mkdir(parents=True)
        (self.defs / "__init__.py").write_text("")
        self.write_models()
        (self.folder / "__init__.py").write_text("")
        (self.folder / "task.py").write_text(TASK)
        self.write_prompts("v1", "v2")
        self._build_engine: BuildEngine = build_engine
        monkeypatch.setenv("BATCH_ASSETS_DEFS", str(self.defs))
        monkeypatch.setenv("BATCH_ASSETS_HOME", str(root / "home"))
        monkeypatch.delenv("BATCH_ASSETS_DB_URL", raising=False)
        self.instance = make_instance(root / "dagster") if on_disk else dg.DagsterInstance.ephemeral()

    def write_prompts(self, *prompt_vers: str, **bodies: str) -> None:
        """Write prompt files; a body is `<prompt_ver>: {{ text }}` unless it is given."""
        for prompt_ver in (*prompt_vers, *bodies):
            write_prompt(self.folder / "prompts", prompt_ver, bodies.get(prompt_ver, f"{prompt_ver}: {{{{ text }}}}"))

    def write_models(self, **fields: object) -> None:
        """Write models.yaml: the fake m1, with more fields if given."""
        lines = [MODELS, *(f"  {name}: {value}\n" for name, value in fields.items())]
        (self.defs / "models.yaml").write_text("".join(lines))

    def write(self, batch: str, texts: Mapping[str, str] | Sequence[str]) -> Path:
        """Write the file of a batch."""
        return write_csv(self.folder / "files", batch, texts)

    def load(self) -> Project:
        """Load the definitions as they are in the files now."""
        for name in [m for m in sys.modules if m.split(".")[0] == self.defs.name]:
            del sys.modules[name]
        return load_project(load_settings())

    def bind(self) -> tuple[Task, Source]:
        """Return the task and its source, as they are now."""
        return self.load().tasks["t"]

    def use(self, engine: ScriptedEngine, **others: ScriptedEngine) -> ScriptedEngine:
        """Ask this engine from now on, and of the models that are named the others."""
        self._build_engine = lambda entry, _cache: others.get(entry.model_id, engine)
        return engine

    @property
    def resources(self) -> dict[str, dg.ResourceDefinition]:
        """What runs get instead of the project's own platform: the same with the engines that are to be used."""
        return {PLATFORM: build_platform_resource({}, self.build_engine)}

    def build_engine(self, entry: ModelEntry, cache: Path) -> Engine:
        """Return the engine that is to be used now."""
        return self._build_engine(entry, cache)

    def add_fallback(self) -> None:
        """Add a second model `big`, and name it as the task's fallback."""
        models = self.defs / "models.yaml"
        models.write_text(models.read_text() + "big:\n  weights: none\n  engine: fake\n  pool: big_gpu\n")
        task = self.folder / "task.py"
        task.write_text(task.read_text().replace('models=["m1"],', 'models=["m1"], fallback="big",'))

    @contextmanager
    def open_platform(self) -> Iterator[Platform]:
        """Open the store and the frames as a run does."""
        platform = open_platform(load_settings(), build_engine=self.build_engine)
        yield platform
        platform.database.close()

    def execute(self, *statements: sa.Executable) -> None:
        """Change the store behind everybody's back."""
        with self.open_platform() as platform, platform.database.write() as connection:
            for statement in statements:
                connection.execute(statement)

    def plan(self, **options: Any) -> Plan:
        """Plan as a new process would."""
        with self.open_platform() as platform:
            task, source = self.bind()
            return make_plan(task, source, platform, load_recorded(self.instance, task), **options)

    def materialize(
        self,
        assets: Sequence[str],
        *,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
        **config: Any,
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets of one partition, or of those that `tags` name, through the implicit asset job."""
        project = self.load()
        sync_partitions(*project.tasks["t"], self.instance)
        keys = [asset_key(project.tasks["t"][0], name) for name in assets]
        job = project.definitions.resolve_implicit_global_asset_job_def().get_subset(asset_selection=set(keys))
        run_config = {"ops": {"t__llm_outputs": {"config": config}}} if config else None
        return job.execute_in_process(
            partition_key=partition, instance=self.instance, tags=tags, run_config=run_config, raise_on_error=False,
            resources=self.resources,
        )  # fmt: skip

    def launch(self, step: Step, **config: Any) -> dg.ExecuteInProcessResult:
        """Run one of the launch jobs, as the planner does."""
        project = self.load()
        sync_partitions(*project.tasks["t"], self.instance)
        name = job_name("t", step, "m1" if step is Step.OUTPUTS else "")
        return project.definitions.resolve_job_def(name).execute_in_process(
            run_config=op_config(name, config), instance=self.instance, raise_on_error=False,
            resources=self.resources,
        )  # fmt: skip

    def launch_plan(self, **config: Any) -> dg.ExecuteInProcessResult:
        """Run the planner's job."""
        return (
            self.load()
            .definitions.resolve_job_def(PLAN_JOB)
            .execute_in_process(
                run_config=op_config(PLAN_JOB, config),
                instance=self.instance,
                raise_on_error=False,
                resources=self.resources,
            )  # fmt: skip
        )

    def queue(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the runs in the queue, oldest first: job and config."""
        runs = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
        return [(run.job_name, dict(read_config(run))) for run in reversed(runs)]

    def work_off(self) -> list[dg.ExecuteInProcessResult]:
        """Do what the daemon and run workers do with the queue."""
        done = []
        definitions = self.load().definitions
        for run in reversed(self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))):
            self.instance.delete_run(run.run_id)
            done.append(
                definitions.resolve_job_def(run.job_name).execute_in_process(
                    run_config=run.run_config,
                    instance=self.instance,
                    tags=dict(run.tags),
                    run_id=run.run_id,
                    raise_on_error=False,
                    resources=self.resources,
                )
            )
        return done

    def tick(self, sensor: str, cursor: str | None = None) -> dg.SensorResult:
        """Let a sensor look once, as the daemon does."""
        repository = self.load().definitions.get_repository_def()
        context = dg.build_sensor_context(self.instance, cursor=cursor, repository_def=repository)
        found = repository.get_sensor_def(sensor)(context)
        assert isinstance(found, dg.SensorResult)
        return found

    def run(self, *, retry: RetryMode = RetryMode.NONE, **selection: str) -> RunSummary:
        """Do what `batch-assets run t` does."""
        with self.open_platform() as platform:
            launcher = Launcher(self.load(), platform, self.instance, lambda _line: None)
            return launcher.run(*self.bind(), Selection.of(**selection), retry)


Check = tuple[str, str, str | None, bool]


def find_checks(result: dg.ExecuteInProcessResult) -> set[Check]:
    """Return what a run's checks found: asset, check, partition, passed."""
    return {(d.asset_key.path[-1], d.check_name, d.partition, d.passed) for d in result.get_asset_check_evaluations()}


def find_materialized(result: dg.ExecuteInProcessResult) -> list[tuple[str, str | None]]:
    """Return what a run materialized: asset, partition."""
    events = (e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION)
    return [(e.asset_key.path[-1], e.partition) for e in events if e.asset_key]


def find_held(result: dg.ExecuteInProcessResult) -> str:
    """Return what the results job held back; the job itself succeeded."""
    assert result.success
    return result.output_for_node(op_name(job_name("t", Step.RESULTS)))


def find_error(result: dg.ExecuteInProcessResult) -> str:
    """Return the words of the error that failed a run's step."""
    failures = [e.step_failure_data.error for e in result.all_events if e.is_step_failure]
    assert failures, "no step failed"
    error = failures[0]
    words = []
    while error is not None:
        words.append(error.message)
        error = error.cause
    return "\n".join(words)
