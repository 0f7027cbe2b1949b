"""The prompts that ship with the project load, render, and say what their output models want."""

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

import batch_assets
from batch_assets.core.prompts import Prompt, check_fields, load_prompt
from batch_assets.core.records import Record
from batch_assets.defs.ticket_triage.task import Triage

DEFS = Path(batch_assets.__file__).parent / "defs"


class Booking(BaseModel):
    """What booking_fields asks for, as its prompt says it."""

    guests: int | None
    day: str | None
    time: str | None
    name: str | None
    outside: bool


def load(task: str, prompt_ver: str, output: type[BaseModel]) -> Prompt:
    return load_prompt(DEFS / task / "prompts" / f"{prompt_ver}.md", output)


def find_roles(prompt: Prompt) -> list[Literal["system", "user", "assistant"]]:
    return [message.role for message in prompt.render(Record(item_id="1", fields=dict.fromkeys(prompt.fields, "x")))]


@pytest.mark.parametrize(
    ("task", "prompt_ver", "output", "field", "examples"),
    [
        ("ticket_triage", "v1", Triage, "text", 0),
        ("ticket_triage", "v2", Triage, "text", 6),
        ("booking_fields", "v1", Booking, "message", 2),
    ],
)
def test_a_shipped_prompt_is_a_system_turn_examples_and_the_record(
    task: str, prompt_ver: str, output: type[BaseModel], field: str, examples: int
) -> None:
    prompt = load(task, prompt_ver, output)
    assert prompt.fields == (field,)
    assert find_roles(prompt) == ["system", *["user", "assistant"] * examples, "user"]
    chat = prompt.render(Record(item_id="1", fields={field: "{{ marker }}"}))
    assert chat[-1].content.count("{{ marker }}") == 1
    assert all("{{" not in message.content for message in chat[:-1])
    assert all(message.content.strip() == message.content for message in chat)


@pytest.mark.parametrize("prompt_ver", ["v1", "v2"])
def test_the_ticket_prompts_name_every_label_and_every_key(prompt_ver: str) -> None:
    system = load("ticket_triage", prompt_ver, Triage).opening[0].content
    labels = Triage.model_json_schema()["properties"]["label"]["enum"]
    assert [label for label in labels if f"\n{label}: " not in system] == []
    assert all(name in system for name in Triage.model_fields)


def test_the_booking_prompt_names_every_key() -> None:
    system = load("booking_fields", "v1", Booking).opening[0].content
    assert all(f"\n{name}: " in system for name in Booking.model_fields)


@pytest.mark.parametrize(
    ("task", "prompt_ver", "output"), [("ticket_triage", "v2", Triage), ("booking_fields", "v1", Booking)]
)
def test_the_examples_answer_with_the_models_keys_in_their_order(
    task: str, prompt_ver: str, output: type[BaseModel]
) -> None:
    answers = [json.loads(m.content) for m in load(task, prompt_ver, output).opening if m.role == "assistant"]
    assert all(list(answer) == list(output.model_fields) for answer in answers)


def test_the_ticket_prompts_use_columns_that_the_tickets_have() -> None:
    for prompt_ver in ("v1", "v2"):
        check_fields(
            load("ticket_triage", prompt_ver, Triage), ("item_id", "text", "lang", "gold_label", "gold_urgent")
        )
