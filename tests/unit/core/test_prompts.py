"""Prompt files: what is wrong in them is said by name, and a record's text is data, whatever it looks like."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict, Field

from batch_assets.core.control_tokens import find_control_tokens
from batch_assets.core.errors import ConfigError
from batch_assets.core.prompts import Message, Prompt, check_fields, load_prompt, load_prompts
from batch_assets.core.records import Record


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Literal["a", "b"]
    at: str | None = None


class Urgent(BaseModel):
    urgent: bool
    day: str = ""


HEAD = "description: a prompt"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a prompt file of a head and a body."""

    def write_it(head: str = HEAD, body: str = "Text: {{ text }}", name: str = "v1.md") -> Path:
        path = tmp_path / name
        path.write_text(f"---\n{head}\n---\n{body}\n", encoding="utf-8")
        return path

    return write_it


def render(prompt: Prompt, text: str | None, **fields: str | None) -> str:
    return prompt.render(Record(item_id="1", fields={"text": text, **fields}))[-1].content


# What the file says


def test_a_prompt_becomes_system_examples_and_the_record(write: Write) -> None:
    head = (
        f"{HEAD}\nsystem: |\n  Be brief.\nexamples:\n"
        "  - input: {text: one}\n    output: {label: a}\n"
        "  - input: {text: two}\n    output: {at: noon, label: b}"
    )
    prompt = load_prompt(write(head), Answer)
    assert prompt.prompt_ver == "v1"
    assert prompt.fields == ("text",)
    assert prompt.render(Record(item_id="1", fields={"text": "three"})) == (
        Message("system", "Be brief."),
        Message("user", "Text: one"),
        Message("assistant", '{"label":"a"}'),
        Message("user", "Text: two"),
        Message("assistant", '{"label":"b","at":"noon"}'),
        Message("user", "Text: three"),
    )


def test_a_prompt_without_system_and_examples_is_one_turn(write: Write) -> None:
    assert load_prompt(write(), Answer).render(Record(item_id="1", fields={"text": "x"})) == (
        Message("user", "Text: x"),
    )


def test_the_keys_of_an_example_stand_in_the_order_that_guided_decoding_writes(write: Write) -> None:
    class Ordered(BaseModel):
        zebra: int
        apple: int = Field(alias="an_apple")

    head = f"{HEAD}\nexamples:\n  - input: {{text: one}}\n    output: {{an_apple: 1, zebra: 2}}"
    assert load_prompt(write(head), Ordered).opening[-1].content == '{"zebra":2,"an_apple":1}'


def test_a_file_with_bom_and_crlf_says_the_same(write: Write, tmp_path: Path) -> None:
    plain = load_prompt(write(f"{HEAD}\nsystem: s", "a\n{{ text }}\nb"), Answer)
    path = tmp_path / "v2.md"
    path.write_bytes(b"\xef\xbb\xbf" + plain.path.read_bytes().replace(b"\n", b"\r\n"))
    assert render(load_prompt(path, Answer), "x") == render(plain, "x") == "a\nx\nb"


def test_a_null_field_renders_as_nothing(write: Write) -> None:
    assert render(load_prompt(write(), Answer), None) == "Text: "


def test_the_body_may_choose_by_a_field(write: Write) -> None:
    prompt = load_prompt(write(body="{% if lang == 'ru' %}Текст{% else %}Text{% endif %}: {{ text }}"), Answer)
    assert prompt.fields == ("lang", "text")
    assert render(prompt, "x", lang="ru") == "Текст: x"


def test_prompts_are_found_by_the_name_of_their_file(write: Write, tmp_path: Path) -> None:
    write(name="v2.md")
    write(name="v1.md")
    (tmp_path / "notes.txt").write_text("no prompt")
    assert list(load_prompts(tmp_path, Answer)) == ["v1", "v2"]


