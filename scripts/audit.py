"""Look for known vulnerabilities in the versions that constraints/ pins, with pip-audit.

It asks the package index that pip-audit knows, and nothing else. Where that can't be reached, or has no such data, the
audit is skipped and says so: that is no pass, and no failure. Exit codes: 0 nothing found, or skipped; 1 found, and not
listed in audit_ignored.toml; 2 that file can't be used.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IGNORED = Path(__file__).with_name("audit_ignored.toml")
LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found: (package, version, id, fixed in). `unknown`: packages of which the index tells nothing."""

    audited: int = 0
    unknown: Sequence[str] = ()
    found: Sequence[tuple[str, str, str, str]] = field(default=())


class SkippedError(Exception):
    """Nobody could tell."""


def load_ignored(path: Path) -> dict[tuple[str, str], str]:
    """Return the reasons by (package, id). ValueError for an entry without one."""
    ignored: dict[tuple[str, str], str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("ignored", []):
        missing = [name for name in ("id", "package", "reason") if not str(entry.get(name, "")).strip()]
        if missing:
            raise ValueError(f"{path.name}: {entry}: no {', '.join(missing)}")
        ignored[_normalise(entry["package"]), entry["id"]] = entry["reason"]
    return ignored


def split_pins(files: Sequence[Path]) -> list[list[str]]:
    """Return all pins, each once, in sets with no package twice, as pip-audit wants them: engines pin differently."""
    sets: list[dict[str, str]] = []
    lines = (line.strip() for path in files for line in path.read_text(encoding="utf-8").splitlines())
    for pin in dict.fromkeys(line for line in lines if line and not line.startswith("#")):
        name = _normalise(pin.partition("==")[0])
        fitting = next((s for s in sets if name not in s), None)
        if fitting is None:
            fitting = {}
            sets.append(fitting)
        fitting[name] = pin
    return [list(s.values()) for s in sets]


def ask(command: Sequence[str], limit_s: float) -> Audit:
    """Run pip-audit; SkippedError says why it has no answer."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as e:
        raise SkippedError(f"no answer within {limit_s:g} s") from e
    try:
        return read_report(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as e:
        lines = done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode} and said nothing"]
        raise SkippedError(
            re.sub(r"://[^/@\s]*@", "://", lines[-1])[:300]
        ) from e  # an index's address may hold a password


def ask_all(
    make_command: Callable[[Path], list[str]], sets: Sequence[Sequence[str]], limit_s: float
) -> tuple[Audit, str]:
    """Ask for each set of pins; return what was found of all, and why not all is known; empty where it is."""
    give_up_at = time.monotonic() + limit_s
    parts: list[Audit] = []
    why = ""
    with tempfile.TemporaryDirectory() as folder:
        for n, pins in enumerate(sets):
            path = Path(folder) / f"{n}.txt"
            path.write_text("\n".join(pins), encoding="utf-8")
            try:
                parts.append(ask(make_command(path), max(1.0, give_up_at - time.monotonic())))
            except SkippedError as e:
                why = str(e)
    audit = Audit(
        audited=sum(p.audited for p in parts),
        unknown=[name for p in parts for name in p.unknown],
        found=[f for p in parts for f in p.found],
    )
    if not why and not audit.audited:
        why = f"the package index has no such data: it told nothing of any of {len(audit.unknown)} packages"
    return audit, why


def read_report(report: Mapping[str, Any]) -> Audit:
    """Return what a report says."""
    unknown = [d["name"] for d in report["dependencies"] if "skip_reason" in d]
    known = [d for d in report["dependencies"] if "skip_reason" not in d]
    found = [
        (d["name"], d["version"], v["id"], ", ".join(v.get("fix_versions", ())) or "no version yet")
        for d in known
        for v in d["vulns"]
    ]
    return Audit(audited=len(known), unknown=unknown, found=found)


def judge(audit: Audit, ignored: Mapping[tuple[str, str], str]) -> tuple[list[str], bool]:
    """Return what to print, and whether anything was found that isn't ignored."""
    lines: list[str] = []
    is_bad = False
    for package, version, identity, fixed in audit.found:
        reason = ignored.get((_normalise(package), identity))
        is_bad = is_bad or reason is None
        lines.append(f"{package} {version}: {identity}, " + (f"ignored: {reason}" if reason else f"fixed in {fixed}"))
    seen = {(_normalise(package), identity) for package, _, identity, _ in audit.found}
    lines += [f"{i} of {p} is ignored and was not found: take it out" for p, i in ignored if (p, i) not in seen]
    more = f"; the index told nothing of {len(audit.unknown)} others" if audit.unknown else ""
    lines.append(f"audited {audit.audited} packages, {len(audit.found)} known vulnerabilities{more}")
    return lines, is_bad


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Audit, print, return the exit code."""
    try:
        ignored = load_ignored(IGNORED)
    except (OSError, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    sets = split_pins(sorted((ROOT / "constraints").glob("*.txt")))
    audit, why = ask_all(lambda path: [sys.executable, "-m", "pip_audit", *options, "-r", str(path)], sets, LIMIT_S)
    if why:
        print(f"audit skipped: {why}" if not audit.audited else f"audit incomplete: {why}")
    if not audit.audited:
        return 0
    lines, is_bad = judge(audit, ignored)
    print("\n".join(lines))
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
