"""Loads a defs folder: all definitions, and the tasks that they were made from."""

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import dagster as dg
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.check import CheckError
from pydantic import ValidationError

from batch_assets.core.errors import ConfigError, find_cause, format_problems, unwrap
from batch_assets.core.tasks import Task
from batch_assets.core.yaml_text import check_yaml
from batch_assets.dagster.jobs.plan_job import build_plan_job
from batch_assets.dagster.llm_task import TASK_METADATA
from batch_assets.dagster.platform_resource import PLATFORM, build_platform_resource
from batch_assets.dagster.sensors.alerts import build_alerts_sensor
from batch_assets.settings import Settings
from batch_assets.sources.base import Source

_REFUSALS = (
    (ValidationError, TypeError),
    (ValueError, dg.DagsterInvalidDefinitionError, ResolutionException, CheckError),
)
"""What says best what is wrong comes first: Dagster wraps pydantic's errors in its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """All definitions, and the tasks that they were made from, by name, each with its source."""

    definitions: dg.Definitions
    tasks: dict[str, tuple[Task, Source]]


def load_project(settings: Settings) -> Project:
    """Load the defs folder. ConfigError (or SourceError) says what is wrong in which file, without Dagster's trace."""
    tree = _load_tree(settings.defs)
    for path in sorted(settings.defs.rglob("defs.yaml")):
        check_yaml(path)
    try:
        definitions = tree.build_defs()
    except Exception as e:
        raise find_cause(e) or _find_refusal(e, settings.defs) or e from e
    tasks = _find_tasks(definitions)
    definitions = dg.Definitions.merge(
        definitions,
        dg.Definitions(
            jobs=[build_plan_job(tasks, lambda name: definitions.resolve_job_def(name))],
            resources={PLATFORM: build_platform_resource(tasks)},
            executor=dg.in_process_executor,
            sensors=[build_alerts_sensor(settings)],
        ),
    )
    return Project(definitions=definitions, tasks=tasks)


def _find_tasks(definitions: dg.Definitions) -> dict[str, tuple[Task, Source]]:
    """Return the tasks of definitions, each with its source. Raises ConfigError if two have one name."""
    tasks: dict[str, tuple[Task, Source]] = {}
    for key, value in (definitions.metadata or {}).items():
        if key.startswith(TASK_METADATA) and isinstance(value, ObjectMetadataValue):
            task, source = cast("tuple[Task, Source]", value.instance)
            if task.name in tasks:
                raise ConfigError(f"task {task.name}: two task folders have this name")
            tasks[task.name] = (task, source)
    return tasks


def _find_refusal(error: Exception, defs: Path) -> ConfigError | None:
    """Return in our words what pydantic, Python, Dagster or a call has refused in a task's file; None for others."""
    found = next((e for kinds in _REFUSALS for e in unwrap(error) if isinstance(e, kinds)), None)
    slip = next((words for e in unwrap(error) if (words := _find_slip(e, defs))), None)
    if slip is not None and not isinstance(found, _REFUSALS[0]):
        return ConfigError(slip)
    if found is None:
        return None
    words = format_problems(found) if isinstance(found, ValidationError) else str(found)
    frames = [f for f in traceback.extract_tb(found.__traceback__) if Path(f.filename).is_relative_to(defs)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(defs)
    return ConfigError(f"{where}: {words}")


def _find_slip(found: BaseException, defs: Path) -> str | None:
    """Say by file and line what Python itself refuses in a task's file; None for errors of other kinds and places."""
    if isinstance(found, SyntaxError) and found.filename and Path(found.filename).is_relative_to(defs):
        return f"{found.filename}, line {found.lineno}: {found.msg}"
    if isinstance(found, ImportError | NameError | AttributeError):
        frames = [f for f in traceback.extract_tb(found.__traceback__) if f.name != "__getattr__"]  # of a module
        if frames and Path(frames[-1].filename).is_relative_to(defs):
            return f"{frames[-1].filename}, line {frames[-1].lineno}: {found}"
    return None


def _load_tree(folder: Path) -> dg.ComponentTree:
    """Return the components of a defs folder: a Python package, with a folder per task and models.yaml."""
    if not (folder / "__init__.py").exists():
        raise ConfigError(f"BATCH_ASSETS_DEFS: {folder} is not a Python package: it needs an __init__.py")
    if folder == Path(__file__).resolve().parent.parent / "defs":
        module = importlib.import_module("batch_assets.defs")
    else:
        if str(folder.parent) not in sys.path:
            sys.path.insert(0, str(folder.parent))
        module = importlib.import_module(folder.name)
    return dg.ComponentTree.from_module(defs_module=module, project_root=folder.parent)
