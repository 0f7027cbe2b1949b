"""Make `.venv` ready for the Makefile's targets, or say what is missing and what to do. Plain standard library.

    python3 scripts/bootstrap.py [run|dev] [--engine auto|cpu|gpu]

The lists in constraints/ are complete, so pip installs with `--no-deps`: its resolver would add packages that break
vLLM on a CPU. When nothing has changed since the last run, nothing is printed and no process is started.
This file must also parse on Pythons that are too old, to tell their users so: no `match`, no `list[str]`.
"""

import argparse
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

FIRST_PYTHON = (3, 11)
LAST_PYTHON = (3, 14)
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "bootstrap.json"
LOG = VENV / "bootstrap.log"
NEEDED_GB = {"cpu": 5, "gpu": 20}  # cpu: 2.7 installed, and pip unpacks its downloads first; gpu: an estimate
LOG_LINES_SHOWN = 20


class BootstrapError(Exception):
    """Something is missing on this machine; the message says what, and what to do."""


def say(message: str) -> None:
    print(f"bootstrap: {message}", flush=True)


def run(command: list, output: object) -> bool:
    """Run without stdin, all output to the file `output`; say whether it went well."""
    done = subprocess.run(  # noqa: S603 - every command is put together in this file
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, check=False
    )
    return done.returncode == 0


def run_logged(command: list) -> bool:
    with LOG.open("a") as log:
        log.write("$ " + " ".join(command) + "\n")
        log.flush()
        return run(command, log)


def show_log_end() -> None:
    lines = LOG.read_text(errors="replace").splitlines()
    print("\n".join("  | " + line for line in lines[-LOG_LINES_SHOWN:]), file=sys.stderr)


def check_python() -> None:
    if FIRST_PYTHON <= sys.version_info[:2] <= LAST_PYTHON:
        return
    fitting = [f"python3.{minor}" for minor in range(FIRST_PYTHON[1], LAST_PYTHON[1] + 1)]
    here = [name for name in fitting if shutil.which(name)]
    found = ".".join(map(str, sys.version_info[:3]))
    raise BootstrapError(
        f"needs {fitting[0]} to {fitting[-1]}, and {sys.executable} is Python {found}: "
        + (f"add PYTHON={here[0]}" if here else "install one and add PYTHON=/path/to/it")
        + " to the make command"
    )


def find_engine() -> str:
    """Return gpu where NVIDIA's driver lists one, else cpu."""
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None or not run([nvidia_smi], subprocess.DEVNULL):
        return "cpu"
    return "gpu"


def read_stamp() -> dict:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def write_stamp(content: dict) -> None:
    STAMP.write_text(json.dumps(content, indent=1) + "\n")


def list_requirements(engine: str, profile: str) -> list:
    names = ["base", engine] + (["dev"] if profile == "dev" else [])
    return [ROOT / "constraints" / f"{name}.txt" for name in names]


def read_pins(requirements: list) -> list:
    lines = [line for path in requirements for line in path.read_text().splitlines()]
    return [line for line in lines if "==" in line and not line.startswith("#")]


def compute_digest(requirements: list) -> str:
    digest = hashlib.sha256()
    for path in [ROOT / "pyproject.toml", *requirements]:
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def bootstrap(profile: str, asked_engine: str) -> None:
    started = time.monotonic()
    stamp = read_stamp() if VENV_PYTHON.exists() else {}
    # What is there already decides where nothing is asked: `make up` after `make test` must not throw anything away.
    engine = asked_engine if asked_engine != "auto" else stamp.get("engine") or find_engine()
    if stamp.get("profile") == "dev":
        profile = "dev"
    identity = {"python": "{}.{}".format(*sys.version_info[:2]), "engine": engine, "root": str(ROOT)}
    requirements = list_requirements(engine, profile)
    finished = {**identity, "profile": profile, "digest": compute_digest(requirements)}
    if stamp == finished:
        return
    make_venv(stamp, identity)
    LOG.write_text("")
    write_stamp({**identity, "profile": profile})  # without a digest: not finished
    install(requirements, engine)
    if profile == "dev":
        compile_packages()
    write_stamp(finished)
    say(f"ready after {time.monotonic() - started:.0f} s")


def make_venv(stamp: dict, identity: dict) -> None:
    """Create `.venv`, or keep the one there: ours if it fits and was finished, a stranger's if its Python fits."""
    if VENV_PYTHON.exists():
        if not stamp:
            return check_foreign_venv()
        if "digest" in stamp and all(stamp.get(key) == value for key, value in identity.items()):
            return None
        # A package whose installation was cut off can look installed to pip.
        was_cut = "digest" not in stamp
        why = "its installation was cut off" if was_cut else "it is for another Python, engine or folder"
        say(f"replacing .venv: {why}")
        shutil.rmtree(VENV)
    check_free_space(identity["engine"])
    say(f"creating .venv with Python {identity['python']}")
    VENV.mkdir(exist_ok=True)
    with_pip = [] if importlib.util.find_spec("ensurepip") else ["--without-pip"]
    if not run_logged([base_python(), "-m", "venv", *with_pip, str(VENV)]):
        show_log_end()
        raise BootstrapError(
            "Python can't create a virtual environment: install its venv package "
            f"(on Debian and Ubuntu: apt install python{identity['python']}-venv)"
        )
    return None


