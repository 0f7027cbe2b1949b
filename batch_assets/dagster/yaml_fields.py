"""How a task's fields are said in YAML, where Python says them by objects."""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import dagster as dg
from pydantic import BaseModel, ValidationError

from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.checks import Check
from batch_assets.core.errors import ConfigError, format_problems
from batch_assets.core.task_settings import Acceptance, Asking, Operations
from batch_assets.core.tasks import Nightly, Rule, Thresholds
from batch_assets.sources.base import Source, StreamSource
from batch_assets.sources.registry import make_source

M = TypeVar("M", bound=BaseModel)


def resolve_source(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> Source | StreamSource:
    """Read `{files: tickets/*.csv, key: item_id}`, or `{table: tickets, url_env: DB_URL, cursor: updated_at}`."""
    return make_source(value)


def resolve_output(_context: dg.ResolutionContext, value: str) -> type[BaseModel]:
    """Read the dotted name of a pydantic model."""
    found = _import_name(value, "output")
    if not isinstance(found, type) or not issubclass(found, BaseModel):
        raise ConfigError(f"output: {value} is not a pydantic model")
    return found


def resolve_rules(_context: dg.ResolutionContext, value: Sequence[str]) -> Sequence[Rule]:
    """Read dotted names of functions."""
    found = [_import_name(name, "rules") for name in value]
    wrong = [name for name, rule in zip(value, found, strict=True) if not callable(rule)]
    if wrong:
        raise ConfigError(f"rules: {', '.join(wrong)}: not a function")
    return cast("Sequence[Rule]", found)


def resolve_checks(_context: dg.ResolutionContext, value: Sequence[str]) -> Sequence[Check[Any]]:
    """Read dotted names of checks."""
    return cast("Sequence[Check[Any]]", [_import_name(name, "checks") for name in value])


def resolve_thresholds(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> Thresholds:
    """Read `{max_error_share: 0.02, …}`."""
    return _validate(Thresholds, value, "thresholds")


def resolve_retry(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> RetryPolicy:
    """Read `{max_attempts: 3, …}`."""
    return _validate(RetryPolicy, value, "retry")


def resolve_ladder(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> Ladder:
    """Read `{steps: 2, …}`."""
    return _validate(Ladder, value, "ladder")


def resolve_nightly(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> Nightly:
    """Read `{at: "02:00", timezone: Europe/Berlin}`."""
    return _validate(Nightly, value, "nightly")


def resolve_acceptance(context: dg.ResolutionContext, value: Mapping[str, Any]) -> Acceptance:
    """Read `{rules: [my_defs.t.task.no_blank], checks: […]}`."""
    named = dict(value)
    if "rules" in named:
        named["rules"] = resolve_rules(context, named["rules"])
    if "checks" in named:
        named["checks"] = resolve_checks(context, named["checks"])
    return _validate(Acceptance, named, "acceptance")


def resolve_asking(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> Asking:
    """Read `{ladder: {steps: 1}, fallback: big, …}`."""
    return _validate(Asking, value, "asking")


def resolve_operations(_context: dg.ResolutionContext, value: Mapping[str, Any]) -> Operations:
    """Read `{owners: [team:support], nightly: {at: "02:00"}, …}`."""
    return _validate(Operations, value, "operations")


def _import_name(name: str, field: str) -> object:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"{field}: {name!r} can't be imported: {e}") from e


def _validate(model: type[M], value: Mapping[str, Any], field: str) -> M:
    try:
        return model.model_validate(dict(value))
    except ValidationError as e:
        problems = format_problems(e)
        raise ConfigError(f"{field}: {problems}") from e


if TYPE_CHECKING:
    ThresholdsField = Thresholds
    AcceptanceField = Acceptance
    AskingField = Asking
    OperationsField = Operations
    RetryField = RetryPolicy
    LadderField = Ladder
    NightlyField = Nightly
else:
    # `Any`, since Dagster 1.13 refuses a pydantic model with constrained fields even if a resolver is given for it.
    ThresholdsField = Annotated[Any, dg.Resolver(resolve_thresholds, model_field_type=dict[str, Any])]
    AcceptanceField = Annotated[Any, dg.Resolver(resolve_acceptance, model_field_type=dict[str, Any])]
    AskingField = Annotated[Any, dg.Resolver(resolve_asking, model_field_type=dict[str, Any])]
    OperationsField = Annotated[Any, dg.Resolver(resolve_operations, model_field_type=dict[str, Any])]
    RetryField = Annotated[Any, dg.Resolver(resolve_retry, model_field_type=dict[str, Any])]
    LadderField = Annotated[Any, dg.Resolver(resolve_ladder, model_field_type=dict[str, Any])]
    NightlyField = Annotated[Any, dg.Resolver(resolve_nightly, model_field_type=dict[str, Any])]
