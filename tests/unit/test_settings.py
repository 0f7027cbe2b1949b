"""Settings: defaults that work, one variable per field, and a wrong one refused by its name."""

import os
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import characters, text

from batch_assets.core.errors import ConfigError
from batch_assets.settings import Settings, fill_in_password, load_settings
from batch_assets.store.database import parse_url


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("BATCH_ASSETS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_without_any_variable_all_state_is_under_one_folder_here(tmp_path: Path) -> None:
    found = load_settings()
    assert found.home == tmp_path / ".batch_assets"
    assert found.dagster_home.parent == found.frames_dir.parent == found.home
    assert found.store_url == f"sqlite:///{found.home}/store.db"
    assert (found.defs / "models.yaml").is_file()
    assert found.cache_dir.is_absolute()


@pytest.mark.parametrize(
    ("variable", "field"),
    [("BATCH_ASSETS_HOME", "home"), ("BATCH_ASSETS_DEFS", "defs"), ("BATCH_ASSETS_CACHE", "cache_dir")],
)
def test_each_folder_has_its_variable_and_becomes_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, field: str
) -> None:
    monkeypatch.setenv(variable, "some/../where")
    assert getattr(load_settings(), field) == tmp_path / "where"
    monkeypatch.setenv(variable, "~/where")
    assert getattr(load_settings(), field) == Path.home() / "where"


def test_a_store_elsewhere_is_named_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", "postgresql://x/y")
    assert load_settings().store_url == "postgresql://x/y"


PG = "postgresql://user@host/name"


@pytest.mark.parametrize(
    ("url", "password", "store_url"),
    [
        (PG, "", PG),
        (PG, "s3c:r/t@", "postgresql://user:s3c%3Ar%2Ft%40@host/name"),
        ("postgresql://user:old@host/name", "", "postgresql://user:old@host/name"),
        ("postgresql://user:old@host/name", "new", "postgresql://user:new@host/name"),
        ("postgresql+psycopg2://user@/name?host=/run/pg", "p", "postgresql+psycopg2://user:p@/name?host=/run/pg"),
        ("postgresql://user%40corp:old@host/name", "a b+c?#é", "postgresql://user%40corp:a b+c%3F%23%C3%A9@host/name"),
        ("postgresql:///name?user=u@corp", "p", "postgresql://:p@/name?user=u@corp"),
        ("postgresql://[::1]:5433/name", "p", "postgresql://:p@[::1]:5433/name"),
        ("postgresql:nonsense", "p", "postgresql:nonsense"),
    ],
)
def test_the_password_comes_from_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, url: str, password: str, store_url: str
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", url)
    monkeypatch.setenv("BATCH_ASSETS_DB_PASSWORD", password)
    found = load_settings()
    assert found.store_url == store_url
    assert found.is_postgresql
    assert "s3c" not in repr(found)


@pytest.mark.parametrize("user", ["", "user", "user:old", "user%40corp:o%2Fl", ":old"])
@pytest.mark.parametrize("rest", ["host/name", "host:5433/name", "/name?host=/run/pg", "[::1]:5433/name", "h/n?a=b@c"])
@given(password=text(characters(exclude_categories=["Cs"]), min_size=1))
def test_a_password_replaces_that_of_the_url_and_nothing_else(user: str, rest: str, password: str) -> None:
    url = f"postgresql://{user}@{rest}" if user else f"postgresql://{rest}"
    found, before = parse_url(fill_in_password(url, password)), parse_url(url)
    assert found.password == password
    assert (found.username or None) == (before.username or None)
    assert (found.host, found.port, found.database) == (before.host, before.port, before.database)
    assert (found.drivername, found.query) == (before.drivername, before.query)


@pytest.mark.parametrize("url", ["", "sqlite:////tmp/store.db"])
def test_a_password_for_no_postgresql_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", url)
    monkeypatch.setenv("BATCH_ASSETS_DB_PASSWORD", "s3cret")
    with pytest.raises(ConfigError, match="^BATCH_ASSETS_DB_PASSWORD: .*BATCH_ASSETS_DB_URL") as refused:
        load_settings()
    assert "s3cret" not in str(refused.value)


def test_sqlite_is_what_there_is_without_a_url() -> None:
    assert not load_settings().is_postgresql


@pytest.mark.parametrize(
    "variable", ["BATCH_ASSETS_HOME", "BATCH_ASSETS_DEFS", "BATCH_ASSETS_CACHE", "BATCH_ASSETS_DB_URL"]
)
def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    before = load_settings()
    monkeypatch.setenv(variable, "")
    assert load_settings() == before


@pytest.mark.parametrize("variable", ["HOME_", "CACHE_DIR", "cache_dir", "DB_URL", "DEFS", "BATCH_ASSETS_NONSENSE"])
def test_variables_of_others_do_not_matter(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    before = load_settings()
    monkeypatch.setenv(variable, "/elsewhere")
    assert load_settings() == before


@pytest.mark.parametrize("variable", ["BATCH_ASSETS_HOME", "BATCH_ASSETS_DEFS", "BATCH_ASSETS_CACHE"])
def test_a_folder_that_cannot_be_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "~no_such_user_here/x")
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        load_settings()


def test_code_may_name_every_field(tmp_path: Path) -> None:
    made = Settings(home=tmp_path / "h", db_url="sqlite://", defs=tmp_path / "d", cache_dir=tmp_path / "c")
    assert (made.home, made.store_url, made.defs, made.cache_dir) == (
        tmp_path / "h",
        "sqlite://",
        tmp_path / "d",
        tmp_path / "c",
    )


def test_alerts_go_nowhere_and_links_to_the_local_web_ui_unless_set() -> None:
    assert load_settings().alert_receivers == []
    assert load_settings().ui_url == "http://127.0.0.1:3000"


def test_alert_urls_are_parted_by_blanks_and_lines_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_ASSETS_ALERT_URLS", "  json://h/s3cr3t\n\nslack://a/b/c  json://h/s3cr3t mailto://x ")
    found = load_settings()
    assert found.alert_receivers == ["json://h/s3cr3t", "slack://a/b/c", "mailto://x"]
    assert "s3cr3t" not in f"{found!r}{found}{found.model_dump()}"


@pytest.mark.parametrize("base", ["https://dagster.example.com/ui", "https://dagster.example.com/ui//"])
def test_the_web_uis_address_can_be_set(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("BATCH_ASSETS_UI_URL", base)
    assert load_settings().ui_url == "https://dagster.example.com/ui"


@pytest.mark.parametrize("base", ["dagster.example.com", "ftp://x", "http://", "http://[", "3000"])
def test_what_is_no_web_address_is_refused(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("BATCH_ASSETS_UI_URL", base)
    with pytest.raises(ConfigError, match="^BATCH_ASSETS_UI_URL: "):
        load_settings()


def test_what_a_refused_variable_holds_is_in_no_message_or_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_ASSETS_SENSOR_INTERVAL_S", "s3cret, pasted into the wrong line")
    with pytest.raises(ConfigError, match="^BATCH_ASSETS_SENSOR_INTERVAL_S: ") as refused:
        load_settings()
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))
