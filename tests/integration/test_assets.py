"""Assets, checks and launch jobs in Dagster itself, with an engine that follows a script."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pandera.polars as pa
import polars as pl
import pytest
import sqlalchemy as sa
from factories import BAD, ScriptedEngine, fail_for_good, make_result
from pydantic import BaseModel
from temp_project import RESULTS, TempProject, find_checks, find_error, find_held, find_materialized

from batch_assets.core.asset_names import LLM_OUTPUTS
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import BatchAssetsError, EngineDead, SourceError
from batch_assets.core.steps import Step
from batch_assets.dagster.asset_keys import asset_key, load_versions
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.pipeline import validated_frame as validated_module
from batch_assets.pipeline.plan import Selection
from batch_assets.pipeline.result_assets import RESULT_NAMES
from batch_assets.store.leases import LeaseBook
from batch_assets.store.partitions import load_partitions
from batch_assets.store.results import VariantKey
from batch_assets.store.tables import results

P = "b1|v1--m1"
GREEN = {
    ("llm_outputs", name, P, True) for name in ("every_record_accounted", "keys_unique", "error_share", "invalid_share")
}
ON_RESULTS = ("contract", "agrees_with_completions", "label_distribution")
RESULT_CHECKS = {("validated_results", name, P, True) for name in ON_RESULTS}


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """Yield a project with three batches of four records, none of them frozen."""
    made = TempProject(quick_path, monkeypatch)
    prepare(made)
    yield made
    made.instance.dispose()


@pytest.fixture
def real_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """Yield the same project, all of it on disk."""
    made = TempProject(tmp_path, monkeypatch, on_disk=True)
    prepare(made)
    yield made
    made.instance.dispose()


def prepare(project: TempProject) -> None:
    for n in (1, 2, 3):
        project.write(f"b{n}", [f"b{n}r{i}" for i in range(4)])
    project.use(ScriptedEngine())


@pytest.fixture
def frozen(project: TempProject) -> TempProject:
    """Return the project, its batches frozen and its variants described."""
    assert project.launch(Step.SOURCES, batches=["b1", "b2", "b3"], variants=["v1--m1", "v2--m1"]).success
    return project


def name_range(first: str, last: str) -> dict[str, str]:
    """Return the tags of a run over a range of partitions."""
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def read_frame(project: TempProject, batch: str = "b1", variant: str = "v1--m1") -> pl.DataFrame:
    with project.open_platform() as platform:
        frame = platform.frames.read("t", "validated_results", batch, variant)
    assert frame is not None
    return frame


def stray(item_id: str = "stray", **fields: Any) -> sa.Insert:
    """Return the insertion of a row without a record."""
    row = make_result(item_id, key=VariantKey(task="t", prompt_ver="v1", model_id="m1"), run_id="somebody", **fields)
    values = {name: getattr(row, name) for name in row.__slots__ if name in results.c}
    return sa.insert(results).values(task="t", prompt_ver="v1", model_id="m1", **values)


def delete_row(item_id: str) -> sa.Delete:
    return sa.delete(results).where(results.c.item_id == item_id, results.c.prompt_ver == "v1")


# One partition


def test_one_partition_runs_through_from_source_to_report(real_project: TempProject) -> None:
    project = real_project
    assert project.materialize(["source_records"], partition="b1").success
    assert project.materialize(["variant_specs"], partition="v1--m1").success
    done = project.materialize(["llm_outputs", *RESULTS], partition=P)
    assert done.success
    assert find_materialized(done) == [(name, P) for name in ("llm_outputs", *RESULTS)]
    assert find_checks(done) == GREEN | RESULT_CHECKS
    task, _ = project.bind()
    versions = {load_versions(project.instance, task, name)[P] for name in (LLM_OUTPUTS, *RESULT_NAMES)}
    with project.open_platform() as platform, platform.database.read() as connection:
        assert versions == {load_partitions(connection, "t")["b1", "v1--m1"].data_version}
    frame = read_frame(project)
    assert frame["item_id"].to_list() == [f"b1r{i}" for i in range(4)]
    assert frame.columns == [
        "item_id", "batch", "prompt_ver", "model_id", "out_label", "out_score", "attempts", "is_reused",
        "is_fallback", "updated_at",
    ]  # fmt: skip


def test_the_fake_engine_of_models_yaml_does_for_a_whole_run(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = TempProject(quick_path, monkeypatch, on_disk=True)
    project.write("b1", ["1", "2", "3", "4"])
    summary = project.run()
    assert (summary.requests_sent, summary.tally.ok, summary.failed_checks) == (8, 8, [])
    assert project.plan().is_empty
    assert project.run().requests_sent == 0


def test_figures_and_the_first_failures_stand_in_the_metadata(frozen: TempProject) -> None:
    frozen.use(ScriptedEngine({"text of b1r1": BAD}))
    done = frozen.materialize(["llm_outputs"], partition=P)
    (event,) = [e for e in done.all_events if e.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION]
    found = {k: v.value for k, v in event.step_materialization_data.materialization.metadata.items()}
    assert (found["records"], found["ok"], found["invalid"], found["error"], found["sent"]) == (4, 3, 1, 0, 4)
    (row,) = found["first_failures"].records
    assert (row.data["item_id"], row.data["reason"]) == ("b1r1", "schema")
    assert found["prompt_tokens"] == 40
    assert all(v == v for v in found.values() if isinstance(v, float)), "NaN"


def test_llm_outputs_freezes_a_batch_that_never_was_and_describes_its_variant(project: TempProject) -> None:
    done = project.materialize(["llm_outputs"], partition=P)
    assert done.success
    assert find_materialized(done) == [("variant_specs", "v1--m1"), ("source_records", "b1"), ("llm_outputs", P)]
    assert not project.plan(selection=Selection.of(batch="b1", variant="v1--m1")).unfrozen
    again = project.materialize(["llm_outputs"], partition=P)
    assert find_materialized(again) == [("llm_outputs", P)]


def test_llm_outputs_of_a_batch_that_the_source_does_not_have_says_so(project: TempProject) -> None:
    path = project.write("gone", ["1"])
    sync_partitions(*project.bind(), project.instance)
    path.unlink()
    failed = project.materialize(["llm_outputs"], partition="gone|v1--m1")
    assert not failed.success
    assert "task t: the source has no batch gone" in find_error(failed)


def test_the_launchpads_retry_is_the_command_lines(frozen: TempProject) -> None:
    frozen.use(ScriptedEngine({"text of b1r1": BAD}))
    frozen.materialize(["llm_outputs"], partition=P)
    engine = frozen.use(ScriptedEngine())
    assert frozen.materialize(["llm_outputs"], partition=P).success
    assert engine.asked == []
    assert frozen.materialize(["llm_outputs"], partition=P, retry="failed").success
    assert engine.asked == ["text of b1r1"]
    wrong = frozen.materialize(["llm_outputs"], partition=P, retry="some")
    assert "use one of none, errors, failed, all" in find_error(wrong)


def test_a_source_without_the_batch_is_an_error_and_the_others_are_frozen(project: TempProject) -> None:
    failed = project.launch(Step.SOURCES, batches=["b1", "b9"], variants=[])
    assert not failed.success
    assert "the source has no batch b9" in find_error(failed)
    assert ("source_records", "b1") in find_materialized(failed)


# Many partitions


def test_in_a_run_over_many_partitions_each_has_its_own_version_and_its_own_checks(real_project: TempProject) -> None:
    frozen = real_project
    frozen.launch(Step.SOURCES, batches=["b1", "b2", "b3"], variants=["v1--m1", "v2--m1"])
    frozen.use(ScriptedEngine({f"text of b2r{i}": fail_for_good() for i in range(2)}))
    done = frozen.materialize(["llm_outputs"], tags=name_range("b1|v1--m1", "b3|v1--m1"))
    assert done.success
    keys = [f"b{n}|v1--m1" for n in (1, 2, 3)]
    assert find_materialized(done) == [("llm_outputs", key) for key in keys]
    checks = find_checks(done)
    assert len(checks) == 12
    assert {c for c in checks if not c[3]} == {("llm_outputs", "error_share", "b2|v1--m1", False)}
    versions = load_versions(frozen.instance, frozen.bind()[0], LLM_OUTPUTS)
    assert sorted(versions) == keys
    assert len(set(versions.values())) == 3
    history = frozen.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(asset_key(frozen.bind()[0], LLM_OUTPUTS), "error_share"), limit=10
    )
    states = {r.partition: r.status.value for r in history}
    assert states == {"b1|v1--m1": "SUCCEEDED", "b2|v1--m1": "FAILED", "b3|v1--m1": "SUCCEEDED"}


@pytest.mark.parametrize("how", ["one", "range", "job"])
def test_the_partitions_of_a_check_show_what_it_found_of_their_last_materialization(
    frozen: TempProject, how: str
) -> None:
    key = dg.AssetCheckKey(asset_key(frozen.bind()[0], LLM_OUTPUTS), "error_share")
    partitions = ["b2|v1--m1"] if how == "one" else ["b2|v1--m1", "b3|v1--m1"]

    def make() -> dict[str | None, tuple[str, bool]]:
        if how == "job":
            assert frozen.launch(Step.OUTPUTS, partitions=partitions, retry="all").success
        elif how == "range":
            assert frozen.materialize(["llm_outputs"], tags=name_range(*partitions), retry="all").success
        else:
            frozen.materialize(["llm_outputs"], partition=partitions[0], retry="all")
        found = frozen.instance.event_log_storage.get_asset_check_partition_info([key], partition_keys=partitions)
        return {i.partition_key: (i.latest_execution_status.value, i.is_current) for i in found}

    frozen.use(ScriptedEngine({f"text of b2r{i}": fail_for_good() for i in range(2)}))
    expected = {"b2|v1--m1": ("FAILED", True), "b3|v1--m1": ("SUCCEEDED", True)}
    assert make() == {p: expected[p] for p in partitions}
    frozen.use(ScriptedEngine())
    assert make() == dict.fromkeys(partitions, ("SUCCEEDED", True))


def test_results_of_many_partitions_have_their_own_versions_and_checks_too(frozen: TempProject) -> None:
    frozen.materialize(["llm_outputs"], tags=name_range("b1|v1--m1", "b3|v1--m1"))
    done = frozen.materialize(RESULTS, tags=name_range("b1|v1--m1", "b3|v1--m1"))
    assert done.success, find_error(done)
    assert len(find_materialized(done)) == 12
    assert {c[1:] for c in find_checks(done)} == {
        (name, f"b{n}|v1--m1", True) for n in (1, 2, 3) for name in ON_RESULTS
    }
    task, _ = frozen.bind()
    wanted = load_versions(frozen.instance, task, LLM_OUTPUTS)
    assert all(load_versions(frozen.instance, task, name) == wanted for name in RESULT_NAMES)


def test_a_backfills_tag_is_on_every_event_of_its_run(frozen: TempProject) -> None:
    tags = {**name_range("b1|v1--m1", "b2|v1--m1"), "dagster/backfill": "abcdefgh"}
    done = frozen.materialize(["llm_outputs"], tags=tags)
    events = [e for e in done.all_events if e.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION]
    assert [e.step_materialization_data.materialization.tags["dagster/backfill"] for e in events] == ["abcdefgh"] * 2


def test_a_run_of_many_that_breaks_keeps_the_partitions_that_were_finished(frozen: TempProject) -> None:
    engine = ScriptedEngine({"text of b3r0": EngineDead("the server can't be reached")}, latency_s=0.002)
    frozen.use(engine)
    frozen.write_models(max_in_flight=2)
    failed = frozen.materialize(["llm_outputs"], tags=name_range("b1|v1--m1", "b3|v1--m1"))
    assert not failed.success
    assert "can't be reached" in find_error(failed)
    kept = find_materialized(failed)
    assert ("llm_outputs", "b1|v1--m1") in kept
    assert ("llm_outputs", "b3|v1--m1") not in kept
    done_before = set(engine.asked)
    engine = frozen.use(ScriptedEngine())
    assert frozen.materialize(["llm_outputs"], tags=name_range("b1|v1--m1", "b3|v1--m1")).success
    assert len(engine.asked) < 12
    assert {f"text of b1r{i}" for i in range(4)} <= done_before - set(engine.asked)


def test_a_launch_with_holes_does_the_listed_partitions_with_one_engine_start(frozen: TempProject) -> None:
    engine = frozen.use(ScriptedEngine())
    listed = ["b1|v1--m1", "b3|v1--m1", "b2|v2--m1"]
    done = frozen.launch(Step.OUTPUTS, partitions=listed)
    assert done.success
    assert engine.opened == 1
    assert find_materialized(done) == [("llm_outputs", key) for key in listed]
    assert {c[2] for c in find_checks(done)} == set(listed)
    assert len(find_checks(done)) == 12
    assert sorted(load_versions(frozen.instance, frozen.bind()[0], LLM_OUTPUTS)) == sorted(listed)
    done = frozen.launch(Step.RESULTS, partitions=listed)
    assert done.success
    assert len(find_materialized(done)) == 12
    assert {str(p) for p in frozen.plan().done} == set(listed)


def test_a_partition_of_another_run_is_passed_over_and_named_and_the_rest_is_done(frozen: TempProject) -> None:
    with frozen.open_platform() as platform:
        LeaseBook(platform.database, "other").acquire("t", "b2", "v1--m1")
    failed = frozen.launch(Step.OUTPUTS, partitions=["b1|v1--m1", "b2|v1--m1", "b3|v1--m1"])
    assert not failed.success
    assert "t b2|v1--m1: run other works on it" in find_error(failed)
    assert find_materialized(failed) == [("llm_outputs", "b1|v1--m1"), ("llm_outputs", "b3|v1--m1")]


# Checks


def test_a_deleted_row_turns_the_accounting_red_and_results_are_refused(frozen: TempProject) -> None:
    frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    frozen.execute(delete_row("b1r2"))
    refused = frozen.materialize(RESULTS, partition=P)
    assert not refused.success
    assert f"{P}: every_record_accounted fails" in find_error(refused)
    assert find_materialized(refused) == []
    assert find_held(frozen.launch(Step.RESULTS, partitions=[P])) == f"{P}: every_record_accounted fails"
    # The next run asks for what is missing, or takes its stored answer, and all is well again.
    engine = frozen.use(ScriptedEngine())
    healed = frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    assert healed.success
    assert engine.asked == []
    assert find_checks(healed) == GREEN | RESULT_CHECKS


def test_a_stray_row_turns_the_accounting_red_and_stops_what_follows(frozen: TempProject) -> None:
    frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    frozen.execute(stray())
    assert find_held(frozen.launch(Step.RESULTS, partitions=[P])) == f"{P}: every_record_accounted fails"
    red = frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    assert not red.success
    assert ("llm_outputs", "every_record_accounted", P, False) in find_checks(red)
    assert [name for name, _ in find_materialized(red)] == ["llm_outputs"]
    (found,) = [d for d in red.get_asset_check_evaluations() if d.check_name == "every_record_accounted"]
    figures = {k: v.value for k, v in found.metadata.items()}
    assert (figures["records"], figures["records_without_row"], figures["rows_without_record"]) == (4, 0, 1)
    assert figures["first"]["without_record"] == ["stray"]


def test_in_a_run_of_many_a_red_partition_holds_back_its_own_results_alone(frozen: TempProject) -> None:
    frozen.execute(stray())
    done = frozen.launch(Step.OUTPUTS, partitions=["b1|v1--m1", "b2|v1--m1"])
    assert {c[2] for c in find_checks(done) if not c[3]} == {P}
    refused = frozen.launch(Step.RESULTS, partitions=["b1|v1--m1", "b2|v1--m1"])
    assert find_held(refused) == f"{P}: every_record_accounted fails"
    assert {key for _, key in find_materialized(refused)} == {"b2|v1--m1"}


@pytest.mark.parametrize(
    ("script", "check", "share", "limit"),
    [
        ({f"text of b1r{i}": fail_for_good() for i in range(2)}, "error_share", 0.5, 0.25),
        ({f"text of b1r{i}": BAD for i in range(3)}, "invalid_share", 0.75, 0.5),
    ],
)
def test_a_share_above_its_limit_names_the_partition_and_the_figures_and_holds_its_results(
    frozen: TempProject, script: Any, check: str, share: float, limit: float
) -> None:
    frozen.use(ScriptedEngine(script))
    done = frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    assert not done.success
    (red,) = [d for d in done.get_asset_check_evaluations() if not d.passed]
    assert (red.check_name, red.partition, red.severity) == (check, P, dg.AssetCheckSeverity.ERROR)
    figures = {k: v.value for k, v in red.metadata.items()}
    assert (figures["share"], figures["limit"], figures["records"]) == (share, limit, 4)
    assert find_materialized(done) == [("llm_outputs", P)], "what it is, is shown; nothing follows"
    assert find_held(frozen.launch(Step.RESULTS, partitions=[P])) == f"{P}: {check} fails"


def test_the_command_line_hears_of_a_failed_check_with_its_partition(project: TempProject) -> None:
    project.use(ScriptedEngine({f"text of b2r{i}": fail_for_good() for i in range(4)}))
    summary = project.run(variant="v1--m1")
    (failed,) = summary.failed_checks
    assert (failed.asset, failed.check, failed.partition) == ("llm_outputs", "error_share", "b2|v1--m1")
    assert failed.metadata["share"] == 1.0


def test_too_few_records_raise_no_alarm(project: TempProject) -> None:
    project.write("b1", ["1", "2", "3"])
    project.launch(Step.SOURCES, batches=["b1"], variants=[])
    project.use(ScriptedEngine(default=fail_for_good()))
    done = project.materialize(["llm_outputs"], partition=P)
    assert find_checks(done) == GREEN
    (share,) = [d for d in done.get_asset_check_evaluations() if d.check_name == "error_share"]
    assert (share.metadata["share"].value, share.metadata["note"].value) == (1.0, "fewer than 4 records raise no alarm")


def test_malformed_lines_are_a_warning_that_counts_them(project: TempProject) -> None:
    path = project.write("b1", ["1", "2"])
    path.write_text(path.read_text() + "3,too,many\n")
    done = project.materialize(["source_records"], partition="b1")
    assert done.success
    (found,) = [d for d in done.get_asset_check_evaluations() if d.check_name == "lines_readable"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.metadata["malformed_lines"].value == 1


def test_cleaned_values_are_told_by_line_and_are_no_warning(project: TempProject) -> None:
    path = project.write("b1", ["1", "2"])
    path.write_text(path.read_text() + "3,a\0b\n")
    done = project.materialize(["source_records"], partition="b1")
    (found,) = [d for d in done.get_asset_check_evaluations() if d.check_name == "lines_readable"]
    assert found.passed
    assert (found.metadata["malformed_lines"].value, found.metadata["cleaned_values"].value) == (0, 1)
    assert "line 4" in str(found.metadata["first_cleaned"].value)
    (stamp,) = done.get_asset_materialization_events()
    metadata = stamp.step_materialization_data.materialization.metadata
    assert (metadata["records"].value, metadata["cleaned_values"].value) == (3, 1)


def refuse_every_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the contract want a text for out_score, which is a number: no input can break the frame's own types."""
    whole = validated_module.validated_results_schema

    def break_schema(output: type[BaseModel]) -> pa.DataFrameSchema:
        return whole(output).update_column("out_score", dtype=pl.String)

    monkeypatch.setattr(validated_module, "validated_results_schema", break_schema)


