"""Settings that make no sense are refused where they enter, by the name of the field: nothing runs on them."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from factories import write_prompt

from batch_assets.cli.main import cli
from batch_assets.cli.terminal import quiet
from batch_assets.core.errors import ConfigError
from batch_assets.dagster.project import load_project
from batch_assets.engines.models_file import load_models
from batch_assets.settings import Settings, load_settings
from batch_assets.store.database import open_database

MODELS = "m1: {weights: w, engine: fake}\nm2: {weights: w, engine: fake}\n"
PYTHON = """
import dagster as dg
from pydantic import BaseModel

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.core.attempts import RetryPolicy
from batch_assets.core.tasks import Nightly, Thresholds
from batch_assets.sources.files import FileSource


class Answer(BaseModel):
    label: str


@dg.component_instance
def t(_context) -> LlmTask:
    fields = dict(source=FileSource("*.csv"), models=["m1"])
    return LlmTask(name="t", output=Answer, **(fields | dict({fields})))
"""
YAML = """
type: batch_assets.dagster.llm_task.LlmTask
attributes:
  name: t
  source: {files: "*.csv"}
  output: batch_assets.defs.ticket_triage.task.Triage
"""


@pytest.mark.parametrize(
    "wrong",
    [
        "max_in_flight: 0",
        "max_in_flight: -1",
        "max_in_flight: 2.5",
        "max_in_flight: .inf",
        "timeout_s: 0",
        "timeout_s: -1",
        "timeout_s: .inf",
        "timeout_s: .nan",
        "timeout_s: soon",
        "outage_s: -1",
        "outage_s: .inf",
        "outage_s: .nan",
        "price_per_gpu_hour: -0.01",
        "price_per_gpu_hour: .inf",
        "price_per_gpu_hour: .nan",
        "pool: ''",
        "max_inflight: 8",
        "sampling: {temperature: -1}",
        "sampling: {temperature: .nan}",
        "sampling: {temperature: .inf}",
        "sampling: {top_p: 2}",
        "sampling: {max_tokens: 0}",
        "sampling: {max_token: 1}",
        "sampling: {max_tokens: 99999999999}",
        "sampling: {seed: 99999999999999999999}",
        "sampling: {seed: true}",
        "max_in_flight: yes",
        "timeout_s: true",
        "api_key_env: sk-1234",
    ],
)
def test_an_entry_of_models_yaml_is_refused_by_file_entry_and_field(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(f"m: {{weights: w, engine: fake, {wrong}}}")
    field = ".".join(re.findall(r"(\w+):", wrong))
    with pytest.raises(ConfigError, match=re.escape(f"{path}: m: {field}: ")):
        load_models(path)


def load_task(folder: Path, name: str, text: str) -> None:
    defs = folder / f"defs_{abs(hash(text))}"  # modules of a defs folder stay loaded for the life of a process
    write_prompt(defs / "t" / "prompts", "v1", "{{ text }}")
    for path, words in (("__init__.py", ""), ("models.yaml", MODELS), ("t/__init__.py", ""), (f"t/{name}", text)):
        (defs / path).write_text(words)
    load_project(Settings(home=folder / "home", defs=defs))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("thresholds=Thresholds(max_error_share=2)", "max_error_share"),
        ("thresholds=Thresholds(max_invalid_share=-0.1)", "max_invalid_share"),
        ("thresholds=Thresholds(max_label_shift=float('nan'))", "max_label_shift"),
        ("thresholds=Thresholds(min_records=0)", "min_records"),
        ("thresholds=Thresholds(max_eror_share=0.1)", "max_eror_share"),
        ("retry=RetryPolicy(max_attempts=0)", "max_attempts"),
        ("retry=RetryPolicy(max_attempts=11)", "max_attempts"),
        ("retry=RetryPolicy(base_s=-1)", "base_s"),
        ("retry=RetryPolicy(cap_s=float('inf'))", "cap_s"),
        ("nightly=Nightly(at='25:00')", "at"),
        ("nightly=Nightly(timezone='Mars')", "timezone"),
        ("qa_sample_size=-1", "task t: qa_sample_size"),
        ("models=[]", "task t: models"),
        ("models=['m1', 'm2', 'm1']", "task t: models: m1 comes twice"),
        ("models=['m9']", "task t: models: ['m9']"),
        ("source=FileSource('*.csv', settle_s=-1)", "settle_s"),
        ("source=FileSource('*.csv', settle_s=float('nan'))", "settle_s"),
        ("source=FileSource('*.csv', delimiter='')", "delimiter"),
        ("source=FileSource('')", "source ''"),
        ("required_fields='text'", "task t: required_fields"),
        ("required_fields=['text', 'txet']", "task t: required_fields: txet"),
        ("owners=['x']", "Invalid owner 'x'"),
        ("qa_sampel_size=1", "qa_sampel_size"),
        ("ladder=3", "task t: ladder: expected Ladder(…)"),
        ("retry=3", "task t: retry: expected RetryPolicy(…)"),
        ("thresholds=0.1", "task t: thresholds"),
        ("nightly='02:00'", "task t: nightly"),
    ],
)
def test_a_field_of_a_task_in_python_is_refused_by_its_name(tmp_path: Path, wrong: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        load_task(tmp_path, "task.py", PYTHON.replace("{fields}", wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("import dagster as dg", "import dagstre as dg", "line 2: No module named 'dagstre'"),
        ("output=Answer", "output=Anwser", "line 18: name 'Anwser' is not defined"),
        ("@dg.component_instance", "@dg.component_instanze", "line 15: module"),
        ("label: str", "label str", "line 12: invalid syntax"),
    ],
)
def test_a_slip_in_a_tasks_python_is_told_by_file_and_line(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    text = PYTHON.replace("{fields}", "")
    assert right in text
    with pytest.raises(ConfigError, match=re.escape(f"task.py, {told}")):
        load_task(tmp_path, "task.py", text.replace(right, wrong))


def test_a_servers_address_without_its_scheme_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("m: {weights: w, engine: openai, base_url: '127.0.0.1:8000/v1'}")
    with pytest.raises(ConfigError, match="models.yaml: m: base_url: an address that begins with http://"):
        load_models(tmp_path / "models.yaml")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("models: [m1]\n  thresholds: {max_error_share: 2}", "thresholds: max_error_share"),
        ("models: [m1]\n  thresholds: {max_error_share: .nan}", "thresholds: max_error_share"),
        ("models: [m1]\n  thresholds: {min_records: 0}", "thresholds: min_records"),
        ("models: [m1]\n  thresholds: {max_eror_share: 0.1}", "thresholds: max_eror_share"),
        ("models: [m1]\n  retry: {max_attempts: 0}", "retry: max_attempts"),
        ("models: [m1]\n  retry: {base_s: -1}", "retry: base_s"),
        ("models: [m1]\n  retry: {cap_s: .inf}", "retry: cap_s"),
        ("models: [m1]\n  thresholds: {min_records: yes}", "thresholds: min_records"),
        ("models: [m1]\n  ladder: {steps: true}", "ladder: steps"),
        ("models: [m1]\n  nightly: {at: 2am}", "nightly: at"),
        ("models: [m1]\n  models: [m2]", "defs.yaml: not YAML: the key 'models' comes twice"),
        ("models: [m1]\n  retry: {max_attempts: 1, max_attempts: 2}", "the key 'max_attempts' comes twice"),
        ("models: [m1", "defs.yaml: not YAML: "),
        ("models: [m1]\n  owners: [x]", "Invalid owner 'x'"),
        ("models: [m1]\n  required_fields: text", "task t: required_fields"),
        ("models: [m1]\n  required_fields: [txet]", "task t: required_fields: txet"),
        ("models: [m1]\n  description: '{{ x'", "attributes.description"),
        ("models: [m1]\n  qa_sample_size: -1", "task t: qa_sample_size"),
        ("models: [m1]\n  qa_sample_size: many", "qa_sample_size"),
        ("models: []", "task t: models"),
        ("models: [m1, m1]", "task t: models: m1 comes twice"),
        ("models: [m1]\n  fallback: m9", "task t: models: ['m9']"),
        ("models: [m1]\n  fallback: m1", "task t: fallback: m1"),
        ("models: [m1]\n  unknown: 1", "unknown"),
    ],
)
def test_a_field_of_a_task_in_yaml_is_refused_by_its_name(tmp_path: Path, wrong: str, named: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_task(tmp_path, "defs.yaml", f"{YAML}  {wrong}\n")
    assert named in str(told.value)


@pytest.mark.parametrize(
    "text", ["", "type: x\n", "- 1\n", "\0", "type: &a [*a]\n", "type: !!python/name:os.system x\n"]
)
def test_a_file_that_declares_no_task_is_refused_and_not_told_as_a_trace(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_task(tmp_path, "defs.yaml", text)


@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        ("BATCH_ASSETS_SENSOR_INTERVAL_S", "0"),
        ("BATCH_ASSETS_SENSOR_INTERVAL_S", "-5"),
        ("BATCH_ASSETS_SENSOR_INTERVAL_S", "inf"),
        ("BATCH_ASSETS_SENSOR_INTERVAL_S", "2.5"),
        ("BATCH_ASSETS_SENSOR_INTERVAL_S", "often"),
        ("BATCH_ASSETS_UI_URL", "ftp://x"),
        ("BATCH_ASSETS_HOME", "~no_such_user_here/x"),
        ("BATCH_ASSETS_DB_PASSWORD", "for no PostgreSQL"),
        ("BATCH_ASSETS_DB_URL", "nonsense"),
        ("BATCH_ASSETS_DB_URL", "mysql://user@host/name"),
        ("BATCH_ASSETS_DB_URL", "postgresql://user@host:port/name"),
        ("BATCH_ASSETS_DB_URL", "postgresql://user@host"),
        ("BATCH_ASSETS_DB_URL", "sqlite://"),
    ],
)
def test_a_variable_of_the_environment_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, wrong: str
) -> None:
    for name in [n for n in os.environ if n.startswith("BATCH_ASSETS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, wrong)
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        open_database(load_settings().store_url)


def test_a_home_that_can_be_no_folder_is_refused_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="^BATCH_ASSETS_HOME: .*logs: the folder can't be made"):
        quiet(tmp_path / "file" / "logs" / "run.log").__enter__()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["up", "--port", "0"], "'--port'"),
        (["up", "--port", "65536"], "'--port'"),
        (["up", "--port", "-1"], "'--port'"),
        (["up", "--port", "web"], "'--port'"),
        (["run", "t", "--retry", "sometimes"], "'--retry'"),
        (["export", "t", "--format", "xls"], "'--format'"),
        (["plan", "t", "--reset"], "--reset goes with --launch"),
        (["export", "t", "--format", "csv", "--output", "-", "--json"], "--json and --output -"),
        (["run", "t", "--batches", "b1"], "--batches"),
        (["run"], "'TASK'"),
    ],
)
def test_an_option_of_the_command_line_is_refused_by_its_name(arguments: list[str], named: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert named in done.output