# What is wrong is said by name


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("system: s", "description: Field required"),
        (f"{HEAD}\nsytem: s", "sytem: Extra inputs are not permitted"),
        ("description: [1]", "description: Input should be a valid string"),
        ("description: 2026-11-01", "description: Input should be a valid string"),
        (f"{HEAD}\nexamples: 3", "examples"),
        (f"{HEAD}\nexamples:\n  - input: {{text: 1}}\n    output: {{}}", "examples.0.input.text"),
        (f"{HEAD}\nexamples:\n  - input: {{text: x}}", "examples.0.output: Field required"),
        ("- a list", "valid dictionary"),
        ("", "valid dictionary"),
        ("description: [", "front matter is not YAML"),
        ("description: a\ndescription: b", "the key 'description' comes twice"),
        (f"{HEAD}\nsystem: 2026-13-45", "front matter is not YAML"),
        (f"{HEAD}\nsystem: !!python/name:os.system", "front matter is not YAML"),
    ],
)
def test_a_wrong_head_is_an_error_that_names_file_and_field(write: Write, head: str, named: str) -> None:
    path = write(head)
    with pytest.raises(ConfigError, match=re.escape(named)) as error:
        load_prompt(path, Answer)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("no field at all", "uses no field"),
        ("", "uses no field"),
        ("{{ text", "not a valid template"),
        ("{% if text %}", "not a valid template"),
        ("{{ text|nonsense }}", "not a valid template"),
        ("a\0b {{ text }}", "a control character, such as NUL"),
        ("{{ [text, 'x']|random }}", "not a valid template: No filter named 'random'"),
        ("{{ text }}{% nonsense %}", "not a valid template"),
        ("{{ text }}{% include 'v2.md' %}", "another template"),
        ("{% extends 'v2.md' %}{{ text }}", "another template"),
        ("{% import 'v2.md' as v %}{{ text }}", "another template"),
    ],
)
def test_a_wrong_body_is_an_error_that_names_the_file(write: Write, body: str, named: str) -> None:
    path = write(body=body)
    with pytest.raises(ConfigError, match=re.escape(named)) as error:
        load_prompt(path, Answer)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "data", [b"no head\n{{ text }}", b"---\ndescription: x\n{{ text }}", b"\n---\na: b\n---\nx", b""]
)
def test_a_file_without_front_matter_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "v1.md"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: expected front matter")):
        load_prompt(path, Answer)


def test_a_file_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "v1.md"
    path.write_bytes(b"---\ndescription: caf\xe9\n---\n{{ text }}")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: can't be read")):
        load_prompt(path, Answer)


def test_a_folder_without_prompts_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: no prompt file")):
        load_prompts(tmp_path, Answer)


@pytest.mark.parametrize("name", ["my prompt.md", "v|1.md", "ü.md"])
def test_a_file_name_that_cannot_be_a_version_is_refused(write: Write, name: str) -> None:
    with pytest.raises(ConfigError, match="prompt version"):
        load_prompt(write(name=name), Answer)


def test_a_field_that_the_source_does_not_have_is_named(write: Write) -> None:
    prompt = load_prompt(write(body="{{ text }} {{ txet }} {{ lang }}"), Answer)
    check_fields(prompt, ("lang", "text", "txet", "more"))
    with pytest.raises(ConfigError, match=r"v1\.md: unknown field lang, txet; the source has item_id, text"):
        check_fields(prompt, ("item_id", "text"))


@pytest.mark.parametrize("name", ["range", "dict", "lipsum", "cycler", "joiner", "namespace"])
def test_a_field_with_the_name_of_a_jinja_function_is_a_field(write: Write, name: str) -> None:
    prompt = load_prompt(write(body=f"{{{{ {name} }}}}"), Answer)
    assert prompt.fields == (name,)
    assert prompt.render(Record(item_id="1", fields={name: "x"}))[-1].content == "x"


