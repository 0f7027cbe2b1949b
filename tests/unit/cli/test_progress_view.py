"""Progress on the command line: a bar on a terminal, lines elsewhere."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from batch_assets.cli import terminal
from batch_assets.cli.terminal import ProgressView
from batch_assets.run.partition_run import Progress, Tally


def show(*progresses: Progress, is_terminal: bool) -> str:
    out = io.StringIO()
    with ProgressView(Console(file=out, force_terminal=is_terminal, width=120)) as view:
        for progress in progresses:
            view.observe(progress)
    return out.getvalue()


def make_progress(done: int, *, is_starting: bool = False) -> Progress:
    return Progress(total=4, done=done, tally=Tally(ok=done), in_flight=1, is_starting=is_starting)


def test_elsewhere_the_first_and_the_last_line_are_printed_once() -> None:
    text = show(*(make_progress(n) for n in (0, 1, 2, 3, 4, 4, 4)), is_terminal=False)
    assert text.splitlines() == [
        "0 of 4 records (0 %); 1 in flight; 0 ok, 0 invalid, 0 error",
        "4 of 4 records (100 %); 1 in flight; 4 ok, 0 invalid, 0 error",
    ]


def test_elsewhere_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "PLAIN_EVERY_S", -1.0)
    text = show(make_progress(0, is_starting=True), make_progress(1), make_progress(2), is_terminal=False)
    assert text.splitlines()[0] == "starting the engine; 0 of 4 records (0 %)"
    assert len(text.splitlines()) == 3


def test_a_terminal_gets_a_bar_with_the_same_figures() -> None:
    text = show(make_progress(0, is_starting=True), make_progress(4), is_terminal=True)
    assert "asking" in text
    assert "4/4" in text
    assert "0 invalid  0 errors" in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_pause_is_told_on_a_terminal_and_elsewhere(is_terminal: bool) -> None:
    text = show(replace(make_progress(1), pause_s=4.0, failure="HTTP 503: [busy]"), is_terminal=is_terminal)
    assert "the server is failing: pausing, next probe in 4 s" in " ".join(text.split())
    assert "the last failure: HTTP 503: [busy]" in text


def test_a_pause_fits_into_a_narrow_terminal() -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out, force_terminal=True, width=80)) as view:
        view.observe(replace(make_progress(40_000), total=40_000, pause_s=600.0))
        view.observe(replace(make_progress(40_000), total=40_000, pause_s=0.0))
    assert "…" not in out.getvalue()


def test_elsewhere_a_line_stays_one_however_long() -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out, force_terminal=False, width=80)) as view:
        view.say("[b3] " + "word " * 30)
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().startswith("[b3]")


def test_elsewhere_a_run_that_stops_says_how_far_it_came() -> None:
    text = show(make_progress(0), make_progress(1), make_progress(2), is_terminal=False)
    assert text.splitlines()[-1] == "2 of 4 records (50 %); 1 in flight; 2 ok, 0 invalid, 0 error"
