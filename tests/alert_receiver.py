"""A webhook for tests: it takes what apprise posts to `json://`, keeps all messages, and can refuse them or hang.

In a test, `with AlertReceiver() as receiver`. As a process of its own, `python alert_receiver.py PORT LOG`, which
outlives what it hears of: LOG gets one JSON line per message.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class AlertReceiver:
    """Takes messages on 127.0.0.1, at a path that is a secret, as a webhook's is."""

    def __init__(self, port: int = 0, *, log: Path | None = None, secret: str = "s3cr3t-hook-path") -> None:
        self.messages: list[dict[str, Any]] = []
        """Each message that was taken: `title`, `message`, `type`."""
        self.refused = 0
        self.status = 200
        """What it answers; all but 2xx means that the message wasn't taken."""
        self.released = threading.Event()
        """Cleared, it takes the request and answers nothing until it is set."""
        self.released.set()
        self.heard = threading.Event()
        """Set once a request has come in."""
        self.secret = secret
        self._log = log
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _make_handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """What to set BATCH_ASSETS_ALERT_URLS to."""
        return f"json://127.0.0.1:{self.port}/{self.secret}"

    @property
    def titles(self) -> list[str]:
        """The titles of what it took, in order."""
        return [m["title"] for m in self.messages]

    @property
    def lines(self) -> list[str]:
        """The lines of all that it took, in order."""
        return [line for m in self.messages for line in m["message"].splitlines()]

    def take(self, body: bytes) -> int:
        """Hear one request; return the status to answer."""
        self.heard.set()
        self.released.wait()
        with self._lock:
            if not 200 <= self.status < 300:
                self.refused += 1
                return self.status
            message = json.loads(body)
            self.messages.append(message)
            if self._log is not None:
                with self._log.open("a", encoding="utf-8") as f:
                    f.write(json.dumps(message) + "\n")
            return self.status

    def start(self) -> Self:
        """Listen, in a thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Listen no more; the port then refuses connections."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        """Listen."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self.stop()


def _make_handler(receiver: AlertReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.take(body) if self.path == f"/{receiver.secret}" else 404
            try:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # whoever asked has gone: this receiver hung
                return

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


if __name__ == "__main__":
    AlertReceiver(int(sys.argv[1]), log=Path(sys.argv[2])).start()
    threading.Event().wait()