@pytest.mark.parametrize(
    ("example", "named"),
    [
        ("input: {text: x}\n    output: {label: c}", "example 1: output: label: Input should be 'a' or 'b'"),
        ("input: {text: x}\n    output: {}", "example 1: output: label: Field required"),
        ("input: {text: x}\n    output: {label: a, more: 1}", "example 1: output: more: Extra inputs"),
        ("input: {text: x}\n    output: {label: a, at: 2026-11-01}", "example 1: output: not JSON"),
        ("input: {text: x}\n    output: {label: a, at: .nan}", "example 1: output: not JSON"),
        ("input: {}\n    output: {label: a}", "example 1: input has [], the body uses ['text']"),
        ("input: {text: x, lang: y}\n    output: {label: a}", "example 1: input has ['lang', 'text']"),
    ],
)
def test_an_example_that_does_not_fit_is_an_error_at_load(write: Write, example: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        load_prompt(write(f"{HEAD}\nexamples:\n  - {example}"), Answer)


@pytest.mark.parametrize("output", ["{urgent: 'true'}", "{urgent: 1}", "{urgent: true, day: 3}"])
def test_an_example_is_judged_as_strictly_as_an_answer(write: Write, output: str) -> None:
    with pytest.raises(ConfigError, match="example 1: output: "):
        load_prompt(write(f"{HEAD}\nexamples:\n  - input: {{text: x}}\n    output: {output}"), Urgent)


def test_an_example_that_cannot_be_rendered_is_an_error_at_load(write: Write) -> None:
    head = f"{HEAD}\nexamples:\n  - input: {{text: x}}\n    output: {{label: a}}"
    with pytest.raises(ConfigError, match="example 1: input: can't be rendered: ZeroDivisionError"):
        load_prompt(write(head, "{{ 1 / text|int }}"), Answer)


# A record's text is data


@pytest.fixture(scope="module")
def bracketed(tmp_path_factory: pytest.TempPathFactory) -> Prompt:
    """A prompt that shows where the text begins and ends."""
    path = tmp_path_factory.mktemp("prompts") / "v1.md"
    path.write_text(f"---\n{HEAD}\n---\n<{{{{ text }}}}>\n", encoding="utf-8")
    return load_prompt(path, Answer)


nasty_pieces = st.sampled_from(
    [
        "{{ text }}",
        "{{",
        "}}",
        "{%",
        "%}",
        "{# #}",
        "{% raw %}",
        "{% endraw %}",
        "%s",
        "%(text)s",
        "{0}",
        "{text}",
        "$x",
    ]
    + ["---\n", "\r\n", "\x00", "\ud800", "<|im_end|>", "\\u0041", "&lt;", "'", '"', "{{ 7 * 7 }}", "{% include 'x' %}"]
)
nasty_texts = st.lists(nasty_pieces | st.text(st.characters(exclude_categories=[]), max_size=5), max_size=6).map(
    "".join
)


@settings(deadline=None)
@given(nasty_texts)
def test_any_text_stands_in_the_message_as_it_is_but_for_control_tokens(bracketed: Prompt, text: str) -> None:
    content, plain = render(bracketed, text), f"<{text}>"
    assert content.replace(" ", "") == plain.replace(" ", "")
    assert not find_control_tokens(content)
    if not find_control_tokens(plain):
        assert content == plain


@pytest.mark.parametrize(
    "text", ["{{ 7 * 7 }}", "{% raw %}{{ x }}{% endraw %}", "100 %s %(a)s %%", "{# gone? #}", "{{ text }}", "</b>{%"]
)
def test_a_text_that_looks_like_a_template_stays_literal(bracketed: Prompt, text: str) -> None:
    assert render(bracketed, text) == f"<{text}>"


CONTROL_TOKENS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>",
    "<start_of_turn>", "<end_of_turn>", "<|eot_id|>", "<|start_header_id|>", "<think>", "</think>", "<|channel>",
    "<turn|>", "<｜Assistant｜>", "[|assistant|]", "<tool_call>",
]  # fmt: skip


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_control_token_in_a_record_becomes_plain_text_that_stays_readable(bracketed: Prompt, token: str) -> None:
    assert render(bracketed, f"a{token}b") == f"<a{token[0]} {token[1:]}b>"


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_control_token_that_two_fields_make_together_is_broken_too(write: Write, token: str) -> None:
    prompt = load_prompt(write(body="{{ text }}{{ more }}"), Answer)
    for at in range(1, len(token)):
        content = render(prompt, token[:at], more=token[at:])
        assert token not in content
        assert content.replace(" ", "") == token


def test_the_control_tokens_of_the_prompt_file_stay_and_those_of_the_record_do_not(write: Write) -> None:
    head = f"{HEAD}\nsystem: No <think>!\nexamples:\n  - input: {{text: <think>}}\n    output: {{label: a, at: </s>}}"
    prompt = load_prompt(write(head, "<think>{{ text }}</think>"), Answer)
    turns = [m.content for m in prompt.render(Record(item_id="1", fields={"text": "x</think><|im_end|>"}))]
    assert turns == [
        "No <think>!",
        "<think><think></think>",
        '{"label":"a","at":"</s>"}',
        "<think>x< /think>< |im_end|></think>",
    ]


@pytest.mark.parametrize(
    "expression",
    [
        "text.__class__",
        "text.__class__.__mro__",
        "text['__class__']",
        "text|attr('__class__')",
        "''.__class__.__base__.__subclasses__()",
        "text.format.__globals__",
        "'{0.__class__}'.format(text)",
        "'%s'|format(text.__init__)",
    ],
)
def test_a_body_reaches_nothing_of_python_through_a_text(write: Write, expression: str) -> None:
    try:
        prompt = load_prompt(write(body=f"{{{{ text }}}}{{{{ {expression} }}}}"), Answer)
        content = render(prompt, "x")
    except (ConfigError, TemplateError):
        return
    assert "class" not in content
    assert "object at" not in content


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("text.__class__", "__class__"),
        ("text.upper().__class__.__mro__", "__mro__"),
        ("text['__class__']", "__class__"),
        ("text['_x']", "_x"),
        ("text|attr('__class__')", "attr"),
        ("''.__class__", "__class__"),
    ],
)
def test_a_body_that_reaches_for_python_is_refused_by_name_before_any_record(
    write: Write, expression: str, named: str
) -> None:
    path = write(body=f"{{{{ text }}}}{{% if {expression} %}}x{{% endif %}}")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: the body reaches for '{named}'")):
        load_prompt(path, Answer)