def test_a_frame_that_breaks_its_contract_is_red_and_stops_what_follows(
    frozen: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_every_score(monkeypatch)
    red = frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    (found,) = [d for d in red.get_asset_check_evaluations() if not d.passed]
    assert (found.asset_key.path[-1], found.check_name, found.partition) == ("validated_results", "contract", P)
    assert "out_score" in found.metadata["first"].value
    assert not red.success


def test_a_frame_that_breaks_its_contract_doesnt_take_the_place_of_a_good_one(
    frozen: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    good = read_frame(frozen)
    refuse_every_score(monkeypatch)
    assert not frozen.materialize(RESULTS, partition=P).success
    assert read_frame(frozen).equals(good)


def test_a_source_frame_that_breaks_its_contract_is_red(project: TempProject) -> None:
    from batch_assets.pipeline.checks.source_records import list_checks
    from batch_assets.sources.base import SourceBatch

    task, source = project.bind()
    read = source.read(source.list_batches()[0], ["text"])
    contract = list_checks(task)[0].examine
    assert contract(read).passed
    doubled = SourceBatch(frame=pl.concat([read.frame, read.frame]), malformed=[])
    without = SourceBatch(frame=read.frame.drop("text"), malformed=[])
    numbers = SourceBatch(frame=read.frame.with_columns(text=pl.lit(1)), malformed=[])
    assert [contract(b).passed for b in (doubled, without, numbers)] == [False, False, False]


def test_an_answer_that_was_changed_behind_our_back_is_red_and_never_gets_through(frozen: TempProject) -> None:
    frozen.materialize(["llm_outputs", *RESULTS], partition=P)
    good = read_frame(frozen)
    changed = sa.update(results).where(results.c.item_id == "b1r1", results.c.prompt_ver == "v1")
    frozen.execute(changed.values(payload={"label": "c", "score": 99}))
    red = frozen.launch(Step.RESULTS, partitions=[P])
    assert ("validated_results", "agrees_with_completions", P, False) in find_checks(red)
    assert read_frame(frozen).equals(good)


@pytest.mark.parametrize("selected", [RESULTS, ["validated_results"]])
@pytest.mark.parametrize("is_range", [False, True])
def test_results_that_a_check_holds_back_are_no_materialization(
    frozen: TempProject, is_range: bool, selected: list[str]
) -> None:
    chosen: dict[str, Any] = {"tags": name_range(P, P)} if is_range else {"partition": P}
    assert frozen.materialize(["llm_outputs", *RESULTS], partition=P).success
    task = frozen.bind()[0]
    before = {name: load_versions(frozen.instance, task, name) for name in RESULT_NAMES}
    frozen.use(ScriptedEngine(default='{"label":"b","score":2}'))
    frozen.materialize(["llm_outputs"], partition=P, retry="all")
    assert load_versions(frozen.instance, task, LLM_OUTPUTS) != before["validated_results"], "there is a new version"
    good = read_frame(frozen)
    changed = sa.update(results).where(results.c.item_id == "b1r1", results.c.prompt_ver == "v1")
    frozen.execute(changed.values(payload={"label": "c", "score": 99}))
    red = frozen.materialize(selected, **chosen)
    assert not red.success
    assert f"{P}: validated_results.agrees_with_completions fails" in find_error(red)
    assert find_materialized(red) == []
    assert ("validated_results", "agrees_with_completions", P, False) in find_checks(red)
    assert {name: load_versions(frozen.instance, task, name) for name in RESULT_NAMES} == before
    assert read_frame(frozen).equals(good)


# The command line's run


def test_a_run_brings_everything_up_to_date_and_a_second_one_does_nothing(project: TempProject) -> None:
    engine = project.use(ScriptedEngine())
    summary = project.run()
    assert (summary.requests_sent, len(engine.asked), len(summary.partitions)) == (24, 24, 6)
    assert project.plan().is_empty
    again = project.run()
    assert (again.requests_sent, again.run_ids, again.partitions_done) == (0, [], 6)


def test_an_edited_prompt_asks_for_its_variant_alone(project: TempProject) -> None:
    project.run()
    project.write_prompts(v2="Again: {{ text }}")
    engine = project.use(ScriptedEngine())
    summary = project.run()
    assert summary.requests_sent == len(engine.asked) == 12
    assert project.plan().is_empty


def test_a_new_file_that_repeats_an_id_is_settled_in_one_run(project: TempProject) -> None:
    project.run()
    project.write("b4", {"b1r0": "newer text", "b4r1": "text of b4r1"})
    project.run()
    assert project.plan().is_empty
    assert "b1r0" not in read_frame(project)["item_id"].to_list()
    assert "b1r0" in read_frame(project, "b4")["item_id"].to_list()


def test_an_id_that_leaves_the_later_file_is_settled_in_one_run(project: TempProject) -> None:
    project.write("b2", ["b1r0", "b2r1"])
    project.run()
    project.write("b2", ["b2r1"])
    project.run()
    assert project.plan().is_empty
    assert "b1r0" in read_frame(project)["item_id"].to_list()


def test_a_run_that_breaks_tells_our_own_error_and_the_next_one_goes_on(project: TempProject) -> None:
    project.use(ScriptedEngine({"text of b3r3": EngineDead("the server can't be reached")}))
    with pytest.raises(BatchAssetsError, match="can't be reached"):
        project.run()
    engine = project.use(ScriptedEngine())
    project.run()
    assert project.plan().is_empty
    assert "text of b3r3" in engine.asked


def test_a_retry_from_the_command_line_asks_what_failed(project: TempProject) -> None:
    project.use(ScriptedEngine({"text of b1r0": BAD}))
    project.run(variant="v1--m1")
    engine = project.use(ScriptedEngine())
    summary = project.run(retry=RetryMode.FAILED, variant="v1--m1")
    assert (engine.asked, summary.requests_sent) == (["text of b1r0"], 1)
    assert read_frame(project).height == 4


def test_a_broken_file_stops_no_run_of_another_batch(project: TempProject) -> None:
    folder = Path(project.bind()[1].list_batches()[0].locator).parent
    (folder / "zz_broken.csv").write_bytes(b"id,text\n1,\xff\n")
    with pytest.raises(SourceError, match=r"zz_broken\.csv: line 2: not UTF-8"):
        project.plan()
    task, source = project.bind()
    first = source.list_batches()[0].batch
    assert project.plan(selection=Selection.of(batch=first)).needs
