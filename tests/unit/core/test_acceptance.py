"""`accept`: every completion gets one verdict, of a closed kind, the same one each time, and no text breaks it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, field_validator

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import MAX_COMPLETION_CHARACTERS, Completion, keep
from batch_assets.core.tasks import Rule, Task

NASTY = Path(__file__).resolve().parents[4] / "shared" / "data" / "nasty"


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Literal["card", "fee"]
    urgent: bool
    guests: int | None = None
    share: float = 0.0
    notes: list[dict[str, Any]] = []
    anything: Any = None


class Lenient(BaseModel):
    model_config = ConfigDict(extra="allow")


def no_urgent_fee(answer: Answer) -> str | None:
    return "a fee is never urgent" if answer.label == "fee" and answer.urgent else None


def make_task(output: type[BaseModel] = Answer, *rules: Rule) -> Task:
    return Task(name="t", output=output, prompts={}, models={}, rules=rules)


TASK = make_task(Answer, no_urgent_fee)
GOOD = '{"label":"card","urgent":true}'


def judge(text: str, finish_reason: str | None = "stop", task: Task = TASK) -> Verdict:
    return accept(Completion(text=text, finish_reason=finish_reason), task)


def with_value(name: str, value: str) -> str:
    """Return GOOD with one field more, its value as JSON text."""
    return f'{GOOD[:-1]},"{name}":{value}}}'


# The table: completion → kind


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f" \n{GOOD}\n\t ",
        '{"urgent": false, "label": "fee"}',
        with_value("guests", "null"),
        with_value("guests", "9223372036854775807"),
        with_value("guests", "-9223372036854775808"),
        with_value("share", "1"),
        with_value("share", "1.7976931348623157e308"),
        with_value("anything", r'"\\u0000 and \\ud800 are spelt out, not meant"'),
        with_value("anything", r'"\ud83d\ude00"'),
        with_value("anything", '"\u2028 \x7f \u200b"'),
        with_value("anything", "[" * 150 + "]" * 150),
        with_value("notes", '[{"a":1},{"a":1}]'),
    ],
)
def test_an_answer_that_fits_is_ok(text: str) -> None:
    verdict = judge(text)
    assert (verdict.status, verdict.error_kind, verdict.error) == (Status.OK, None, None)
    assert verdict.payload is not None
    assert list(verdict.payload) == list(Answer.model_fields)
    assert verdict.payload.items() >= json.loads(text).items()


@pytest.mark.parametrize(
    ("finish_reason", "kind"),
    [
        ("length", ErrorKind.TRUNCATED),
        ("content_filter", ErrorKind.REFUSED),
        ("tool_calls", ErrorKind.UNFINISHED),
        ("abort", ErrorKind.UNFINISHED),
        ("STOP", ErrorKind.UNFINISHED),
        ("", ErrorKind.UNFINISHED),
        (None, ErrorKind.UNFINISHED),
    ],
)
@pytest.mark.parametrize("text", [GOOD, GOOD[:-1], ""])
def test_an_answer_that_did_not_finish_is_refused_whatever_it_looks_like(
    text: str, finish_reason: str | None, kind: ErrorKind
) -> None:
    assert judge(text, finish_reason).error_kind is kind


REFUSED: dict[str, tuple[str, ErrorKind]] = {
    "empty": ("", ErrorKind.EMPTY_ANSWER),
    "whitespace": (" \n\t\r ", ErrorKind.EMPTY_ANSWER),
    "prose before": (f"Here you are: {GOOD}", ErrorKind.NOT_JSON),
    "prose after": (f"{GOOD} I hope that helps", ErrorKind.NOT_JSON),
    "prose after a fence": (f"```json\n{GOOD}\n```\nThere you are", ErrorKind.NOT_JSON),
    "prose before a fence": (f"Sure:\n```json\n{GOOD}\n```", ErrorKind.NOT_JSON),
    "two fences": (f"```\n{GOOD}\n```\n```\n{GOOD}\n```", ErrorKind.NOT_JSON),
    "a fence in a fence": (f"```\n```json\n{GOOD}\n```\n```", ErrorKind.NOT_JSON),
    "a fence without its end": (f"```json\n{GOOD}", ErrorKind.NOT_JSON),
    "a fence on one line": (f"```json {GOOD}```", ErrorKind.NOT_JSON),
    "nothing in a fence": ("```json\n\n```", ErrorKind.EMPTY_ANSWER),
    "two thinking sections": (f"<think>a</think><think>b</think>{GOOD}", ErrorKind.NOT_JSON),
    "thinking that isn't at the beginning": (f"So: <think>a</think>{GOOD}", ErrorKind.NOT_JSON),
    "thinking after the answer": (f"{GOOD}<think>a</think>", ErrorKind.NOT_JSON),
    "the end of thinking without its beginning": (f"hm</think>{GOOD}", ErrorKind.NOT_JSON),
    "thinking without an end": (f"<think>hm {GOOD}", ErrorKind.ONLY_REASONING),
    "thinking and no answer": ("<think>hm</think>\n ", ErrorKind.ONLY_REASONING),
    "thinking and prose": ("<think>hm</think>It is a card", ErrorKind.NOT_JSON),
    "whitespace without an end": (" \n" * 60, ErrorKind.ENDLESS_WHITESPACE),
    "two answers": (f"{GOOD}\n{GOOD}", ErrorKind.NOT_JSON),
    "cut off": (GOOD[:-1], ErrorKind.NOT_JSON),
    "single quotes": (GOOD.replace('"', "'"), ErrorKind.NOT_JSON),
    "trailing comma": (f"{GOOD[:-1]},}}", ErrorKind.NOT_JSON),
    "python's True": (GOOD.replace("true", "True"), ErrorKind.NOT_JSON),
    "a comment": (f"{GOOD} // done", ErrorKind.NOT_JSON),
    "a BOM": (f"\ufeff{GOOD}", ErrorKind.NOT_JSON),
    "NaN": (with_value("share", "NaN"), ErrorKind.NOT_FINITE),
    "Infinity": (with_value("share", "Infinity"), ErrorKind.NOT_FINITE),
    "-Infinity": (with_value("anything", "[-Infinity]"), ErrorKind.NOT_FINITE),
    "a raw newline in a string": (with_value("anything", '"a\nb"'), ErrorKind.NOT_JSON),
    "a raw NUL in a string": (with_value("anything", '"a\x00b"'), ErrorKind.CONTROL_CHARACTERS),
    "more digits than Python reads": (with_value("anything", "9" * 5000), ErrorKind.TOO_BIG),
    "an array": (f"[{GOOD}]", ErrorKind.NOT_OBJECT),
    "a string": ('"card"', ErrorKind.NOT_OBJECT),
    "a number": ("1", ErrorKind.NOT_OBJECT),
    "a float beyond all": ("1e400", ErrorKind.NOT_OBJECT),
    "true": ("true", ErrorKind.NOT_OBJECT),
    "null": ("null", ErrorKind.NOT_OBJECT),
    "a doubled key": (with_value("label", '"card"'), ErrorKind.DOUBLED_KEY),
    "a doubled key, spelt otherwise": (with_value("\\u006cabel", '"fee"'), ErrorKind.DOUBLED_KEY),
    "a doubled key inside": (with_value("notes", '[{"a":1,"b":2,"a":1}]'), ErrorKind.DOUBLED_KEY),
    "a raw NUL after the answer": (f"{GOOD}\x00", ErrorKind.NOT_JSON),
    "a raw NUL after a backslash": (with_value("anything", '"a\\\x00b"'), ErrorKind.NOT_JSON),
    "a raw surrogate after a backslash": (with_value("anything", '"a\\\ud800b"'), ErrorKind.NOT_JSON),
    "a raw NUL after two backslashes": (with_value("anything", '"a\\\\\x00b"'), ErrorKind.CONTROL_CHARACTERS),
    "an escaped NUL": (with_value("anything", r'"a\u0000b"'), ErrorKind.CONTROL_CHARACTERS),
    "an escaped NUL inside": (with_value("notes", r'[{"a":["\u0000"]}]'), ErrorKind.CONTROL_CHARACTERS),
    "an escaped NUL in a key": (with_value("notes", r'[{"\u0000":1}]'), ErrorKind.CONTROL_CHARACTERS),
    "half a surrogate pair": (with_value("anything", r'"\ud83d"'), ErrorKind.CONTROL_CHARACTERS),
    "the other half": (with_value("anything", r'"\ude00"'), ErrorKind.CONTROL_CHARACTERS),
    "a pair the wrong way round": (with_value("anything", r'"\ude00\ud83d"'), ErrorKind.CONTROL_CHARACTERS),
    "a raw surrogate": (with_value("anything", '"\ud800"'), ErrorKind.CONTROL_CHARACTERS),
    "a bool as text": (GOOD.replace("true", '"true"'), ErrorKind.SCHEMA),
    "a bool as number": (GOOD.replace("true", "1"), ErrorKind.SCHEMA),
    "an int as text": (with_value("guests", '"4"'), ErrorKind.SCHEMA),
    "an int as float": (with_value("guests", "4.0"), ErrorKind.SCHEMA),
    "an int as bool": (with_value("guests", "true"), ErrorKind.SCHEMA),
    "a float as text": (with_value("share", '"0.5"'), ErrorKind.SCHEMA),
    "a wrong label": (GOOD.replace("card", "Card"), ErrorKind.SCHEMA),
    "a label with a space": (GOOD.replace("card", "card "), ErrorKind.SCHEMA),
    "null for a label": (GOOD.replace('"card"', "null"), ErrorKind.SCHEMA),
    "a field too many": (with_value("reason", '"x"'), ErrorKind.SCHEMA),
    "a field too few": ('{"label":"card"}', ErrorKind.SCHEMA),
    "no field": ("{}", ErrorKind.SCHEMA),
    "an int beyond 64 bits": (with_value("guests", str(2**63)), ErrorKind.TOO_BIG),
    "an int beyond 64 bits where any number may be": (with_value("share", str(2**63)), ErrorKind.TOO_BIG),
    "an int beyond 64 bits in a field too many": (with_value("reason", str(-(2**63) - 1)), ErrorKind.TOO_BIG),
    "a huge int": (with_value("guests", str(10**400)), ErrorKind.TOO_BIG),
    "a huge int for a float": (with_value("share", str(10**400)), ErrorKind.TOO_BIG),
    "a float beyond all, inside": (with_value("share", "1e400"), ErrorKind.NOT_FINITE),
    "a negative float beyond all": (with_value("notes", '[{"a":-1e400}]'), ErrorKind.NOT_FINITE),
    "nested deeper than pydantic reads": (with_value("anything", "[" * 500 + "]" * 500), ErrorKind.SCHEMA),
    "nested deeper than Python reads": (with_value("anything", "[" * 100_000 + "]" * 100_000), ErrorKind.SCHEMA),
    "opened and never closed": ("[" * 100_000, ErrorKind.SCHEMA),
    "objects in objects": ('{"a":' * 100_000, ErrorKind.SCHEMA),
    "what a rule refuses": ('{"label":"fee","urgent":true}', ErrorKind.RULE),
}


@pytest.mark.parametrize(("text", "kind"), REFUSED.values(), ids=REFUSED)
def test_an_answer_that_does_not_fit_is_refused_with_its_kind(text: str, kind: ErrorKind) -> None:
    verdict = judge(text)
    assert (verdict.status, verdict.error_kind, verdict.payload) == (Status.INVALID, kind, None)
    assert verdict.error
    assert len(verdict.error) <= 500


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"\n```\r\n{GOOD}\r\n```\n",
        f"<think>\nIs it {{}} or ```x```?\n</think>\n\n{GOOD}",
        f"<think></think>{GOOD}",
        f"<think>hm</think>\n```JSON\n{GOOD}\n```",
        f"``` json\n{GOOD}\n```",
        f"````json\n{GOOD}\n````",
    ],
)
def test_thinking_at_the_beginning_and_a_fence_around_the_rest_are_taken_off(text: str) -> None:
    assert judge(text) == judge(GOOD)


def test_backticks_and_thinking_inside_an_answer_are_its_own() -> None:
    text = with_value("anything", json.dumps("```json\n<think>x</think>\n```"))
    verdict = judge(f"<think>y</think>\n```json\n{text}\n```")
    assert verdict.payload is not None
    assert verdict.payload["anything"] == "```json\n<think>x</think>\n```"


def test_an_answer_in_the_reasoning_field_is_no_answer() -> None:
    done = Completion(text=" ", finish_reason="stop", reasoning=GOOD)
    assert accept(done, TASK).error_kind is ErrorKind.ONLY_REASONING
    assert accept(replace(done, text=GOOD), TASK).status is Status.OK
    assert accept(replace(done, reasoning="\n"), TASK).error_kind is ErrorKind.EMPTY_ANSWER


def test_a_refusal_is_told_whatever_stands_beside_it() -> None:
    for text in ("", GOOD):
        verdict = accept(Completion(text=text, finish_reason="stop", refusal="I can't help with that."), TASK)
        assert (verdict.error_kind, verdict.error) == (
            ErrorKind.REFUSED,
            "the model declined: I can't help with that.",
        )
    assert accept(Completion(text=GOOD, finish_reason="stop", refusal=" "), TASK).status is Status.OK


@pytest.mark.parametrize("text", [" " * 500, f"{GOOD[:-1]}{' ' * 500}", f"{GOOD}{' ' * 500}", "<think>hm"])
def test_what_was_cut_off_is_truncated_also_where_it_ends_in_whitespace_or_in_thinking(text: str) -> None:
    assert judge(text, "length").error_kind is ErrorKind.TRUNCATED


def test_an_answer_that_fills_the_stores_cap_is_too_big_though_its_beginning_is_an_answer() -> None:
    for length, kind in ((MAX_COMPLETION_CHARACTERS - 1, None), (MAX_COMPLETION_CHARACTERS, ErrorKind.TOO_BIG)):
        done = Completion(text=GOOD.ljust(length), finish_reason="stop")
        assert accept(done, TASK).error_kind is kind
        assert accept(keep(done), TASK).error_kind is kind
    assert judge(GOOD.ljust(MAX_COMPLETION_CHARACTERS * 2)).error_kind is ErrorKind.TOO_BIG


class Doubling(BaseModel):
    value: Any

    @field_serializer("value")
    def write(self, value: Any) -> Any:
        return value + value


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2**62, ErrorKind.TOO_BIG), (2**61, None), ("x", None)],
)
def test_a_value_that_the_model_makes_itself_is_looked_at_too(value: object, kind: ErrorKind | None) -> None:
    assert judge(json.dumps({"value": value}), task=make_task(Doubling)).error_kind is kind


class Tenfold(BaseModel):
    value: float

    @field_validator("value")
    @classmethod
    def multiply(cls, value: float) -> float:
        return value * 10


def test_an_infinity_that_the_model_makes_itself_is_looked_at_too() -> None:
    assert judge('{"value":1.7e308}', task=make_task(Tenfold)).error_kind is ErrorKind.NOT_FINITE
    assert judge('{"value":1.7e300}', task=make_task(Tenfold)).status is Status.OK


class Nul(BaseModel):
    value: str

    @field_serializer("value")
    def write(self, value: str) -> str:
        return value.replace("0", "\0")


def test_a_nul_that_the_model_makes_itself_is_looked_at_too() -> None:
    assert judge('{"value":"a0"}', task=make_task(Nul)).error_kind is ErrorKind.CONTROL_CHARACTERS
    assert judge('{"value":"a1"}', task=make_task(Nul)).status is Status.OK


def test_json_that_parses_by_chance_after_a_cut_is_not_an_answer() -> None:
    assert judge('{"label":"card","urgent":true}', "length").error_kind is ErrorKind.TRUNCATED


@pytest.mark.parametrize("depth", [*range(150, 260, 10), *range(880, 1010, 5)])
def test_no_depth_of_nesting_falls_between_the_limits(depth: int) -> None:
    verdict = judge(with_value("anything", "[" * depth + "]" * depth))
    assert verdict.status is Status.OK or verdict.error_kind is ErrorKind.SCHEMA


def test_the_words_name_the_field_and_not_what_was_in_it() -> None:
    words = judge('{"label":"secret","urgent":"secret","guests":"secret","share":"secret"}').error
    assert words is not None
    assert words.startswith("label: Input should be 'card' or 'fee'; urgent: ")
    assert "secret" not in words


def test_the_words_of_a_rule_name_the_rule() -> None:
    assert judge('{"label":"fee","urgent":true}').error == "no_urgent_fee: a fee is never urgent"


def test_the_first_rule_that_refuses_is_the_one_that_is_told() -> None:
    def first(_: Answer) -> str:
        return "one"

    def second(_: Answer) -> str:
        raise AssertionError("asked although the first rule had refused")

    assert judge(GOOD, task=make_task(Answer, first, second)).error == "first: one"


def test_a_rule_is_not_asked_about_an_answer_that_does_not_fit() -> None:
    def ask(_: Answer) -> str:
        raise AssertionError("asked about an answer of the wrong shape")

    assert judge("{}", task=make_task(Answer, ask)).error_kind is ErrorKind.SCHEMA


@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        ZeroDivisionError("z"),
        AttributeError("a"),
        AssertionError("x"),
        RecursionError("r"),
        StopIteration("s"),
    ],
)
def test_a_rule_that_breaks_over_an_answer_refuses_that_answer_and_stops_no_run(error: Exception) -> None:
    def fragile(answer: Answer) -> str | None:
        if answer.guests == 13:
            raise error
        return None

    task = make_task(Answer, fragile)
    verdict = judge(with_value("guests", "13"), task=task)
    assert verdict.error_kind is ErrorKind.RULE
    assert verdict.error == f"fragile: broke: {type(error).__name__}: {error}"
    assert judge(with_value("guests", "12"), task=task).status is Status.OK


class Fragile(BaseModel):
    words: str

    @field_validator("words")
    @classmethod
    def check(cls, value: str) -> str:
        return value if value.split()[1] else ""


class Unwritable(BaseModel):
    value: str

    @field_serializer("value")
    def write(self, value: str) -> str:
        return value.split()[1]


@pytest.mark.parametrize(("output", "field"), [(Fragile, "words"), (Unwritable, "value")])
def test_a_model_that_breaks_over_an_answer_refuses_that_answer_and_stops_no_run(
    output: type[BaseModel], field: str
) -> None:
    task = make_task(output)
    assert judge(f'{{"{field}":"two words"}}', task=task).status is Status.OK
    verdict = judge(f'{{"{field}":"one"}}', task=task)
    assert verdict.error_kind is ErrorKind.SCHEMA
    assert verdict.error
    assert f"{output.__name__} broke: " in verdict.error
    assert "IndexError" in verdict.error


def test_a_rule_that_could_not_ask_elsewhere_says_nothing_about_the_answer() -> None:
    def ask_elsewhere(_: Answer) -> str:
        raise ConnectionError("no route")

    with pytest.raises(ConnectionError):
        judge(GOOD, task=make_task(Answer, ask_elsewhere))


def test_an_empty_string_from_a_rule_is_a_refusal_and_none_is_not() -> None:
    assert judge(GOOD, task=make_task(Answer, lambda _: "")).error_kind is ErrorKind.RULE
    assert judge(GOOD, task=make_task(Answer, lambda _: None)).status is Status.OK


def test_a_payload_has_the_names_of_the_output_schema() -> None:
    class Aliased(BaseModel):
        name: str = Field(alias="the_name")

    verdict = judge('{"the_name":"x"}', task=make_task(Aliased))
    assert verdict.payload == {"the_name": "x"}
    assert list(Aliased.model_json_schema()["properties"]) == list(verdict.payload)


# Laws


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=4)
    | st.sampled_from(["card", "fee", 2**63, 10**400, math.inf]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
answers = st.fixed_dictionaries(
    {},
    optional={
        "label": st.sampled_from(["card", "fee", "x"]) | json_values,
        "urgent": st.booleans() | json_values,
        "guests": st.none() | st.integers() | json_values,
        "share": st.floats() | json_values,
        "notes": st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=2), max_size=2),
        "anything": json_values,
    },
)


def spell(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def spell_escaped(value: object) -> str:
    return json.dumps(value)


near_json = st.lists(
    st.sampled_from([*'{}[]:,"\\ \n', "true", "1e400", '"label"', '"card"', "\\u0000", "NaN"]), max_size=14
)
completions = (
    answers.map(spell)
    | answers.map(spell_escaped)
    | json_values.map(spell)
    | st.text(st.characters(exclude_categories=[]), max_size=20)
    | near_json.map("".join)
    | st.integers(0, len(GOOD)).map(lambda n: GOOD[:n])
)


def wrap(text: str, thinking: str | None, has_fence: bool) -> str:
    fenced = f"```json\n{text}\n```" if has_fence else text
    return fenced if thinking is None else f"<think>{thinking}</think>{fenced}"


any_text = st.text(st.characters(exclude_categories=[]), max_size=8)
wrapped = st.builds(wrap, completions, st.none() | any_text, st.booleans())
finish_reasons = st.sampled_from(["stop"] * 5 + ["length", "content_filter", "x" * 50, "\ud800", "", None])


@settings(deadline=None, max_examples=200)
@given(completions | wrapped, finish_reasons, st.none() | any_text, st.none() | any_text)
@example(GOOD, "stop", None, None)
@example('{"label":"fee","urgent":true}', "stop", None, None)
@example(wrap(GOOD, "hm", True), "stop", "hm", None)
@example(GOOD, "stop", None, "no")
@example(with_value("anything", '"\\\0"'), "stop", None, None)
def test_any_answer_gets_a_verdict_and_ok_means_that_model_and_rules_accept(
    text: str, finish_reason: str | None, reasoning: str | None, refusal: str | None
) -> None:
    done = Completion(text=text, finish_reason=finish_reason, reasoning=reasoning, refusal=refusal)
    verdict = accept(done, TASK)
    assert verdict == accept(done, TASK)
    assert verdict == accept(keep(done), TASK)
    if verdict.status is Status.OK:
        assert finish_reason == "stop"
        assert not (refusal or "").strip()
        bare = re.sub(r"\A\s*<think>.*?</think>", "", keep(done).text, flags=re.DOTALL).strip()
        bare = bare.removeprefix("```json").removesuffix("```") if bare.startswith("```") else bare
        answer = Answer.model_validate_json(bare, strict=True)
        assert no_urgent_fee(answer) is None
        assert verdict.payload == answer.model_dump(mode="json")
        assert json.loads(json.dumps(verdict.payload, allow_nan=False)) == verdict.payload
        json.dumps(verdict.payload, ensure_ascii=False).encode("utf-8")
    else:
        assert verdict.status is Status.INVALID
        assert verdict.error_kind in ErrorKind
        assert verdict.error


@settings(deadline=None)
@given(st.lists(st.sampled_from(["\\", "\0", "\ud800", "\udc00", '"', "a", "u0000", "é"]), max_size=8).map("".join))
@example("\\\0")
def test_no_answer_with_a_nul_in_a_string_is_ok_and_its_stored_form_stays(text: str) -> None:
    done = Completion(text=f'{{"v":"{text}"}}', finish_reason="stop")
    kept = keep(done)
    assert keep(kept) == kept
    kept.text.encode("utf-8")
    if "\0" in text:
        assert accept(done, make_task(Lenient)).status is Status.INVALID


@settings(deadline=None, max_examples=150)
@given(answers)
def test_an_answer_that_the_model_accepts_is_refused_only_for_what_no_store_keeps(answer: dict[str, object]) -> None:
    text = spell(answer)
    try:
        fitting = Answer.model_validate_json(text, strict=True)
    except ValidationError:
        assert judge(text).status is Status.INVALID
        return
    kind = judge(text).error_kind
    unkept = (ErrorKind.NOT_FINITE, ErrorKind.TOO_BIG, ErrorKind.CONTROL_CHARACTERS)
    assert kind in (None, ErrorKind.RULE, *unkept)
    if kind is ErrorKind.RULE:
        assert no_urgent_fee(fitting)
    if kind is ErrorKind.NOT_FINITE:
        assert "NaN" in text or "Infinity" in text
    if kind is ErrorKind.TOO_BIG:
        assert any(len(digits) > 18 for digits in re.findall(r"\d+", text))


# The corpus of JSONTestSuite


def read_corpus(prefix: str) -> list[Path]:
    folder = NASTY / "json_parsing"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: the corpus of JSONTestSuite lies beside the checkout, not in it")
    return sorted(folder.glob(f"{prefix}_*.json"))


def test_no_text_of_the_corpus_that_is_not_json_is_accepted() -> None:
    task = make_task(Lenient)
    wrong = [
        p.name for p in read_corpus("n") if judge(p.read_bytes().decode("utf-8", "surrogateescape"), task=task).payload
    ]
    assert wrong == []


def test_every_object_of_the_corpus_is_accepted_unless_no_database_keeps_it() -> None:
    task = make_task(Lenient)
    kinds: dict[str, ErrorKind | None] = {}
    for path in read_corpus("y"):
        text = path.read_bytes().decode("utf-8")
        if isinstance(json.loads(text), dict):
            kinds[path.name] = judge(text, task=task).error_kind
    assert {name: kind for name, kind in kinds.items() if kind} == {
        "y_object_duplicated_key.json": ErrorKind.DOUBLED_KEY,
        "y_object_duplicated_key_and_value.json": ErrorKind.DOUBLED_KEY,
        "y_object_escaped_null_in_key.json": ErrorKind.CONTROL_CHARACTERS,
    }
    assert len(kinds) > 10


def test_what_parsers_differ_over_gets_a_verdict() -> None:
    for path in read_corpus("i"):
        assert judge(path.read_bytes().decode("utf-8", "surrogateescape"), task=make_task(Lenient)).status in Status
