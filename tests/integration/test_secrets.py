"""Secrets come from the environment and stay there: runs fail in every way, and then all that was left is searched.

Each command is a process of its own, so that its standard error is what a person sees, traceback included.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from workplace import Workplace

KEY, PASSWORD, TOKEN = "sk-s3cr3t/KEY+of=ours", "s3cr3t-db:p@ss/word", "s3cr3t-alert-token"
TRACES = ("s3cr3t", "s3cr3t%2F", "KEY+of", "word@")
MODELS = """\
smollm2-135m:
  weights: w
  engine: openai
  base_url: http://127.0.0.1:{port}/v1
  api_key_env: OUR_API_KEY
  outage_s: 0
  max_in_flight: 4
"""


class Echo(ThreadingHTTPServer):
    """A server that answers with what it was sent, headers first, as careless ones do in their error pages."""

    how: str = "400"
    seen: set[str]


class Handler(BaseHTTPRequestHandler):
    server: Echo

    def do_GET(self) -> None:
        self.answer(401 if self.server.how == "401 at once" else 200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(int(self.server.how[:3]))

    def answer(self, status: int) -> None:
        self.server.seen.add(self.headers["Authorization"])
        message = f"your headers were {dict(self.headers)}, your key was {self.headers['Authorization']}"
        body = f"<h1>{message}</h1>" if "html" in self.server.how else json.dumps({"error": {"message": message}})
        self.send_response(status, message.replace("\r", " "))
        if status == 302:
            self.send_header("Location", f"/again?{self.headers['Authorization']}")
        self.send_header("X-Your-Key", self.headers["Authorization"])
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Echo]:
    with Echo(("127.0.0.1", 0), Handler) as found:
        found.seen = set()
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    found = Workplace(tmp_path)
    alerts = f"json://127.0.0.1:1/{TOKEN}"
    found.environment = {"OUR_API_KEY": KEY, "BATCH_ASSETS_ALERT_URLS": alerts, "COLUMNS": "200"}
    return found


def call(place: Workplace, *arguments: str) -> tuple[int, str]:
    process = place.start(*arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def assert_no_trace(place: Workplace, told: str) -> None:
    """Search what was printed, and every file under the home: the store, Dagster's event log, logs, frames."""
    files = [p for p in place.home.rglob("*") if p.is_file()]
    held = {str(p): p.read_bytes() for p in files} | {"what was printed": told.encode()}
    assert not [(name, trace) for name, data in held.items() for trace in TRACES if trace.encode() in data]


@pytest.mark.parametrize("how", ["401", "401 at once", "400", "500 html", "302"])
def test_a_servers_key_is_nowhere_however_the_server_fails(place: Workplace, server: Echo, how: str) -> None:
    server.how = how
    place.copy_defs(MODELS.format(port=server.server_port))
    code, told = call(place, "run", "ticket_triage", "--batch", "2026-11-01", "--variant", "v1--*")
    assert code in (1, 3), told
    assert server.seen == {f"Bearer {KEY}"}, "it was sent, and only where it belongs"
    names = {p.name for p in place.home.rglob("*")}
    assert {"store.db", "dagster", "logs"} <= names, "there is something to search"
    assert_no_trace(place, told)
    attempts = place.query("SELECT outcome, error FROM llm_attempts")
    assert (attempts == []) == (how == "401 at once")


@pytest.mark.parametrize("command", [("run", "ticket_triage"), ("doctor",)])
@pytest.mark.parametrize("where", ["its own variable", "the url"])
def test_the_stores_password_is_nowhere_when_it_is_refused(
    place: Workplace, command: tuple[str, ...], where: str
) -> None:
    place.copy_defs(MODELS.format(port=1))
    place.environment["BATCH_ASSETS_DB_URL"] = "postgresql://user@127.0.0.1:1/name"
    if where == "the url":
        quoted = PASSWORD.replace(":", "%3A").replace("@", "%40").replace("/", "%2F")
        place.environment["BATCH_ASSETS_DB_URL"] = f"postgresql://user:{quoted}@127.0.0.1:1/name"
    else:
        place.environment["BATCH_ASSETS_DB_PASSWORD"] = PASSWORD
    code, told = call(place, *command)
    assert code == (1 if command == ("doctor",) else 3), told
    assert "127.0.0.1" in told and "refused" in told
    assert_no_trace(place, told)


def test_a_setting_that_is_refused_is_named_and_its_neighbours_are_not_quoted(place: Workplace) -> None:
    place.copy_defs(MODELS.format(port=1))
    place.environment["BATCH_ASSETS_DB_PASSWORD"] = PASSWORD  # and no PostgreSQL
    place.environment["BATCH_ASSETS_SENSOR_INTERVAL_S"] = PASSWORD  # pasted into the wrong line
    code, told = call(place, "status")
    assert code == 2
    assert "BATCH_ASSETS_DB_PASSWORD: " in told and "BATCH_ASSETS_SENSOR_INTERVAL_S: " in told
    assert_no_trace(place, told)
