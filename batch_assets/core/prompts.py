"""Prompt files: Markdown with front matter and a Jinja body. A record's text is data here, never a template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from jinja2 import StrictUndefined, Template, TemplateError, TemplateRuntimeError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, ValidationError

from batch_assets.core.canonical import canonical_json
from batch_assets.core.control_tokens import break_control_tokens, find_control_tokens
from batch_assets.core.errors import ConfigError, format_problems
from batch_assets.core.names import check_key
from batch_assets.core.records import Record
from batch_assets.core.yaml_text import load_yaml

JsonSchema = dict[str, Any]

_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---[ \t]*\r?\n(.*)\Z", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Jinja's filters raise over a text that they can't work on."""

_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
# Jinja's own names (`range`, `dict`, `lipsum`, …) would hide a field that is called the same from `input_hash`.
_ENVIRONMENT.globals.clear()
# A record must be asked the same in each run: what it was answered before would else be another request's.
del _ENVIRONMENT.filters["random"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Example(BaseModel):
    """A worked example: `input` is rendered by the body like a record, `output` is the assistant's turn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: dict[str, str]
    output: dict[str, Any]


class FrontMatter(BaseModel):
    """The head of a prompt file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str
    system: str | None = None
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt version. `fields` are the record's fields that the body uses, sorted."""

    prompt_ver: str
    path: Path
    head: FrontMatter
    body: str
    fields: tuple[str, ...]
    template: Template
    opening: tuple[Message, ...]
    opening_before: tuple[Message, ...] = ()
    """The opening as version 0.1 wrote it, if it wrote another: it sorted the keys inside an example's output."""

    def render(self, record: Record) -> tuple[Message, ...]:
        """Return the chat for one record: system, examples, then the record's turn. Raises jinja2's TemplateError.

        Control tokens of chat models in the record are broken, so that it can't open a turn; those of the file stay.
        """
        return (*self.opening, self._render_turn(record))

    def render_as_before(self, record: Record) -> tuple[Message, ...] | None:
        """Return the chat as version 0.1 asked it, if that is another one: a record that it asked is not asked anew."""
        return (*self.opening_before, self._render_turn(record)) if self.opening_before else None

    def _render_turn(self, record: Record) -> Message:
        values = {name: v and break_control_tokens(v) for name, v in record.fields.items()}
        content = _render(self.template, values)
        # Once more over the whole: two values side by side, or a value beside the file's text, can make a token.
        own = find_control_tokens(self.body)
        return Message("user", break_control_tokens(content, keep=own))

    def text(self) -> dict[str, object]:
        """Return all of the file that reaches the model, for hashing."""
        return {"system": self.head.system, "examples": [e.model_dump() for e in self.head.examples], "body": self.body}


def load_prompts(folder: Path, output: type[BaseModel]) -> dict[str, Prompt]:
    """Read every `*.md` of a folder, by prompt_ver. Raises ConfigError if there is none or one is wrong."""
    paths = sorted(folder.glob("*.md"))
    if not paths:
        raise ConfigError(f"{folder}: no prompt file; a prompt version is one file, like v1.md")
    return {path.stem: load_prompt(path, output) for path in paths}


def load_prompt(path: Path, output: type[BaseModel]) -> Prompt:
    """Read one prompt file; ConfigError names the file and what is wrong in it.

    Examples are checked here: their inputs against the body's fields, their outputs against the task's output model.
    """
    check_key(path.stem, f"{path}: prompt version")
    try:
        match = _FRONT_MATTER.match(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: can't be read: {e}") from e
    if not match:
        raise ConfigError(f"{path}: expected front matter between two lines of ---, then the prompt")
    raw = load_yaml(match[1], f"{path}: front matter is")
    try:
        head = FrontMatter.model_validate(raw)
        body = match[2].strip()
        tree = _ENVIRONMENT.parse(body)
        template = _ENVIRONMENT.from_string(body)
    except ValidationError as e:
        problems = format_problems(e)
        raise ConfigError(f"{path}: front matter: {problems}") from e
    except (TemplateError, RecursionError) as e:
        raise ConfigError(f"{path}: the body is not a valid template: {e}") from e
    if _CONTROL.search(body) or _CONTROL.search(head.system or ""):
        raise ConfigError(
            f"{path}: a control character, such as NUL, at which a server may cut the prompt: take it out"
        )
    if any(True for _ in meta.find_referenced_templates(tree)):
        raise ConfigError(f"{path}: the body includes or extends another template; a prompt is one file")
    hidden = _find_hidden(tree)
    if hidden:
        raise ConfigError(f"{path}: the body reaches for {hidden!r}; it may use a record's fields and Jinja's filters")
    fields = tuple(sorted(meta.find_undeclared_variables(tree)))
    if not fields:
        raise ConfigError(f"{path}: the body uses no field of the record; write one as {{{{ text }}}}")
    opening = _render_opening(path, head, template, fields, output)
    before = _render_opening(path, head, template, fields, output, sorts_inside=True)
    return Prompt(
        prompt_ver=path.stem,
        path=path,
        head=head,
        body=body,
        fields=fields,
        template=template,
        opening=opening,
        opening_before=before if before != opening else (),
    )


def _find_hidden(tree: nodes.Template) -> str | None:
    """Return the first name of Python's own that a body reaches for, or None. What it makes up is for the sandbox."""
    for node in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Filter)):
        match node:
            case nodes.Getattr(attr=str(name)) if name.startswith("_"):
                return name
            case nodes.Getitem(arg=nodes.Const(value=str(name))) if name.startswith("_"):
                return name
            case nodes.Filter(name="attr"):
                return "attr"
            case _:
                pass
    return None


