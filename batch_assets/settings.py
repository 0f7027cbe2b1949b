"""The only reader of the environment. Every setting has a default that works; a wrong one is refused by name."""

import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit

import platformdirs
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from batch_assets.core.errors import ConfigError

POSTGRESQL = "postgresql"
_URL = re.compile(r"(?P<scheme>[\w+]+)://(?:(?P<user>[^:/]*)(?::[^@]*)?@)?(?P<rest>.*)", re.DOTALL)
"""A URL as SQLAlchemy reads it, as far as the password."""
_PACKAGE = Path(__file__).resolve().parent


class Settings(BaseSettings):
    """Where things live. Each field is read from `BATCH_ASSETS_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix="BATCH_ASSETS_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        populate_by_name=True,
        hide_input_in_errors=True,  # a password pasted into the wrong line would be in a code server's traceback
    )

    home: Path = Path(".batch_assets")
    """All state: the embedded store, frozen frames, Dagster's instance."""

    db_url: Annotated[str, Field(repr=False)] = ""
    """Store and Dagster's instance: empty means SQLite under `home`, `postgresql://user@host/name` that database for
    both. Another SQLite file (`sqlite:///…`) is the store alone."""

    db_password: SecretStr = SecretStr("")
    """PostgreSQL's password, if the URL has none; libpq's own PGPASSWORD and ~/.pgpass count too."""

    defs: Path = _PACKAGE / "defs"
    """The folder of task folders, with models.yaml in it."""

    cache_dir: Annotated[Path, Field(validation_alias="BATCH_ASSETS_CACHE")] = (
        platformdirs.user_cache_path("batch_assets") / "models"
    )
    """Converted models, shared by all checkouts. Read from `BATCH_ASSETS_CACHE`."""

    alert_urls: SecretStr = SecretStr("")
    """Where alerts go: apprise URLs with blanks or line ends between them; empty means nowhere."""

    sensor_interval_s: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between two looks of a sensor."""

    ui_url: str = "http://127.0.0.1:3000"
    """Where the web UI is, for the links in alerts."""

    @field_validator("ui_url")
    @classmethod
    def _require_web_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("not a web address, such as https://dagster.example.com")
        return value.rstrip("/")

    @field_validator("db_password")
    @classmethod
    def _check_password(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        url = str(info.data.get("db_url", ""))
        if value.get_secret_value() and not url.startswith(POSTGRESQL):
            raise ValueError("a password is given, but BATCH_ASSETS_DB_URL names no PostgreSQL")
        return value

    @field_validator("home", "defs", "cache_dir")
    @classmethod
    def _make_absolute(cls, value: Path) -> Path:
        try:
            return value.expanduser().resolve()
        except (RuntimeError, OSError) as e:  # a home folder that nobody has; a loop of links
            raise ValueError(str(e)) from e

    @property
    def store_url(self) -> str:
        """The store's URL, with the embedded default and the password filled in: never to be printed."""
        url = self.db_url or f"sqlite:///{self.home / 'store.db'}"
        password = self.db_password.get_secret_value()
        return fill_in_password(url, password) if password else url

    @property
    def is_postgresql(self) -> bool:
        """Whether store and instance lie in PostgreSQL."""
        return self.db_url.startswith(POSTGRESQL)

    @property
    def alert_receivers(self) -> list[str]:
        """The apprise URLs, each once, in their order. They hold secrets."""
        return list(dict.fromkeys(self.alert_urls.get_secret_value().split()))

    @property
    def dagster_home(self) -> Path:
        """The absolute folder of Dagster's instance."""
        return self.home / "dagster"

    @property
    def frames_dir(self) -> Path:
        """Where frozen frames lie, one Parquet file per partition."""
        return self.home / "frames"


def fill_in_password(url: str, password: str) -> str:
    """Return a URL with its password replaced. What is no URL stays: whoever opens it says what is wrong with it."""
    found = _URL.fullmatch(url)
    if found is None:
        return url
    return f"{found['scheme']}://{found['user'] or ''}:{quote(password, safe=' +')}@{found['rest']}"


def load_settings() -> Settings:
    """Read the environment; ConfigError names the variable that is wrong."""
    try:
        return Settings()
    except ValidationError as e:
        problems = "; ".join(f"{_variable(str(d['loc'][-1]))}: {d['msg']}" for d in e.errors())
        raise ConfigError(problems) from e


def read_variable(name: str) -> str:
    """Return a variable that a task names, such as a database with its password; ConfigError if it isn't set."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {name} is not set, and a task's source names it")
    return value


def _variable(field: str) -> str:
    return field if field.startswith("BATCH_ASSETS_") else f"BATCH_ASSETS_{field.upper()}"
