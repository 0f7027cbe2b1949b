"""Asks all probes what is installed, what would be used, what is wrong and what mends it. It changes nothing."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from batch_assets.cli.probes.alerts import probe_alerts, probe_outbox
from batch_assets.cli.probes.findings import Finding, Level, guard
from batch_assets.cli.probes.frames import probe_frames
from batch_assets.cli.probes.installed import probe_installed
from batch_assets.cli.probes.instance import probe_instance
from batch_assets.cli.probes.machine import probe_machine
from batch_assets.cli.probes.models import probe_models, read_api_key
from batch_assets.cli.probes.store import probe_store
from batch_assets.cli.probes.tasks import load_tasks, probe_tasks
from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.engines.models_file import load_models
from batch_assets.settings import Settings, load_settings
from batch_assets.store.database import list_url_secrets
from batch_assets.store.inspection import StoreInspection, open_for_reading


def examine() -> list[Finding]:
    """Return the findings of all probes. Each is guarded: what breaks one doesn't keep the others from telling."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the defs folder too stays as it is
    try:
        return _examine()
    finally:
        sys.dont_write_bytecode = before


def _examine() -> list[Finding]:
    found = guard("installed", probe_installed)
    try:
        settings = load_settings()
    except ConfigError as e:
        wrong = Finding(about="settings", says=str(e), level=Level.WRONG, mend="correct the variable that is named")
        return [*found, wrong, *guard("machine", lambda: probe_machine(None, {}))]
    models: dict[str, ModelEntry] = {}

    def read_models() -> Iterator[Finding]:
        models.update(load_models(settings.defs / "models.yaml"))
        yield Finding(about="models", says=f"{len(models)} in {settings.defs / 'models.yaml'}")

    project, broken = load_tasks(settings)  # first: it makes the packages of task folders known, engines among them
    found += guard("models", read_models)
    secrets = list_secrets(settings, models)
    tasks = [task for task, _ in project.tasks.values()] if project else []
    fallbacks = {task.fallback.model_id for task in tasks if task.fallback}
    used = fallbacks.union(*(task.models for task in tasks)) if project else set(models)
    found += guard("models", lambda: probe_models(settings, models, used, secrets), secrets)
    in_store = guard("store", lambda: probe_store(settings), secrets)

    def probe_with_store(probe: Callable[[StoreInspection | None], Iterable[Finding]]) -> Iterator[Finding]:
        with open_for_reading(settings.store_url) if is_well(in_store) else nullcontext() as store:
            yield from probe(store)

    found += [broken] if broken else []
    if project is not None:
        found += guard("tasks", lambda: probe_with_store(partial(probe_tasks, project)), secrets)
    found += in_store
    found += guard("frames", lambda: probe_with_store(partial(probe_frames, settings)), secrets)
    found += guard("alerts", lambda: probe_alerts(settings), secrets)
    found += guard("alerts", lambda: probe_with_store(probe_outbox), secrets)
    found += guard("dagster", lambda: probe_with_store(partial(probe_instance, settings)), secrets)
    found += guard("machine", lambda: probe_machine(settings, models), secrets)
    return found


def list_secrets(settings: Settings, models: Mapping[str, ModelEntry]) -> list[str]:
    """Return what no finding may show: passwords, addresses of alerts, API keys."""
    found = [settings.db_password.get_secret_value(), *settings.alert_receivers, *map(read_api_key, models.values())]
    urls = [*list_url_secrets(settings.store_url), *list_url_secrets(settings.db_url)]  # of no URL the whole is secret
    return sorted(filter(None, [*found, *urls]), key=len, reverse=True)


def is_well(found: Sequence[Finding]) -> bool:
    """Say whether nothing is wrong."""
    return not any(f.level is Level.WRONG for f in found)
