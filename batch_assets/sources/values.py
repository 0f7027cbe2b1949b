"""What becomes of a value that no model should get: control characters, and values of megabytes."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from batch_assets.core.errors import ConfigError
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, SourceBatch

MAX_VALUE_BYTES = 1_048_576
"""The default limit of a value, in bytes of UTF-8: beyond any model's context."""

CONTROL_CHARACTERS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""C0 and DEL, but for tab, line feed and carriage return."""

_CONTROL = re.compile(CONTROL_CHARACTERS)


def has_control(text: str) -> bool:
    """Say whether a text has a control character other than tab, line feed and carriage return."""
    return _CONTROL.search(text) is not None


def check_limit(max_value_bytes: int, place: str) -> None:
    """Raise ConfigError for a limit under which no record could be read."""
    if type(max_value_bytes) is not int or max_value_bytes < 1:
        raise ConfigError(f"{place}: max_value_bytes {max_value_bytes!r}: it is a whole number, 1 or more")


def is_amount(value: object) -> bool:
    """Say whether a setting is a number, finite and not negative; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def clean_values(batch: SourceBatch, fields: Sequence[str], max_value_bytes: int) -> SourceBatch:
    """Set aside the records with a value of `fields` over the limit; make each control character elsewhere a space.

    A space, since some of them part words; a server that reads C strings would cut the text at a NUL. Both are told by
    line. The id is left as it is: the sources refuse one with such a character.
    """
    frame = batch.frame
    lines: list[int] = frame[SOURCE_LINE].to_list()
    malformed = dict[int, str]()
    for name in dict.fromkeys(f for f in fields if f in frame.columns):
        sizes = frame[name].str.len_bytes()
        over: list[int] = (sizes > max_value_bytes).arg_true().to_list()
        for row in over:
            malformed.setdefault(
                lines[row], f"{name}: {sizes[row]:,} bytes, more than max_value_bytes ({max_value_bytes:,})"
            )
    if malformed:
        frame = frame.filter(~pl.col(SOURCE_LINE).is_in(list(malformed)))
    names = [n for n in frame.columns if n not in (ITEM_ID, SOURCE_LINE)]
    cleaned = [found for name in names for found in _list_cleaned(frame, name)]
    if cleaned:
        frame = frame.with_columns([_take(frame, n).str.replace_all(CONTROL_CHARACTERS, " ").alias(n) for n in names])
    return replace(
        batch,
        frame=frame,
        malformed=sorted([*batch.malformed, *malformed.items()]),
        cleaned=sorted([*batch.cleaned, *cleaned]),
    )


def _take(frame: pl.DataFrame, name: str) -> pl.Series:
    """Return a column under no name: polars takes one such as `*` or `^a$` for a pattern of names."""
    return frame[name].alias("")


def _list_cleaned(frame: pl.DataFrame, name: str) -> list[tuple[int, str]]:
    counts = _take(frame, name).str.count_matches(CONTROL_CHARACTERS)
    rows: list[int] = (counts > 0).arg_true().to_list()
    return [(frame[SOURCE_LINE][row], f"{name}: control characters made spaces: {counts[row]}") for row in rows]