def check_fields(prompt: Prompt, columns: tuple[str, ...]) -> None:
    """Raise ConfigError if the body uses a field that the source doesn't have."""
    unknown = [f for f in prompt.fields if f not in columns]
    if unknown:
        raise ConfigError(f"{prompt.path}: unknown field {', '.join(unknown)}; the source has {', '.join(columns)}")


def _render_opening(
    path: Path,
    head: FrontMatter,
    template: Template,
    fields: tuple[str, ...],
    output: type[BaseModel],
    *,
    sorts_inside: bool = False,
) -> tuple[Message, ...]:
    """Return what comes before a record's turn; `sorts_inside` writes nested outputs as version 0.1 did."""
    schema: JsonSchema = output.model_json_schema()
    definitions: dict[str, JsonSchema] = schema.get("$defs", {})
    turns = [Message("system", head.system.strip())] if head.system else []
    for n, example in enumerate(head.examples, start=1):
        if set(example.input) != set(fields):
            raise ConfigError(f"{path}: example {n}: input has {sorted(example.input)}, the body uses {list(fields)}")
        try:
            answer = _as_answer(example.output, schema, definitions, sorts_inside=sorts_inside)
            output.model_validate_json(answer, strict=True)  # as `accept` does with an answer
            turns.append(Message("user", _render(template, example.input)))
        except ValidationError as e:
            problems = format_problems(e)
            raise ConfigError(f"{path}: example {n}: output: {problems}") from e
        except (TypeError, ValueError) as e:
            raise ConfigError(f"{path}: example {n}: output: not JSON ({e}); put a date in quotes") from e
        except TemplateError as e:
            raise ConfigError(f"{path}: example {n}: input: can't be rendered: {e}") from e
        turns.append(Message("assistant", answer))
    return tuple(turns)


def _as_answer(
    value: object, schema: JsonSchema, definitions: Mapping[str, JsonSchema], *, sorts_inside: bool = False
) -> str:
    """Return an example's output as JSON, keys in the schema's order at each level, as guided decoding writes them.

    Keys that the schema doesn't name come last, sorted. With `sorts_inside` only the outermost keys are in that order.
    """
    options = _list_options(schema, definitions)
    if isinstance(value, list):
        items = _find_first(options, "items")
        return "[" + ",".join(_as_answer(v, items, definitions) for v in cast("list[object]", value)) + "]"
    if not isinstance(value, dict):
        return canonical_json(value)
    fields = cast("dict[str, object]", value)
    properties = _find_properties(fields, options)
    order = list(schema.get("properties", {}) if sorts_inside else properties)
    keys = sorted(fields, key=lambda k: (order.index(k) if k in order else len(order), k))
    others = _find_first(options, "additionalProperties")

    def write(key: str) -> str:
        if sorts_inside:
            return canonical_json(fields[key])
        return _as_answer(fields[key], properties.get(key, others), definitions)

    return "{" + ",".join(f"{canonical_json(k)}:{write(k)}" for k in keys) + "}"


def _list_options(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> list[JsonSchema]:
    """Return the schemas that a value may follow: of a union each, with references followed."""
    if "$ref" in schema:
        return _list_options(definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), definitions)
    parts = [p for word in ("anyOf", "oneOf", "allOf") for p in schema.get(word, [])]
    return [o for part in parts for o in _list_options(part, definitions)] if parts else [schema]


def _find_first(options: Sequence[JsonSchema], word: str) -> JsonSchema:
    """Return the schema that the first option has under a word; the empty one if none has it."""
    none: JsonSchema = {}
    return next((cast("JsonSchema", o[word]) for o in options if isinstance(o.get(word), dict)), none)


def _find_properties(fields: Mapping[str, object], options: Sequence[JsonSchema]) -> dict[str, JsonSchema]:
    """Return the properties of the option that names most of an object's fields: that of its kind in a union."""
    found = [cast("dict[str, JsonSchema]", o["properties"]) for o in options if isinstance(o.get("properties"), dict)]
    none: dict[str, JsonSchema] = {}
    return max(found, key=lambda properties: len(fields.keys() & properties.keys()), default=none)


def _render(template: Template, fields: Mapping[str, str | None]) -> str:
    """Render the body. Raises TemplateError, whatever went wrong: a record that can't be rendered stops no run."""
    try:
        return template.render({k: "" if v is None else v for k, v in fields.items()})
    except _BROKEN as e:
        raise TemplateRuntimeError(f"{type(e).__name__}: {e}") from e
