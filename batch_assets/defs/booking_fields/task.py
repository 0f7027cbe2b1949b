"""Read a table booking out of a message: how many, which day, what time, whose name, outside or not."""

from typing import Annotated, Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field

from batch_assets.core.task_settings import Acceptance, Operations
from batch_assets.core.tasks import Thresholds
from batch_assets.dagster.llm_task import LlmTask
from batch_assets.sources.files import FileSource


class Booking(BaseModel):
    """What a message says of a booking; null where it says nothing."""

    model_config = ConfigDict(extra="forbid")

    guests: Annotated[int, Field(ge=1, le=40)] | None
    day: (
        Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "today", "tomorrow"]
        | None
    )
    time: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] | None
    name: Annotated[str, Field(max_length=40)] | None
    outside: bool


def refuse_blank_names(booking: Booking) -> str | None:
    """A name is null or says something."""
    return "name is blank" if booking.name is not None and not booking.name.strip() else None


@dg.component_instance
def booking_fields(_context: dg.ComponentLoadContext) -> LlmTask:
    """Declare the task."""
    return LlmTask(
        name="booking_fields",
        source=FileSource("messages/*.jsonl"),
        output=Booking,
        models=["smollm2-135m"],
        acceptance=Acceptance(rules=[refuse_blank_names]),
        thresholds=Thresholds(max_error_share=0.10, max_invalid_share=0.30, min_records=20),
        operations=Operations(
            description="Messages to a restaurant, in English and Russian: the fields of a booking.",
            owners=["team:reservations"],
        ),
    )
