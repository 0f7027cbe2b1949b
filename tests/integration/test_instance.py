"""Dagster's instance: one setting puts it beside the store, and what a person changed in its dagster.yaml stays."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
import yaml
from dagster import DagsterInstance
from sqlalchemy.engine import URL, make_url

from batch_assets.core.errors import ConfigError, StoreError
from batch_assets.dagster.dead_runs import PID_TAG, RUN_TAG
from batch_assets.dagster.instance import INSTANCE_URL, install_instance, open_instance
from batch_assets.dagster.platform_resource import build_platform_resource
from batch_assets.settings import Settings, load_settings
from batch_assets.store.database import open_database

PG = Settings(db_url="postgresql://user@host/name")
TEMPLATE = Path(__file__).parent.parent.parent / "dagster.yaml"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DAGSTER_HOME", INSTANCE_URL, "BATCH_ASSETS_DB_URL", "BATCH_ASSETS_DB_PASSWORD"):
        monkeypatch.setenv(name, "")  # so that what a test sets there is taken back
        monkeypatch.delenv(name)


@pytest.fixture
def settings(empty_store_url: str, tmp_path: Path) -> Settings:
    """SQLite as it is by default, and a PostgreSQL database of one's own."""
    return Settings(home=tmp_path / "home", db_url=empty_store_url if "postgresql" in empty_store_url else "")


@dg.asset(required_resource_keys={"platform"})
def an_asset() -> None:
    """Do nothing."""


@pytest.fixture
def instance(settings: Settings) -> Iterator[DagsterInstance]:
    open_database(settings.store_url).close()
    with open_instance(settings) as found:
        yield found


def test_store_and_instance_lie_in_the_same_place(instance: DagsterInstance, settings: Settings) -> None:
    kinds = {type(s).__name__ for s in (instance.run_storage, instance.event_log_storage, instance.schedule_storage)}
    if settings.is_postgresql:
        assert all(k.startswith("Postgres") for k in kinds), kinds
        assert not list(settings.home.rglob("*.db"))
    else:
        assert all("Sqlite" in k for k in kinds), kinds
        assert list(settings.dagster_home.rglob("*.db"))
    open_database(settings.store_url).close()  # Dagster's revision beside ours troubles neither
    instance.add_dynamic_partitions("t__batch", ["b1"])
    with open_instance(settings) as again:
        assert list(again.get_dynamic_partitions("t__batch")) == ["b1"]


def test_the_template_is_taken_as_it_is_meant(instance: DagsterInstance) -> None:
    assert instance.run_retries_max_retries == 3
    assert instance.run_retries_retry_on_asset_or_op_failure is False
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_resume_run_attempts == 0
    assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] == 10
    assert instance.global_op_concurrency_default_limit == 1
    concurrency = instance.get_concurrency_config()
    assert concurrency.pool_config.pool_granularity is not None
    assert concurrency.pool_config.pool_granularity.value == "op"
    assert concurrency.pool_config.op_granularity_run_buffer == 0
    assert concurrency.run_queue_config is not None
    assert concurrency.run_queue_config.max_concurrent_runs == 4
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled
    assert instance.get_settings("sensors") == {"use_threads": True, "num_workers": 4}


def test_a_run_that_opens_the_platform_is_tagged_with_its_process(
    instance: DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(settings.home))
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", settings.db_url)
    result = dg.materialize([an_asset], instance=instance, resources={"platform": build_platform_resource({})})
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[RUN_TAG] == run.run_id
    assert run.tags[PID_TAG] == str(os.getpid())


