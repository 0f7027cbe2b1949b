"""Sort a bank's support tickets: a label, and whether someone has to look now."""

from typing import Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batch_assets.core.task_settings import Operations
from batch_assets.core.tasks import Thresholds
from batch_assets.dagster.llm_task import LlmTask
from batch_assets.sources.files import FileSource


class Triage(BaseModel):
    """What is wanted of a ticket."""

    model_config = ConfigDict(extra="forbid")

    label: Literal["card", "transfer", "login", "loan", "fee", "fraud", "app", "other"]
    urgent: bool


@dg.component_instance
def ticket_triage(_context: dg.ComponentLoadContext) -> LlmTask:
    """Declare the task."""
    return LlmTask(
        name="ticket_triage",
        source=FileSource("tickets/*.csv", key="item_id"),
        output=Triage,
        prompts="prompts",
        models=["smollm2-135m"],
        thresholds=Thresholds(max_error_share=0.10, max_invalid_share=0.05, min_records=20),
        operations=Operations(
            description="Support tickets of a bank, in English and Russian: label and urgency.", owners=["team:support"]
        ),
    )
