"""The planner as a job and as sensors: what they put into the queue, and what they pass over."""

import datetime as dt
import os
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from factories import GOOD, ScriptedEngine, fail_for_good
from temp_project import TempProject, find_error, find_materialized

from batch_assets.core.errors import EngineDead
from batch_assets.core.steps import Step
from batch_assets.dagster.runs import PLAN_JOB, job_name
from batch_assets.pipeline import dispatch
from batch_assets.pipeline.dispatch import FAILURE_BUDGET
from batch_assets.store.failures import count_failure
from batch_assets.store.leases import LeaseBook
from batch_assets.store.tables import failures, leases

OUTPUTS = "t__launch_outputs__m1"
ALL = ["b1|v1--m1", "b2|v1--m1", "b1|v2--m1", "b2|v2--m1"]
NEW, STALE, FOLLOW = "t__new_data", "t__missing_and_stale", "t__results_follow"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    found = TempProject(tmp_path, monkeypatch)
    found.use(ScriptedEngine())
    write(found, "b1")
    write(found, "b2")
    monkeypatch.setattr(dispatch, "FIRST_WAIT_S", 0.0)
    return found


def write(project: TempProject, batch: str, texts: Any = None, age_s: float = 3600) -> Path:
    path = project.write(batch, texts or [f"{batch}r{i}" for i in range(3)])
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def listed(project: TempProject) -> list[str]:
    return [p for job, config in project.queue() for p in config["partitions"] if job == OUTPUTS]


def fail_often(project: TempProject, partition: str, count: int = FAILURE_BUDGET) -> None:
    (wanted,) = [n.fingerprint for n in project.plan().needs if str(n.partition) == partition]
    with project.open_platform() as platform, platform.database.write() as connection:
        for _ in range(count):
            count_failure(connection, "t", Step.OUTPUTS, partition, wanted, "r", "it broke")


# The job


def test_one_run_freezes_what_is_new_and_queues_one_run_per_model(project: TempProject) -> None:
    done = project.launch_plan()
    assert done.success
    assert set(find_materialized(done)) == {
        ("source_records", "b1"), ("source_records", "b2"), ("variant_specs", "v1--m1"), ("variant_specs", "v2--m1"),
    }  # fmt: skip
    assert project.queue() == [(OUTPUTS, {"partitions": ALL})]
    (made,) = project.work_off()
    assert {p for _, p in find_materialized(made)} == set(ALL)
    assert project.launch_plan().success
    assert project.queue() == []


def test_what_is_in_the_queue_is_not_queued_again(project: TempProject) -> None:
    project.launch_plan(variants=["v1--m1"])
    project.launch_plan()
    assert [c["partitions"] for _, c in project.queue()] == [ALL[:2], ALL[2:]]


def test_an_update_during_a_run_is_asked_after_it(project: TempProject) -> None:
    project.launch_plan()
    write(project, "b1", {"b1r0": "another text", "b1r1": "text of b1r1", "b1r2": "text of b1r2"}, age_s=1800)
    project.launch_plan()  # while the first run is in the queue: it freezes, and lists nothing twice
    assert [c["partitions"] for _, c in project.queue()] == [ALL]
    project.work_off()
    project.launch_plan()
    assert project.queue() == [] or set(listed(project)) <= {"b1|v1--m1", "b1|v2--m1"}
    project.work_off()
    assert project.plan().needs == ()


def test_an_update_that_comes_after_the_run_has_read_is_asked_by_the_next(project: TempProject) -> None:
    project.launch_plan()
    engine = project.use(ScriptedEngine())
    is_first = [True]

    def change(_text: str) -> None:
        if is_first.pop() if is_first else False:
            write(project, "b1", {"b1r0": "another text", "b1r1": "text of b1r1", "b1r2": "text of b1r2"}, age_s=1800)

    engine.on_request = change
    project.work_off()
    assert "another text" not in engine.asked
    project.launch_plan()
    assert sorted(listed(project)) == ["b1|v1--m1", "b1|v2--m1"]
    project.work_off()
    assert engine.asked.count("another text") == 2
    assert project.plan().needs == ()


