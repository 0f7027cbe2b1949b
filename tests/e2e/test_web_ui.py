"""The web UI, with a real webserver and daemon: one partition, the whole chain, a backfill of several.

Slow because webserver and daemon take twenty seconds to start, and each run of theirs six.
"""

import signal
from collections.abc import Iterator

import pytest
from web_ui import WebUi
from workplace import COUNTING_MODEL, Server, Workplace, find_free_port, start_server, wait_until

T = "ticket_triage"
MODEL = "smollm2-135m"
BATCHES = ["2026-11-01", "2026-11-02", "2026-11-03"]
RESULTS = ["validated_results", "quarantine", "qa_samples", "run_reports"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("ui"))


@pytest.fixture(scope="module")
def server(place: Workplace) -> Iterator[Server]:
    server = start_server(place.root, latency_s=0.01)
    place.copy_defs(COUNTING_MODEL.format(port=server.port, window=16))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ui(place: Workplace, server: Server) -> Iterator[WebUi]:
    port = find_free_port()
    process = place.start("up", "--port", str(port))
    ui = WebUi(port)

    def answers() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            return bool(ui.ask("{ assetNodes { id } }")["assetNodes"])
        except OSError:
            return False

    wait_until(answers, 120, "the web UI")
    yield ui
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_one_partition_and_the_whole_chain_materialize_from_the_ui(ui: WebUi, place: Workplace, server: Server) -> None:
    partition = f"{BATCHES[0]}|v1--{MODEL}"
    assert ui.wait_for_run(ui.materialize([[T, "source_records"]], BATCHES[0])) == "SUCCESS"
    assert ui.wait_for_run(ui.materialize([[T, "variant_specs"]], f"v1--{MODEL}")) == "SUCCESS"
    chain = [[T, name] for name in ("llm_outputs", *RESULTS)]
    assert ui.wait_for_run(ui.materialize(chain, partition)) == "SUCCESS"
    assert server.count() == 42, "44 records, one empty, one a repeat of another"
    versions = {name: ui.versions([T, name]) for name in ("llm_outputs", *RESULTS)}
    assert all(list(v) == [partition] for v in versions.values())
    assert ui.check_results([T, "validated_results"], "contract") == {(partition, "SUCCEEDED")}
    assert len({v[partition] for v in versions.values()}) == 1, "what follows goes by the output's whole data version"


def test_a_backfill_of_several_partitions_starts_from_the_ui(ui: WebUi, place: Workplace, server: Server) -> None:
    outputs = [f"{b}|v2--{MODEL}" for b in BATCHES]
    wanted = {(T, "source_records"): BATCHES, (T, "variant_specs"): [f"v2--{MODEL}"]}
    wanted |= {(T, name): outputs for name in ("llm_outputs", *RESULTS)}
    assert ui.wait_for_backfill(ui.backfill(wanted)) == "COMPLETED_SUCCESS"
    versions = ui.versions([T, "llm_outputs"])
    assert set(outputs) <= set(versions)
    assert len({versions[p] for p in outputs}) == 3, "each partition has a data version of its own"
    for name in RESULTS:
        found = ui.versions([T, name])
        assert {p: found[p] for p in outputs} == {p: versions[p] for p in outputs}
    for asset, name in (("llm_outputs", "every_record_accounted"), ("validated_results", "contract")):
        checks = ui.check_results([T, asset], name)
        assert {partition for partition, _ in checks} >= set(outputs)
        assert {status for _, status in checks} == {"SUCCEEDED"}
    plan = place.json("plan", T, "--variant", f"v2--{MODEL}")
    assert plan["needs"] == [] and plan["results_to_make"] == [], "the command line sees what the UI did"
