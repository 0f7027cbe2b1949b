"""The steps of a task, in the order of the data."""

from enum import StrEnum


class Step(StrEnum):
    """What is made of a partition: its frozen records, its outputs, the fallback's answers, or its results."""

    SOURCES = "sources"
    OUTPUTS = "outputs"
    FALLBACKS = "fallbacks"
    RESULTS = "results"
