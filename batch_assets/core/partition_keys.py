"""The keys of output partitions. Dagster's definitions of them are in dagster.partitions."""

from dataclasses import dataclass

from batch_assets.core.errors import ConfigError
from batch_assets.core.names import check_key

_SEPARATOR = "|"


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One output partition, batch × variant. As text it is Dagster's key, `<batch>|<variant>`."""

    batch: str
    variant: str

    def __str__(self) -> str:
        return f"{self.batch}{_SEPARATOR}{self.variant}"


def parse_partition_key(text: str) -> PartitionKey:
    """Read `<batch>|<variant>`. Raises ConfigError for anything else."""
    batch, separator, variant = text.partition(_SEPARATOR)
    if not separator:
        raise ConfigError(f"{text!r} is no output partition; one looks like 2026-11-01|v1--model")
    return PartitionKey(check_key(batch, "batch"), check_key(variant, "variant"))
