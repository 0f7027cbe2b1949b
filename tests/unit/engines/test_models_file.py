"""Entries of models.yaml: what is wrong is said by file, entry and field."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.engines.models_file import load_models

Load = Callable[[str], dict[str, ModelEntry]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A function that loads a models.yaml of the given text."""

    def load_it(text: str) -> dict[str, ModelEntry]:
        path = tmp_path / "models.yaml"
        path.write_text(text, encoding="utf-8")
        return load_models(path)

    return load_it


def test_an_entry_is_known_by_its_name(load: Load) -> None:
    found = load("one: {weights: a/b, engine: vllm}\ntwo: {weights: c, engine: openai, base_url: 'http://x/v1'}")
    assert list(found) == ["one", "two"]
    assert found["one"].model_id == "one"
    assert found["two"].base_url == "http://x/v1"


def test_an_entry_that_says_little_gets_defaults_that_work(load: Load) -> None:
    entry = load("m: {weights: w, engine: fake}")["m"]
    assert entry.sampling.temperature == 0
    assert entry.price_per_gpu_hour == 0
    assert entry.max_in_flight >= 1
    assert entry.timeout_s > 0


def test_entries_may_share_what_they_have_in_common(load: Load) -> None:
    found = load("a: &a {weights: w, engine: fake, timeout_s: 5}\nb: {<<: *a, weights: v}")
    assert (found["b"].weights, found["b"].timeout_s) == ("v", 5)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("m: {weights: w, engine: fake, wieghts: x}", "m: wieghts: Extra inputs are not permitted"),
        ("m: {engine: fake}", "m: weights: Field required"),
        ("m: {weights: w}", "m: engine: Field required"),
        ("m: {weights: w, engine: ollama}", "m: engine: 'ollama' is none of fake, openai, vllm; one of your own"),
        ("m: {weights: w, engine: no.such.Engine}", "m: engine: 'no.such.Engine' can't be imported"),
        ("m: {weights: w, engine: .}", "m: engine: '.' "),
        ("m: {weights: w, engine: batch_assets.engines.fake.FakeEngine}", "FakeEngine is no EngineEntry"),
        ("m: {weights: w, engine: [fake]}", "m: engine: Input should be a valid string"),
        ("m: {weights: w, engine: fake, sampling: {temprature: 1}}", "m: sampling.temprature: Extra inputs"),
        ("m: {weights: w, engine: fake, sampling: {temperature: 3}}", "m: sampling.temperature: "),
        ("m: {weights: w, engine: fake, sampling: {temperature: .nan}}", "m: sampling.temperature: "),
        ("m: {weights: w, engine: fake, sampling: {top_p: 0}}", "m: sampling.top_p: "),
        ("m: {weights: w, engine: fake, sampling: {max_tokens: 0}}", "m: sampling.max_tokens: "),
        ("m: {weights: w, engine: fake, sampling: {stop: x}}", "m: sampling.stop: "),
        ("m: {weights: w, engine: fake, price_per_gpu_hour: -1}", "m: price_per_gpu_hour: "),
        ("m: {weights: w, engine: fake, max_in_flight: 0}", "m: max_in_flight: "),
        ("m: {weights: w, engine: fake, max_in_flight: 5000}", "m: max_in_flight: "),
        ("m: {weights: w, engine: fake, timeout_s: 0}", "m: timeout_s: "),
        ("m: {weights: w, engine: fake, op_tags: {a: 1}}", "m: op_tags.a: "),
        ("m: {weights: w, engine: fake, engine_args: [1]}", "m: engine_args: "),
        ("m: {weights: w, engine: openai}", "m: base_url: an openai engine needs the server's address"),
        ("m: {weights: w, engine: vllm, base_url: 'http://x'}", "m: base_url: it is for engine: openai"),
        ("m: {weights: '', engine: fake}", "m: weights: "),
        ("m: {weights: w, engine: fake, sampling: {stop: ['']}}", "m: sampling.stop.0: "),
        ("m: {weights: w, engine: fake, model_id: n}", "m: model_id: the name above the entry"),
        ("no: {weights: w, engine: fake}", "model False is no text to YAML: put its name in quotes"),
        ("1: {weights: w, engine: fake}\n'1': {weights: v, engine: fake}", "model 1 is no text to YAML"),
        ("m: {weights: w, engine: fake, api_key_env: K}", "m: api_key_env: it is for engine: openai"),
        ("m: {weights: w, engine: openai, base_url: 'http://x', engine_args: {a: 1}}", "m: engine_args: a server"),
        ("m: {weights: w, engine: vllm, mode: aside}", "m: mode: Input should be 'auto', 'inline' or 'apart'"),
        ("m: {weights: w, engine: fake, mode: inline}", "m: mode: it is for engine: vllm"),
        ("m: {weights: w, engine: openai, base_url: 'http://x', mode: apart}", "m: mode: it is for engine: vllm"),
        ("m: 3", "m: expected a mapping of fields"),
        ("m:", "m: expected a mapping of fields"),
        ("m|x: {weights: w, engine: fake}", "model 'm|x' can't be a partition key"),
        ("org/m: {weights: w, engine: fake}", "model 'org/m' can't be a partition key"),
        ("m: {weights: w, engine: fake}\nm: {weights: v, engine: fake}", "the key 'm' comes twice"),
        ("m: {weights: w, engine: fake, weights: v}", "the key 'weights' comes twice"),
        ("- m", "expected a mapping of model_id to entry"),
        ("", "expected a mapping of model_id to entry"),
        ("m: [", "not YAML"),
        ("m: {weights: 2026-13-45, engine: fake}", "not YAML"),
    ],
)
def test_what_is_wrong_is_named_by_file_entry_and_field(load: Load, tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)) as error:
        load(text)
    assert str(tmp_path / "models.yaml") in str(error.value)


