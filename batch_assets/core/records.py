"""Records and what makes one of them the same as before. Reading them is the sources' work."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batch_assets.core.canonical import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One input row. `fields` holds text or None by column; `item_id` is unique inside a task."""

    item_id: str
    fields: Mapping[str, str | None]


def input_hash(record: Record, field_names: Iterable[str]) -> str:
    """Return 24 hex digits over the fields that a prompt uses, Unicode-normalised; other fields don't matter."""
    return digest({name: record.fields.get(name) for name in field_names})


def is_blank(record: Record, field_names: Iterable[str]) -> bool:
    """Say whether all of `field_names` are null or whitespace, so that there is nothing to ask about."""
    return all(not (record.fields.get(name) or "").strip() for name in field_names)
