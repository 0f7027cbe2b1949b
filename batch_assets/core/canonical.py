"""Canonical JSON and the hashes made of it: the ground under every identity. What is hashed is decided elsewhere."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import cast

DIGEST_HEX_DIGITS = 24


def normalise(value: object) -> object:
    """Return `value` with every string in Unicode's composed form (NFC), so that equal texts hash alike."""
    if isinstance(value, str):
        return value if value.isascii() else unicodedata.normalize("NFC", value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {str(normalise(str(k))): normalise(v) for k, v in pairs}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [normalise(v) for v in cast("Sequence[object]", value)]
    return value


def canonical_json(value: object) -> str:
    """Return the one JSON text of `value`: sorted keys, no spaces, NFC strings.

    Raises ValueError for NaN and Infinity, TypeError for what JSON has no word for.
    """
    return json.dumps(normalise(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def exact_json(value: object) -> str:
    """Return the one JSON text of `value` with its strings as they are: two spellings of a letter are two texts.

    Of a value whose strings are all NFC it is the canonical JSON. Raises what that raises.
    """
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """Return 24 hex digits (96 bits) of the SHA-256 of the canonical JSON of `value`."""
    return digest_text(canonical_json(value))


def digest_exact(value: object) -> str:
    """Return 24 hex digits of the exact JSON of `value`: two spellings of a letter are two texts."""
    return digest_text(exact_json(value))


def digest_text(text: str) -> str:
    """Return 24 hex digits of the SHA-256 of `text`; an unpaired surrogate is hashed as it is, not refused."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_HEX_DIGITS]