def test_what_a_body_makes_up_to_reach_python_fails_in_the_sandbox(write: Write) -> None:
    prompt = load_prompt(write(body="{{ text['__cla' ~ 'ss__'] }}"), Answer)
    with pytest.raises(TemplateError, match="unsafe"):
        render(prompt, "x")


@pytest.mark.parametrize(
    "expression",
    [
        "1 / text|int",
        "text + 1",
        "text|int // 0",
        "text.nothing",
        "text[99]",
        "none_such",
        "text()",
        "text|int|items|list",
        "text|truncate(1)",
    ],
)
def test_what_cannot_be_rendered_raises_one_kind_of_error(write: Write, expression: str) -> None:
    prompt = load_prompt(write(body=f"{{{{ text }}}}{{{{ {expression} }}}}"), Answer)
    with pytest.raises(TemplateError):
        render(prompt, "x")


def test_the_text_of_a_prompt_is_what_reaches_the_model(write: Write) -> None:
    def text(*args: Any) -> dict[str, object]:
        return load_prompt(write(*args), Answer).text()

    base = text(f"{HEAD}\nsystem: s", "{{ text }}")
    assert text("description: other\nsystem: s", "{{ text }}") == base
    assert text(f"{HEAD}\nsystem: t", "{{ text }}") != base
    assert text(f"{HEAD}\nsystem: s", "{{ text }}!") != base
    example = "\nexamples:\n  - input: {text: x}\n    output: {label: a}"
    assert text(f"{HEAD}\nsystem: s{example}", "{{ text }}") != base


class Inner(BaseModel):
    z: int
    a: str | None = None


class Nested(BaseModel):
    parts: list[Inner]
    best: Inner | None


class Outer(BaseModel):
    parts: list[Inner]
    best: Inner | None
    pair: Inner | Literal["none"]
    kinds: dict[str, Inner] = {}
    again: "Outer | None" = None


def test_nested_outputs_of_examples_are_written_in_the_schemas_order(tmp_path: Path) -> None:
    inner = {"a": "x", "z": 1}
    output = {"pair": inner, "best": inner, "again": {"pair": "none", "parts": [], "best": None}}
    output |= {"parts": [inner], "kinds": {"k": inner}}
    examples = [{"input": {"text": "t"}, "output": output}]
    path = tmp_path / "v1.md"
    path.write_text(f"---\ndescription: d\nexamples: {json.dumps(examples)}\n---\n{{{{ text }}}}\n")
    answer = load_prompt(path, Outer).opening[1].content
    wanted = '{"z":1,"a":"x"}'
    again = '{"parts":[],"best":null,"pair":"none"}'
    rest = f'"pair":{wanted},"kinds":{{"k":{wanted}}},"again":{again}}}'
    assert answer == f'{{"parts":[{wanted}],"best":{wanted},{rest}'
    assert answer == Outer.model_validate_json(answer).model_dump_json(exclude_unset=True)


def test_only_a_prompt_whose_examples_are_nested_is_rendered_otherwise_than_before(tmp_path: Path) -> None:
    record = Record(item_id="1", fields={"text": "t"})
    flat = [{"input": {"text": "t"}, "output": {"label": "a", "at": None}}]
    path = tmp_path / "v1.md"
    path.write_text(f"---\ndescription: d\nexamples: {json.dumps(flat)}\n---\n{{{{ text }}}}\n")
    assert load_prompt(path, Answer).render_as_before(record) is None
    nested = [{"input": {"text": "t"}, "output": {"parts": [{"z": 1, "a": "x"}], "best": None}}]
    path.write_text(f"---\ndescription: d\nexamples: {json.dumps(nested)}\n---\n{{{{ text }}}}\n")
    before = load_prompt(path, Nested).render_as_before(record)
    assert before is not None
    assert [m.content for m in before] == ["t", '{"parts":[{"a":"x","z":1}],"best":null}', "t"]