@pytest.mark.parametrize("empty_store_url", ["postgresql"], indirect=True)
def test_another_process_finds_a_postgresql_instance_by_the_environment(
    instance: DagsterInstance, settings: Settings
) -> None:
    instance.add_dynamic_partitions("t__batch", ["b1"])
    code = "import dagster as dg; print(dg.DagsterInstance.get().get_dynamic_partitions('t__batch'))"
    child = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(child, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['b1']"
    environment = {k: v for k, v in os.environ.items() if k != INSTANCE_URL}
    done = subprocess.run(child, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode != 0
    assert INSTANCE_URL in done.stderr, "who starts Dagster by hand is told what is missing"


@pytest.fixture
def guarded_url(pg_server: URL) -> Iterator[str]:
    """Yield the URL of a user whom the server asks for a password."""
    admin = sa.create_engine(pg_server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        file = Path(str(connection.exec_driver_sql("SHOW hba_file").scalar()))
        if not os.access(file, os.W_OK):
            pytest.skip("the rules of this PostgreSQL can't be changed from here")
        rules = file.read_text()
        file.write_text(f"local all guarded scram-sha-256\nhost all guarded all scram-sha-256\n{rules}")
        connection.exec_driver_sql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 's3:cr@t'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        connection.exec_driver_sql("CREATE DATABASE guarded")
    try:
        yield pg_server._replace(username="guarded", database="guarded", password=None).render_as_string()
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP DATABASE guarded WITH (FORCE)")
            connection.exec_driver_sql("DROP ROLE guarded")
            file.write_text(rules)
            connection.exec_driver_sql("SELECT pg_reload_conf()")


def test_the_password_opens_store_and_instance_and_without_it_neither_opens(
    guarded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path))
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", guarded_url)
    monkeypatch.setenv("BATCH_ASSETS_DB_PASSWORD", "s3:cr@t")
    open_database(load_settings().store_url).close()
    with open_instance(load_settings()) as instance:
        assert instance.get_dynamic_partitions("t__batch") == []
    monkeypatch.setenv("BATCH_ASSETS_DB_PASSWORD", "wr0ng")
    with pytest.raises(StoreError, match="BATCH_ASSETS_DB_URL: .* password authentication failed") as refused:
        open_database(load_settings().store_url)
    assert "wr0ng" not in str(refused.value)
    monkeypatch.delenv("BATCH_ASSETS_DB_PASSWORD")
    with pytest.raises(StoreError, match="no password supplied; BATCH_ASSETS_DB_PASSWORD gives a password"):
        open_database(load_settings().store_url)
    monkeypatch.setenv("PGPASSWORD", "s3:cr@t")
    open_database(load_settings().store_url).close()


def test_no_password_reaches_the_file(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, db_url="postgresql://user:s3cret@host/name")
    text = (install_instance(settings) / "dagster.yaml").read_text()
    assert yaml.safe_load(text)["storage"] == {"postgres": {"postgres_url": {"env": INSTANCE_URL}}}
    assert "s3cret" not in text


def test_a_url_with_a_password_reaches_dagster_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DagsterInstance, "from_config", lambda _home: None)
    open_instance(Settings(home=tmp_path, db_url="postgresql://user@host/name", db_password="s3:cret"))  # type: ignore[arg-type]
    found = make_url(os.environ[INSTANCE_URL])
    assert (found.drivername, found.password, found.database) == ("postgresql+psycopg2", "s3:cret", "name")
    assert found.query == {"connect_timeout": "5"}


def install(home: Path, db_url: str = "") -> Path:
    return install_instance(Settings(home=home, db_url=db_url)) / "dagster.yaml"


def test_an_unchanged_file_follows_the_setting_and_the_template(tmp_path: Path) -> None:
    file = install(tmp_path)
    first = file.read_text()
    assert "storage" not in yaml.safe_load(first)
    assert yaml.safe_load(first) == yaml.safe_load(TEMPLATE.read_text())
    assert "storage" in yaml.safe_load(install(tmp_path, PG.db_url).read_text())
    assert install(tmp_path).read_text() == first
    head, _, body = first.partition("\n")
    from batch_assets.dagster import instance as instance_module

    old = body.replace("max_retries: 3", "max_retries: 1")
    file.write_text(f"{head[: -len(instance_module._digest(body))]}{instance_module._digest(old)}\n{old}")
    assert install(tmp_path).read_text() == first, "a file of an earlier version is brought up to date"


def test_a_file_of_a_version_that_wrote_no_checksum_is_brought_up_to_date(tmp_path: Path) -> None:
    file = install(tmp_path)
    wanted = file.read_text()
    file.write_text(OLD_TEMPLATE)
    assert install(tmp_path).read_text() == wanted


@pytest.mark.parametrize("change", ["max_concurrent_runs: 9", "max_concurrent_runs: 1"])
def test_a_file_that_somebody_changed_is_left_alone(tmp_path: Path, change: str) -> None:
    file = install(tmp_path)
    changed = file.read_text().replace("max_concurrent_runs: 4", change)
    file.write_text(changed)
    assert install(tmp_path).read_text() == changed
    with open_instance(Settings(home=tmp_path)) as instance:
        config = instance.get_concurrency_config().run_queue_config
        assert config is not None and f"max_concurrent_runs: {config.max_concurrent_runs}" == change


def test_a_changed_file_of_the_other_kind_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    file = install(tmp_path)
    changed = file.read_text().replace("max_retries: 3", "max_retries: 5")
    file.write_text(changed)
    with pytest.raises(ConfigError, match=r"^BATCH_ASSETS_DB_URL .*dagster\.yaml.* SQLite") as refused:
        install(tmp_path, PG.db_url)
    assert file.read_text() == changed
    mend = str(refused.value).partition("let it end with\n")[2]
    file.write_text(changed + mend)
    assert install(tmp_path, PG.db_url).read_text() == changed + mend, "the advice was right"
    with pytest.raises(ConfigError, match=r"^BATCH_ASSETS_DB_URL: .*dagster\.yaml.* PostgreSQL"):
        install(tmp_path)


@pytest.mark.parametrize(
    "storage",
    ["storage: {custom: {module: m, class: C, config: {}}}", "run_storage: {module: m, class: C, config: {}}"],
)
def test_a_storage_that_somebody_chose_on_purpose_is_theirs(tmp_path: Path, storage: str) -> None:
    file = tmp_path / "dagster" / "dagster.yaml"
    file.parent.mkdir()
    file.write_text(storage)
    assert install(tmp_path).read_text() == install(tmp_path, PG.db_url).read_text() == storage


@pytest.mark.parametrize("text", ["a: [", "- a list", "just words", "concurrency: {no_such: 1}"])
def test_a_broken_file_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = install(tmp_path)
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"dagster\.yaml"):
        open_instance(Settings(home=tmp_path))


def test_a_home_that_cannot_be_written_is_refused_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="^BATCH_ASSETS_HOME: "):
        install(tmp_path / "file")


def test_settings_from_the_environment_choose_postgresql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path))
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", PG.db_url)
    assert "storage" in yaml.safe_load((install_instance(load_settings()) / "dagster.yaml").read_text())


OLD_TEMPLATE = """\
# Dagster's instance, the template: `batch-assets` installs it as dagster.yaml of the instance's home, where it may be
# changed. Runs, events and schedules lie there too, in SQLite.
nux:
  enabled: false

telemetry:
  enabled: false

concurrency:
  runs:
    max_concurrent_runs: 4
  pools:
    default_limit: 1
    granularity: op

run_retries:
  enabled: true
  max_retries: 0

run_monitoring:
  enabled: true
  poll_interval_seconds: 30
  free_slots_after_run_end_seconds: 30

retention:
  sensor:
    purge_after_days:
      skipped: 3
      failure: 30
      success: 30
"""