def check_foreign_venv() -> None:
    probe = f"import sys; sys.exit(not {FIRST_PYTHON} <= sys.version_info[:2] <= {LAST_PYTHON})"
    if not run([str(VENV_PYTHON), "-c", probe], subprocess.DEVNULL):
        raise BootstrapError(f"the Python in {VENV} doesn't fit: remove it with `make clean`, then try again")


def check_free_space(engine: str) -> None:
    needed_gb, free_gb = NEEDED_GB[engine], shutil.disk_usage(ROOT).free / 1e9
    if free_gb < needed_gb:
        raise BootstrapError(
            f"the {engine} environment needs about {needed_gb} GB free in {ROOT}, {free_gb:.1f} GB are: "
            "free some, or clone the repository onto a larger disk"
        )


def base_python() -> str:
    """Return an interpreter outside `.venv`, which may be the active one and about to be replaced."""
    return getattr(sys, "_base_executable", None) or sys.executable


def find_pip() -> list:
    """Return the command of a pip that installs into `.venv`: its own, or this Python's where ensurepip is missing."""
    for python, options in ((str(VENV_PYTHON), []), (base_python(), ["--python", str(VENV_PYTHON)])):
        if run([python, "-m", "pip", "--version"], subprocess.DEVNULL):
            return [python, "-m", "pip", *options]
    raise BootstrapError(
        f"{base_python()} has neither pip nor ensurepip: install them "
        "(on Debian and Ubuntu: apt install python3-pip python3-venv)"
    )


def install(requirements: list, engine: str) -> None:
    # --no-compile: compiling all of vLLM and torch takes longer than compiling at first import what is used.
    pip = [*find_pip(), "install", "--no-deps", "--no-compile", "--no-input", "--progress-bar", "off"]
    say(
        f"installing {len(read_pins(requirements))} packages with the {engine} engine, a few minutes "
        f"(log: {LOG.relative_to(ROOT)})"
    )
    # --only-binary: every package in the lists has a wheel, so no compiler is needed and a missing one is said.
    lists = [argument for path in requirements for argument in ("-r", str(path))]
    if not run_logged([*pip, "--only-binary=:all:", *lists]):
        raise BootstrapError(explain_failure(engine))
    say("installing batch_assets from this folder")
    if not run_logged([*pip, "--no-build-isolation", "-e", str(ROOT)]):
        raise BootstrapError(explain_failure(engine))


def compile_packages() -> None:
    """Compile what is installed. The tests start hundreds of processes, and those write no bytecode themselves."""
    say("compiling what is installed, a minute")
    # Some packages hold files that are no Python of this version: that those don't compile is no failure.
    run_logged([str(VENV_PYTHON), "-m", "compileall", "-q", "-j", "0", str(VENV / "lib")])


def explain_failure(engine: str) -> str:
    """Show the log's end and return what to do. Only pip's words tell its failures apart, so the hints go by them."""
    show_log_end()
    log = LOG.read_text(errors="replace")
    torch = next(pin for pin in read_pins(list_requirements(engine, "run")) if pin.startswith("torch=="))
    python = "{}.{}".format(*sys.version_info[:2])
    if engine == "cpu" and f"No matching distribution found for {torch}" in log:
        return (
            f"pip finds no {torch} for Python {python}: PyTorch's CPU builds are not on the default package index. "
            "Download that wheel first, from PyTorch's own CPU index (pytorch.org, Get Started, compute platform CPU), "
            "then put PIP_FIND_LINKS=/the/folder/with/the/wheel before the make command"
        )
    if "No space left on device" in log:
        return f"the disk is full, {shutil.disk_usage(ROOT).free / 1e9:.1f} GB are free in {ROOT}: free some, try again"
    if "No matching distribution found" in log:
        return (
            f"the package named above has no wheel for Python {python} on this machine, or pip reached no index. "
            "The lists were made on Python 3.11, Linux, x86-64: see `pip config list`, or try PYTHON=python3.11"
        )
    return f"pip failed as shown above, the whole log is {LOG}; what it downloaded is kept, so try again"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make .venv ready.")
    parser.add_argument("profile", nargs="?", choices=["run", "dev"], default="run")
    parser.add_argument("--engine", choices=["auto", "cpu", "gpu"], default="auto")
    arguments = parser.parse_args()
    try:
        check_python()
        bootstrap(arguments.profile, arguments.engine)
    except BootstrapError as e:
        sys.exit(f"bootstrap: {e}")
    except OSError as e:
        sys.exit(f"bootstrap: {e}: {ROOT} must be writable, and its disk not full")
    except KeyboardInterrupt:
        sys.exit("bootstrap: interrupted, run it again to go on")


if __name__ == "__main__":
    main()
