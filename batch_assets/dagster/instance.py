"""Dagster's instance in its home: its dagster.yaml, made from the template, and opening it."""

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any, cast

import yaml
from dagster import DagsterInstance, DagsterInvalidConfigError

from batch_assets.core.errors import ConfigError
from batch_assets.settings import Settings
from batch_assets.store.database import parse_url

INSTANCE_URL = "BATCH_ASSETS_DAGSTER_DB_URL"
"""The environment variable by which Dagster's own processes learn where the instance lies, password included."""
_POSTGRESQL_STORAGE = f"""\
# `batch-assets` sets this variable for whatever it starts. Who starts dagster-daemon or dagster-webserver by hand sets
# it to postgresql+psycopg2://user:password@host/name, and DAGSTER_HOME to this folder.
storage:
  postgres:
    postgres_url:
      env: {INSTANCE_URL}
"""
_SEAL = "# Written by batch-assets; once you change this file, it is yours. Its checksum: "
_UNSEALED = {
    "b8e1b695cc5c2f1f736dd4fbac8dfc01f253b54364b029afaf1c4456beb25f4a",
    "0e7e0f6b182b1773e327e8f5d1d8975ccf5f13249aab1d93449dbdc4f6e9ea48",
}
"""The files of versions that wrote no checksum."""


def install_instance(settings: Settings) -> Path:
    """Put the template dagster.yaml, with the storage that the settings choose, into the instance's home; return that.

    A file that someone has changed there is left alone. Raises ConfigError if it keeps the history elsewhere than the
    settings say, or if the home can't be written.
    """
    home = settings.dagster_home
    target = home / "dagster.yaml"
    wanted = render_instance_file(settings)
    try:
        home.mkdir(parents=True, exist_ok=True)
        found = target.read_text(encoding="utf-8") if target.exists() else ""
        if not found or _is_unchanged(found):
            if found != wanted:
                temporary = target.with_suffix(f".{os.getpid()}")
                temporary.write_text(wanted, encoding="utf-8")
                temporary.replace(target)
            return home
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"BATCH_ASSETS_HOME: {target} can't be used: {e}") from e
    _require_storage(found, target, settings)
    return home


def render_instance_file(settings: Settings) -> str:
    """Return the dagster.yaml that the settings ask for."""
    template = _find_template().read_text(encoding="utf-8")
    body = f"{template}\n{_POSTGRESQL_STORAGE}" if settings.is_postgresql else template
    return f"{_SEAL}{_digest(body)}\n{body}"


def _is_unchanged(text: str) -> bool:
    """Say whether a dagster.yaml is as some version of us has written it."""
    first, _, body = text.partition("\n")
    return first == f"{_SEAL}{_digest(body)}" or _digest(text) in _UNSEALED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _require_storage(text: str, file: Path, settings: Settings) -> None:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(f"{file}: not YAML: {e}; delete it, and it is made anew") from e
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: not a mapping of settings; delete it, and it is made anew")
    settings_there = cast(dict[str, Any], content)
    if {"run_storage", "event_log_storage", "schedule_storage"} & settings_there.keys():
        return
    storage = cast(dict[str, Any], settings_there.get("storage") or {})
    if settings.is_postgresql and storage.keys() <= {"sqlite"}:
        raise ConfigError(
            f"BATCH_ASSETS_DB_URL names PostgreSQL, but {file}, which somebody changed, keeps Dagster's history in "
            f"SQLite: delete the file, or let it end with\n{_POSTGRESQL_STORAGE}"
        )
    if not settings.is_postgresql and "postgres" in storage:
        raise ConfigError(
            f"BATCH_ASSETS_DB_URL: {file}, which somebody changed, keeps Dagster's history in PostgreSQL, and the "
            f"setting doesn't name it: set it to postgresql://user@host/name, or delete the file"
        )


def _find_template() -> Path:
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "dagster.yaml", package.parent / "dagster.yaml"):
        if candidate.exists():
            return candidate
    raise ConfigError("dagster.yaml is missing from the installation: reinstall batch-assets")


def open_instance(settings: Settings) -> DagsterInstance:
    """Open Dagster's instance, the same that the web UI shows; child processes find it by the environment.

    ConfigError names the dagster.yaml that Dagster refuses.
    """
    home = install_instance(settings)
    os.environ["DAGSTER_HOME"] = str(home)
    if settings.is_postgresql:
        os.environ[INSTANCE_URL] = parse_url(settings.store_url).render_as_string(hide_password=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return DagsterInstance.from_config(str(home))
        except DagsterInvalidConfigError as e:
            raise ConfigError(f"{home / 'dagster.yaml'}: {e}") from e
