"""A task's nightly schedule: whatever is missing or stale, once a night, by the clock of a place."""

from zoneinfo import ZoneInfo

import dagster as dg

from batch_assets.core.tasks import Task
from batch_assets.dagster.runs import PLAN_JOB, plan_request


def build_nightly_schedule(task: Task) -> dg.ScheduleDefinition:
    """Build the schedule of one task; it is off until somebody turns it on.

    One run per night by the local date, across both changes of the clock: a time that comes twice counts once, one that
    doesn't come is the hour after.
    """
    hour, minute = (int(part) for part in task.nightly.at.split(":"))

    @dg.schedule(
        name=f"{task.name}__nightly",
        job_name=PLAN_JOB,
        cron_schedule=f"{minute} {hour} * * *",
        execution_timezone=task.nightly.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=(
            f"Asks whatever is missing or stale in {task.name}, once a night at {task.nightly.at} by the clock of "
            f"{task.nightly.timezone}. Launches {PLAN_JOB}."
        ),
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        night = context.scheduled_execution_time.astimezone(ZoneInfo(task.nightly.timezone)).date()
        return plan_request(task, run_key=f"{task.name}:{night}")

    return nightly