def test_a_selection_a_limit_and_a_retry(project: TempProject) -> None:
    project.launch_plan(batches=["b1"], variants=["v2--m1"])
    assert listed(project) == ["b1|v2--m1"]
    project.use(ScriptedEngine({"text of b1r0": fail_for_good()}))
    project.work_off()
    project.launch_plan(max_partitions=1, variants=["v1--m1"])
    assert listed(project) == ["b1|v1--m1"]
    project.work_off()
    project.use(ScriptedEngine())
    project.launch_plan(batches=["b1"])
    assert project.queue() == []
    project.launch_plan(batches=["b1"], retry="errors")
    assert project.queue() == [(OUTPUTS, {"partitions": ["b1|v1--m1", "b1|v2--m1"], "retry": "errors"})]


def test_the_number_of_batches_that_are_frozen_can_be_capped(project: TempProject) -> None:
    project.launch_plan(max_batches=1)
    assert sorted(listed(project)) == ["b1|v1--m1", "b1|v2--m1"]


def test_a_file_that_was_just_written_is_asked_if_a_person_says_so(project: TempProject) -> None:
    write(project, "b1", age_s=0)
    project.launch_plan(is_patient=True, variants=["v1--m1"])
    assert listed(project) == ["b2|v1--m1"]
    project.launch_plan(variants=["v1--m1"])
    assert listed(project) == ["b2|v1--m1", "b1|v1--m1"]


def test_a_broken_file_stops_no_other_and_is_told(project: TempProject) -> None:
    (project.folder / "files" / "b1.csv").write_text("item_id,no_such_column\n1,2\n")
    os.utime(project.folder / "files" / "b1.csv", (1, 1))
    failed = project.launch_plan()
    assert not failed.success
    assert "b1.csv: line 1: no column" in find_error(failed)
    assert sorted(listed(project)) == ["b2|v1--m1", "b2|v2--m1"]


def test_a_partition_that_keeps_failing_is_passed_over_until_it_is_reset_or_changes(project: TempProject) -> None:
    project.launch_plan(max_partitions=1)
    project.work_off()
    fail_often(project, "b2|v1--m1")
    project.launch_plan()
    assert listed(project) == ["b1|v2--m1", "b2|v2--m1"]
    project.work_off()
    project.launch_plan(failure_budget=FAILURE_BUDGET + 1)
    assert listed(project) == ["b2|v1--m1"]
    project.instance.wipe()  # and nothing is in the queue
    project.execute(sa.delete(leases))
    project.launch_plan(reset_failures=True, variants=["v1--m1"])
    assert "b2|v1--m1" in listed(project)


def test_a_run_that_breaks_uses_up_the_budget_of_what_it_started(project: TempProject) -> None:
    project.use(ScriptedEngine({"text of b2r0": ZeroDivisionError("a fault of ours")}))
    for _ in range(FAILURE_BUDGET):
        project.launch_plan(batches=["b2"], variants=["v1--m1"])
        assert listed(project) == ["b2|v1--m1"]
        project.work_off()
    assert project.launch_plan(batches=["b2"], variants=["v1--m1"]).success
    assert project.queue() == []
    with project.open_platform() as platform, platform.database.read() as connection:
        assert connection.execute(sa.select(failures.c.failures, failures.c.error)).all() == [
            (FAILURE_BUDGET, "ZeroDivisionError: a fault of ours")
        ]


def test_a_model_whose_runs_fail_rests_though_no_partition_is_to_blame(
    project: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.use(ScriptedEngine({"text of b1r0": EngineDead("the server is down")}))
    project.launch_plan()
    (failed,) = project.work_off()
    assert not failed.success
    monkeypatch.setattr(dispatch, "FIRST_WAIT_S", 3600.0)
    assert project.launch_plan().success
    assert project.queue() == []
    assert "rests" in str(project.tick(STALE).skip_reason) or "later" in str(project.tick(STALE).skip_reason)
    monkeypatch.setattr(dispatch, "FIRST_WAIT_S", 0.0)
    project.launch_plan()
    assert sorted(listed(project)) == sorted(ALL)


def test_what_another_run_works_on_is_passed_over(project: TempProject) -> None:
    project.launch_plan(variants=["v1--m1"], max_partitions=1)
    project.work_off()
    with project.open_platform() as platform:
        LeaseBook(platform.database, "other").acquire("t", "b2", "v1--m1")
    project.launch_plan(variants=["v1--m1"])
    assert project.queue() == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"task": "unheard of"}, "task: 'unheard of': there are t"),
        ({"variants": ["v9--m1"]}, "no variant 'v9--m1'"),
        ({"retry": "sometimes"}, "use one of none, errors, failed, all"),
        ({"since": "yesterday"}, "'yesterday' is no moment"),
    ],
)
def test_a_wrong_config_is_refused_by_name(project: TempProject, config: dict[str, Any], words: str) -> None:
    failed = project.launch_plan(**config)
    assert not failed.success
    assert words in find_error(failed)
    assert project.queue() == []


