"""The audit of dependencies: what it found fails it, what nobody could tell skips it and says so."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module  # where dataclasses look for the module of their class
    spec.loader.exec_module(module)
    return module


def make_report(**vulns: list[str]) -> dict[str, Any]:
    known = [
        {"name": name, "version": "1", "vulns": [{"id": i, "fix_versions": ["2"]} for i in ids]}
        for name, ids in vulns.items()
    ]
    return {"dependencies": [*known, {"name": "ours", "skip_reason": "not found"}]}


def answer(text: str, *, err: str = "", seconds: float = 0) -> list[str]:
    """Return a command that answers as pip-audit may."""
    code = "import sys, time; time.sleep(float(sys.argv[3])); sys.stderr.write(sys.argv[2]); print(sys.argv[1])"
    return [sys.executable, "-c", code, text, err, str(seconds)]


def test_what_is_found_fails_and_is_told_with_its_mend(audit: ModuleType) -> None:
    found = audit.ask(answer(json.dumps(make_report(good=[], bad=["PYSEC-1"]))), 60)
    lines, is_bad = audit.judge(found, {})
    assert is_bad
    assert lines == [
        "bad 1: PYSEC-1, fixed in 2",
        "audited 2 packages, 1 known vulnerabilities; the index told nothing of 1 others",
    ]


def test_what_is_ignored_with_a_reason_passes_and_is_told(audit: ModuleType) -> None:
    found = audit.read_report(make_report(Some_Name=["PYSEC-1"]))
    lines, is_bad = audit.judge(found, {("some-name", "PYSEC-1"): "never called", ("gone", "PYSEC-2"): "r"})
    assert not is_bad
    assert lines[:2] == [
        "Some_Name 1: PYSEC-1, ignored: never called",
        "PYSEC-2 of gone is ignored and was not found: take it out",
    ]


def test_another_vulnerability_of_an_ignored_package_fails(audit: ModuleType) -> None:
    _, is_bad = audit.judge(audit.read_report(make_report(bad=["PYSEC-1", "PYSEC-2"])), {("bad", "PYSEC-1"): "r"})
    assert is_bad


@pytest.mark.parametrize(
    ("text", "err", "words"),
    [
        ("", "x\nERROR: can't connect to https://u:s3cret@index/\n", "ERROR: can't connect to https://index/"),
        ("", "", "pip-audit ended with 0 and said nothing"),
        ("[]", "odd", "odd"),
        ('{"dependencies": [{}]}', "odd", "odd"),
    ],
)
def test_what_nobody_can_tell_is_skipped_with_its_reason(audit: ModuleType, text: str, err: str, words: str) -> None:
    with pytest.raises(audit.SkippedError, match=f"^{re.escape(words)}$"):
        audit.ask(answer(text, err=err), 60)


def test_an_index_that_answers_too_late_is_not_waited_for(audit: ModuleType) -> None:
    with pytest.raises(audit.SkippedError, match="no answer within 0.5 s"):
        audit.ask(answer("{}", seconds=60), 0.5)


@pytest.mark.parametrize("left_out", ["id", "package", "reason"])
def test_nothing_is_ignored_without_a_reason(audit: ModuleType, tmp_path: Path, left_out: str) -> None:
    fields = {"id": "PYSEC-1", "package": "p", "reason": "r"}
    path = tmp_path / "ignored.toml"
    path.write_text("[[ignored]]\n" + "".join(f'{k} = "{"" if k == left_out else v}"\n' for k, v in fields.items()))
    with pytest.raises(ValueError, match=f"no {left_out}"):
        audit.load_ignored(path)


def test_the_file_of_the_ignored_can_be_read(audit: ModuleType) -> None:
    assert isinstance(audit.load_ignored(audit.IGNORED), dict)


def test_each_pin_is_asked_for_once_and_no_package_twice_in_a_set(audit: ModuleType, tmp_path: Path) -> None:
    cpu, gpu = tmp_path / "cpu.txt", tmp_path / "gpu.txt"
    cpu.write_text("# why\na==1\ntorch==2+cpu\n\n")
    gpu.write_text("a==1\nTorch==2\nb==3\n")
    assert audit.split_pins([cpu, gpu]) == [["a==1", "torch==2+cpu", "b==3"], ["Torch==2"]]


def test_an_index_without_such_data_is_no_pass(audit: ModuleType) -> None:
    found, why = audit.ask_all(lambda _path: answer(json.dumps(make_report())), [["a==1"], ["b==1"]], 60)
    assert (found.audited, why) == (0, "the package index has no such data: it told nothing of any of 2 packages")


def test_what_one_set_found_counts_though_the_other_is_not_known(audit: ModuleType) -> None:
    bad = json.dumps(make_report(bad=["PYSEC-1"]))
    commands = iter([answer(bad), answer("", err="the index is away"), answer(bad)])
    found, why = audit.ask_all(lambda _path: next(commands), [["a==1"], ["b==1"], ["c==1"]], 60)
    assert (found.audited, len(found.found), why) == (2, 2, "the index is away")