def test_where_the_loop_runs_cannot_change_an_answer(load: Load) -> None:
    found = load("a: &a {weights: w, engine: vllm}\nb: {<<: *a, mode: inline}\nc: {<<: *a, mode: apart}")
    assert [e.mode for e in found.values()] == ["auto", "inline", "apart"]
    identities = [{**e.identity("r"), "model_id": "m"} for e in found.values()]
    assert identities[0] == identities[1] == identities[2]


def test_a_line_of_another_engine_that_says_its_default_is_no_problem(load: Load) -> None:
    found = load("m: {weights: w, engine: fake, mode: auto, base_url: null, api_key_env: null}")["m"]
    assert found == load("m: {weights: w, engine: fake}")["m"]


def test_a_key_in_the_place_of_its_variable_is_refused_and_not_repeated(load: Load) -> None:
    with pytest.raises(ConfigError, match="m: api_key_env: String should match pattern") as refused:
        load("m: {weights: w, engine: openai, base_url: 'http://x', api_key_env: sk-hunter2}")
    assert "hunter2" not in str(refused.value)


def test_every_problem_of_an_entry_is_named_at_once(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"weights: Field required.*; .*timeout: Extra inputs"):
        load("m: {engine: fake, timeout: 3}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.yaml: no such file; it lists the models by name"):
        load_models(tmp_path / "models.yaml")


def test_a_file_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_bytes(b"m: {weights: caf\xe9, engine: fake}")
    with pytest.raises(ConfigError, match=r"models\.yaml: can't be read"):
        load_models(path)


def test_an_engine_argument_that_yaml_reads_as_a_date_can_still_be_hashed(load: Load) -> None:
    entry = load("m: {weights: w, engine: fake, engine_args: {since: 2026-11-01}}")["m"]
    assert entry.identity(None)["engine_args"] == {"since": "2026-11-01"}


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@h/v1",
        "https://hunter2@h/v1",
        "http://h/v1?api-key=hunter2",
        "http://h/v1#hunter2",
        "http://h:hunter2/v1",
        "h:8000/hunter2",
        "ftp://h/hunter2",
        "http:///hunter2",
        "http://h x/hunter2",
    ],
)
def test_an_address_that_no_server_has_or_that_holds_a_secret_is_refused_and_not_repeated(load: Load, url: str) -> None:
    with pytest.raises(ConfigError, match="models.yaml: m: base_url: ") as refused:
        load(f"m: {{weights: w, engine: openai, base_url: '{url}'}}")
    assert "hunter2" not in str(refused.value)


def test_an_at_sign_in_the_path_of_an_address_is_no_user(load: Load) -> None:
    assert load("m: {weights: w, engine: openai, base_url: 'https://h/@a/v1'}")["m"].base_url == "https://h/@a/v1"
