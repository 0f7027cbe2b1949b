"""One `up` serves a home, and one a PostgreSQL instance: the second is refused with the pid of the first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from batch_assets.cli.webui import hold_database, hold_home
from batch_assets.core.errors import ConfigError
from batch_assets.settings import Settings

HOLD = """
import sys, time
from pathlib import Path
from batch_assets.cli.webui import hold_home
from batch_assets.settings import Settings

with hold_home(Settings(home=Path(sys.argv[1]), db_url="")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_up_on_one_home_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, db_url="")
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"pid {first.pid}\\) serves {tmp_path}"), hold_home(settings):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    with hold_home(settings), hold_home(Settings(home=tmp_path / "another", db_url="")):
        pass  # who was killed holds nothing


def test_a_second_up_on_one_database_is_refused_even_from_another_home(tmp_path: Path, pg_store: URL) -> None:
    settings = Settings(
        home=tmp_path, db_url=pg_store.set(drivername="postgresql").render_as_string(hide_password=False)
    )
    with hold_database(settings):
        with pytest.raises(ConfigError, match=f"pid {os.getpid()} on ") as refused, hold_database(settings):
            pass
        assert "***" in str(refused.value) or "@" not in str(refused.value)
    with hold_database(settings):
        pass
