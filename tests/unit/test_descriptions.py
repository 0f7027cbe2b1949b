"""What the web UI says of jobs, sensors and schedules: plain words, what one gets, and of which task."""

import dagster as dg
import pytest

from batch_assets.dagster.project import Project, load_project
from batch_assets.dagster.runs import PLAN_JOB
from batch_assets.settings import Settings

FOR_ALL = {PLAN_JOB, "alerts"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return load_project(Settings(home=tmp_path_factory.mktemp("home")))


def find_described(project: Project) -> dict[str, str]:
    found = project.definitions.resolve_all_job_defs()
    jobs = [j for j in found if not j.name.startswith("__")]
    ticking = [*(project.definitions.sensors or ()), *(project.definitions.schedules or ())]
    assert len(jobs) > len(project.tasks) and len(ticking) > len(project.tasks)
    return {str(d.name): str(getattr(d, "description", None) or "") for d in (*jobs, *ticking)}


def test_each_says_in_whole_sentences_what_it_does_and_of_which_task(project: Project) -> None:
    for name, words in find_described(project).items():
        first = words.partition(" ")[0]
        assert first[:1].isupper() and first.endswith("s"), f"{name}: {words!r}"
        assert words.endswith(".") and len(words) > 40, f"{name}: {words!r}"
        if name not in FOR_ALL:
            assert name.partition("__")[0] in words, f"{name}: {words!r}"


def test_each_says_what_becomes_of_the_model(project: Project) -> None:
    """Whether it spends anything: each says that it asks, that it launches what asks, or that it doesn't."""
    for name, words in find_described(project).items():
        if name != "alerts":
            assert any(w in words for w in ("Asks", "Launches", "launches")), f"{name}: {words!r}"


def test_every_field_of_a_launchpad_is_described(project: Project) -> None:
    for job in project.definitions.resolve_all_job_defs():
        if job.name.startswith("__"):
            continue
        (op,) = job.all_node_defs
        assert isinstance(op, dg.OpDefinition)
        fields = op.config_schema.config_type.fields
        assert fields
        for name, field in fields.items():
            assert field.description, f"{job.name}: {name}"