# The sensors


def test_new_data_is_asked_and_older_gaps_are_left(project: TempProject) -> None:
    project.launch_plan(batches=["b1"], variants=["v1--m1"])
    project.work_off()
    time.sleep(0.01)
    first = project.tick(NEW)
    (request,) = first.run_requests or ()
    assert request.job_name == PLAN_JOB  # b2 was never frozen
    since = dt.datetime.fromisoformat(str(first.cursor))
    assert abs(dt.datetime.now(dt.UTC) - since) < dt.timedelta(minutes=5)
    project.launch_plan(**request.run_config["ops"][f"{PLAN_JOB}_op"]["config"])
    assert sorted(listed(project)) == ["b2|v1--m1", "b2|v2--m1"]  # v2 of b1 was missing before
    project.work_off()
    again = project.tick(NEW, first.cursor)
    assert again.run_requests == []
    assert again.cursor == first.cursor
    assert "nothing is missing or stale" in str(again.skip_reason)
    write(project, "b1", ["b1r0", "b1r1"])  # a changed file is new data
    assert project.tick(NEW, first.cursor).run_requests


def test_a_file_that_is_being_written_waits(project: TempProject) -> None:
    project.launch_plan()
    project.work_off()
    write(project, "b3", age_s=0)
    tick = project.tick(NEW, "2026-01-01T00:00:00+00:00")
    assert tick.run_requests == []
    assert "waiting for b3 to be written" in str(tick.skip_reason)
    write(project, "b3", age_s=11)
    assert project.tick(NEW, "2026-01-01T00:00:00+00:00").run_requests


def test_missing_and_stale_sees_an_edited_prompt(project: TempProject) -> None:
    project.launch_plan()
    project.work_off()
    assert project.tick(STALE).run_requests == []
    project.write_prompts(v2="other words: {{ text }}")
    assert project.tick(STALE).run_requests
    assert project.tick(NEW, "2026-01-01T00:00:00+00:00").run_requests  # all was frozen since then
    assert project.tick(NEW).run_requests == []


def test_a_sensor_passes_over_what_is_on_its_way(project: TempProject) -> None:
    project.launch_plan()
    tick = project.tick(STALE)
    assert tick.run_requests == []
    assert "4 partitions are at work or in the queue" in str(tick.skip_reason)


def test_results_follow_by_themselves_and_held_ones_do_not(project: TempProject) -> None:
    project.use(ScriptedEngine({f"text of b2r{i}": fail_for_good() for i in range(3)}, default=GOOD))
    (project.folder / "task.py").write_text(
        (project.folder / "task.py").read_text().replace("min_records=4", "min_records=1, stop_early=False")
    )
    assert project.tick(FOLLOW).run_requests == []
    project.launch_plan(variants=["v1--m1"])
    project.work_off()
    (request,) = project.tick(FOLLOW).run_requests or ()
    assert request.job_name == job_name("t", Step.RESULTS)
    config = request.run_config["ops"]["t__launch_results_op"]["config"]
    assert config == {"partitions": ["b1|v1--m1", "b2|v1--m1"]}
    done = project.launch(Step.RESULTS, **config)
    assert {p for _, p in find_materialized(done)} == {"b1|v1--m1"}
    assert project.tick(FOLLOW).run_requests == []
    project.use(ScriptedEngine())
    project.launch_plan(variants=["v1--m1"], retry="errors")
    project.work_off()
    (request,) = project.tick(FOLLOW).run_requests or ()
    assert request.run_config["ops"]["t__launch_results_op"]["config"] == {"partitions": ["b2|v1--m1"]}


def test_sensors_that_ask_a_model_are_off_until_somebody_turns_them_on(project: TempProject) -> None:
    repository = project.load().definitions.get_repository_def()
    on = {s.name for s in repository.sensor_defs if s.default_status is dg.DefaultSensorStatus.RUNNING}
    assert on == {"alerts", "t__sync_partitions", FOLLOW}
    assert [s.default_status for s in repository.schedule_defs] == [dg.DefaultScheduleStatus.STOPPED]
