"""A task: what is asked of each record. Where its records come from is the sources' work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any
from zoneinfo import available_timezones

from pydantic import BaseModel, ConfigDict, Field, field_validator

from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.checks import Check
from batch_assets.core.code_identity import read_code
from batch_assets.core.entries import Entry
from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.core.names import variant_key
from batch_assets.core.prompts import Prompt

Rule = Callable[[Any], str | None]
"""A business rule: takes the validated answer, returns what is wrong with it or None. Named by its `__name__`."""

Share = Annotated[float, Field(ge=0, le=1)]


class Thresholds(Entry):
    """Limits that the checks hold. Shares run from 0 to 1; under `min_records` records a share raises no alarm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_error_share: Share = 0.02
    max_invalid_share: Share = 0.05
    max_label_shift: Share = 0.25
    """How far a batch's labels may lie from those of the batches before it; beyond it a check warns."""
    min_records: Annotated[int, Field(ge=1)] = 50
    hold_results: bool = True
    """Whether a partition above a limit of errors or invalid answers keeps its results from going downstream."""
    stop_early: bool = True
    """Whether a run stops as soon as its errors are surely above their limit, and leaves the rest pending."""


class Nightly(Entry):
    """When the nightly schedule runs: `at` o'clock (HH:MM) in a time zone (IANA's name)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] = "02:00"
    timezone: str = "UTC"

    @field_validator("timezone")
    @classmethod
    def _know_zone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(f"no time zone {value!r}; one is Europe/Berlin")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A prompt version asked of a model."""

    prompt: Prompt
    model: ModelEntry

    @property
    def key(self) -> str:
        """`<prompt_ver>--<model_id>`."""
        return variant_key(self.prompt.prompt_ver, self.model.model_id)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked of each record, and what an answer must be.

    `required_fields` names the fields without which there is nothing to ask; by default all that the prompt uses
    must be blank for a record to count as empty.
    """

    name: str
    output: type[BaseModel]
    prompts: Mapping[str, Prompt]
    models: Mapping[str, ModelEntry]
    rules: tuple[Rule, ...] = ()
    rules_version: str = ""
    required_fields: tuple[str, ...] = ()
    thresholds: Thresholds = Thresholds()
    retry: RetryPolicy = RetryPolicy()
    ladder: Ladder = Ladder()
    fallback: ModelEntry | None = None
    """Asked for the records that are quarantined when a variant is done: those of its models that are not this one."""
    nightly: Nightly = Nightly()
    checks: tuple[Check[Any], ...] = ()
    """The task's own checks, beside those of every task."""
    qa_sample_size: int = 50
    description: str = ""
    owners: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what makes no sense, by its name."""
        size = self.qa_sample_size
        if type(size) is not int or size < 0:  # YAML may say anything
            raise ConfigError(f"task {self.name}: qa_sample_size: {size!r}: a number of records, 0 for none")
        if self.fallback is not None and set(self.models) == {self.fallback.model_id}:
            raise ConfigError(
                f"task {self.name}: fallback: {self.fallback.model_id} is the task's only model: name another one"
            )

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """All prompts by all models, by variant key, in the order of prompts, then models."""
        pairs = [Variant(prompt=p, model=m) for p in self.prompts.values() for m in self.models.values()]
        return {v.key: v for v in pairs}

    @cached_property
    def fallbacks(self) -> dict[str, Variant]:
        """By the key of a variant: the one that is asked for its quarantined records. Empty without a fallback."""
        model = self.fallback
        if model is None:
            return {}
        others = (v for v in self.variants.values() if v.model.model_id != model.model_id)
        return {v.key: Variant(prompt=v.prompt, model=model) for v in others}

    def find_variant(self, key: str) -> Variant | None:
        """Return a variant by its key, of the task's own or of its fallback model; None if there is none."""
        return self.variants.get(key) or next((v for v in self.fallbacks.values() if v.key == key), None)

    @cached_property
    def used_fields(self) -> list[str]:
        """The fields that any prompt uses, sorted."""
        return sorted({field for prompt in self.prompts.values() for field in prompt.fields})

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """The JSON schema of the output model, which guides decoding."""
        return self.output.model_json_schema()

    @cached_property
    def rules_text(self) -> dict[str, object]:
        """The code of the output model and the rules: what `accept_spec` hashes beside the schema."""
        names = [_name_of(r, self) for r in self.rules]
        return {
            "code": _read_code(self),
            "rules": names,
            "required_fields": sorted(self.required_fields),
            "version": self.rules_version,
        }


def _name_of(rule: Rule, task: Task) -> str:
    name: object = getattr(rule, "__name__", None)
    if not isinstance(name, str):
        raise ConfigError(f"task {task.name}: a rule needs a name, and {rule!r} has none: write it as a function")
    return name


def _read_code(task: Task) -> list[tuple[str, str]]:
    try:
        return read_code([task.output, *task.rules])
    except (OSError, TypeError, AttributeError) as e:
        if task.rules_version:
            return []
        raise ConfigError(
            f"task {task.name}: the source of its output model or a rule can't be read, so a change of it would go "
            f"unseen ({e}); set rules_version and change it with the rule"
        ) from e
