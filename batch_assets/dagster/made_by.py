"""Words for an asset's page: the jobs, sensors and schedules that make it."""

from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS, SOURCE_RECORDS, VARIANT_SPECS
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.runs import PLAN_JOB, job_name


def describe_makers(task: Task, asset: str) -> str:
    """Return a paragraph in Markdown that names whatever makes an asset beside a person's click."""
    name = task.name
    turned_on = (
        f"The sensors `{name}__new_data` and `{name}__missing_and_stale` and the schedule `{name}__nightly` launch it, "
        "once they are turned on."
    )
    if asset == LLM_OUTPUTS:
        return f"The job `{PLAN_JOB}` makes whatever is missing or stale. {turned_on}"
    if asset in (SOURCE_RECORDS, VARIANT_SPECS):
        job = job_name(name, Step.SOURCES)
        return f"The job `{PLAN_JOB}` makes what is new or changed, and `{job}` what its config lists. {turned_on}"
    step = Step.FALLBACKS if asset == FALLBACK_OUTPUTS else Step.RESULTS
    sensor = f"{name}__fallback_follows" if asset == FALLBACK_OUTPUTS else f"{name}__results_follow"
    return (
        f"The job `{job_name(name, step)}` makes it. The sensor `{sensor}`, which is on unless somebody turns it off, "
        f"launches that once `{LLM_OUTPUTS}` has changed."
    )
