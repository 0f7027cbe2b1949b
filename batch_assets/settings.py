"""The only reader of the environment. Every setting has a default that works; a wrong one is refused by name."""

from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from batch_assets.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent


class Settings(BaseSettings):
    """Where things live. Each field is read from `BATCH_ASSETS_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix="BATCH_ASSETS_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    home: Path = Path(".batch_assets")
    """All state: the embedded store, frozen frames, Dagster's instance."""

    db_url: str = ""
    """The store, as a SQLAlchemy URL; empty means SQLite under `home`."""

    defs: Path = _PACKAGE / "defs"
    """The folder of task folders, with models.yaml in it."""

    cache_dir: Annotated[Path, Field(validation_alias="BATCH_ASSETS_CACHE")] = (
        platformdirs.user_cache_path("batch_assets") / "models"
    )
    """Converted models, shared by all checkouts. Read from `BATCH_ASSETS_CACHE`."""

    @field_validator("home", "defs", "cache_dir")
    @classmethod
    def _make_absolute(cls, value: Path) -> Path:
        try:
            return value.expanduser().resolve()
        except (RuntimeError, OSError) as e:  # a home folder that nobody has; a loop of links
            raise ValueError(str(e)) from e

    @property
    def store_url(self) -> str:
        """The store's URL, with the embedded default filled in."""
        return self.db_url or f"sqlite:///{self.home / 'store.db'}"

    @property
    def dagster_home(self) -> Path:
        """The absolute folder of Dagster's instance."""
        return self.home / "dagster"

    @property
    def frames_dir(self) -> Path:
        """Where frozen frames lie, one Parquet file per partition."""
        return self.home / "frames"


def load_settings() -> Settings:
    """Read the environment; ConfigError names the variable that is wrong."""
    try:
        return Settings()
    except ValidationError as e:
        problems = "; ".join(f"{_variable(str(d['loc'][-1]))}: {d['msg']}" for d in e.errors())
        raise ConfigError(problems) from e


def _variable(field: str) -> str:
    return field if field.startswith("BATCH_ASSETS_") else f"BATCH_ASSETS_{field.upper()}"
