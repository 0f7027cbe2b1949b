"""What records, answers and servers say stays text wherever the web UI, a chat program or a terminal shows it."""

import datetime as dt
import io
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from factories import make_platform, make_task
from markdown_it import MarkdownIt
from rich.console import Console

from batch_assets.cli.launch import FailedCheck, RunSummary
from batch_assets.cli.terminal import ProgressView
from batch_assets.cli.verbs.run import print_summary
from batch_assets.cli.verbs.show import print_record
from batch_assets.core.outcomes import Markdown
from batch_assets.dagster.events import to_metadata
from batch_assets.pipeline.ask_partitions import tabulate_failures
from batch_assets.pipeline.checks.frame_contract import hold_to_contract
from batch_assets.pipeline.checks.source_records import count_lines
from batch_assets.pipeline.describe_variants import describe_variants
from batch_assets.pipeline.frame_schemas import source_records_schema
from batch_assets.sources.base import SourceBatch

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[a link](javascript:alert(1))",
    "![a picture](http://127.0.0.1/x.png)",
    "<http://127.0.0.1/>",
    "`code` <b>",
    "`` ` ``` <script>",
    "``````\n<script>alert(1)</script>\n``````",
    "| a | b |\n|---|---|\n| [x](y) | <i> |",
    "\n\n# Heading\n\n- item\n\n<script>",
    "a\r<script>\r\n\u2028<script>",
    "&lt;script&gt; &amp;",
    "\\`<script>\\`",
    "$$\\href{javascript:x}{y}$$",
]
HARMLESS = {"p", "ul", "li", "code", "pre"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.code = ""
        self._is_code = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self._is_code = self._is_code or tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self._is_code = self._is_code and tag != "code"

    def handle_data(self, data: str) -> None:
        self.code += data if self._is_code else ""


def assert_all_is_code(value: object, *words: str) -> None:
    """Render what goes into the web UI as Markdown, raw HTML allowed; nothing but code may come of a record's text."""
    assert isinstance(value, Markdown)
    tags = Tags()
    tags.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(value.text))
    assert tags.found <= HARMLESS
    assert all(w in tags.code for w in words), "it is shown"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_records_text_in_a_finding_is_code(text: str) -> None:
    frame = pl.DataFrame(
        {"item_id": [text, text], "text": ["x", "y"], "source_line": [1, 2]},
        schema={"item_id": pl.String, "text": pl.String, "source_line": pl.Int64},
    )
    found = hold_to_contract(frame, source_records_schema(("text",)))
    assert not found.passed
    assert_all_is_code(found.figures["first"], "item_id")


@pytest.mark.parametrize("text", HOSTILE)
def test_the_reason_why_a_line_was_set_aside_is_code(text: str) -> None:
    found = count_lines(SourceBatch(frame=pl.DataFrame(), malformed=[(3, text), (4, text)]))
    assert_all_is_code(found.figures["first"], text.split()[-1].replace("`", "'"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_prompt_is_shown_as_code(tmp_path: Path, text: str) -> None:
    task = make_task(tmp_path / "prompts", prompts={"v1": f"{text}\n{{{{ text }}}}"})
    platform = make_platform(tmp_path)
    (made,) = describe_variants(task, platform, ["v1--m1"])
    platform.database.close()
    assert_all_is_code(made.figures["prompt"], "{{ text }}")
    assert made.figures["system"] == "Answer."


@pytest.mark.parametrize("text", HOSTILE)
def test_failures_are_cells_of_a_table_which_the_web_ui_shows_as_they_are(text: str) -> None:
    table = tabulate_failures([(text, "error", "bad_request", text)])
    shown = to_metadata({"first_failures": table})["first_failures"]
    assert [r.data["error"] for r in shown.records] == [text]
    assert {c.type for c in shown.schema.columns} == {"string"}


def test_a_terminal_gets_no_commands_from_an_answer() -> None:
    row = {"attempt": 1, "prompt_ver": "v1", "model_id": "m1", "outcome": "ok", "latency_s": None, "error": None}
    answer = "\x1b]0;owned\x07\x1b[2J\u009b31m [red]plain[/red] ünï"
    out = io.StringIO()
    attempt = {**row, "completion": answer, "finish_reason": "stop", "prompt_tokens": None, "request_key": "k"}
    attempt |= {"started_at": dt.datetime(2026, 11, 29), "ladder_step": 1, "reasoning": answer, "refusal": "no \x1b"}
    print_record(Console(file=out, width=200), "1\x1b[2J", {"results": [], "attempts": [attempt], "batches": []})
    assert not [c for c in out.getvalue() if c != "\n" and not c.isprintable()]
    assert out.getvalue().count("[red]plain[/red] ünï") == 2
    assert "refusal: no \\x1b" in out.getvalue()
    assert "attempt 1, step 1 of" in out.getvalue()


def test_what_a_failing_check_quotes_is_text() -> None:
    metadata = {"most_shifted": "label: [/b] \x1b[2J is 80%", "first": {"without_row": ["[/x]"]}}
    check = FailedCheck(asset="a", check="c", partition="p", severity="WARN", metadata=metadata)
    out = io.StringIO()
    print_summary(Console(file=out, width=200), RunSummary(task="t", failed_checks=[check]), {}, [])
    assert "label: [/b] \\x1b[2J is 80%" in out.getvalue()
    assert "[/x]" in out.getvalue()


def test_what_is_said_while_a_run_goes_on_is_text() -> None:
    out = io.StringIO()
    ProgressView(Console(file=out, width=200)).say("the server said [/b]\x1b[2J")
    assert out.getvalue() == "the server said [/b]\\x1b[2J\n"
