"""Names that become partition keys and file names: Dagster takes any text and loses some, so they are checked here."""

import re

from batch_assets.core.errors import ConfigError

VARIANT_SEPARATOR = "--"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,99}")
_TASK = re.compile(r"[a-z][a-z0-9_]{0,49}")


def check_key(key: str, what: str) -> str:
    """Return `key` if it can be a partition key and a file name; ConfigError says what `what` may look like."""
    if not _KEY.fullmatch(key) or ".." in key:
        raise ConfigError(
            f"{what} {key!r} can't be a partition key: use letters, digits and _ . = - (first a letter or digit, "
            "at most 100 characters, no '..')"
        )
    return key


def check_task_name(name: str) -> str:
    """Return `name` if it can be a Dagster group and an asset prefix."""
    if not _TASK.fullmatch(name):
        raise ConfigError(f"task name {name!r}: use a lower-case letter, then lower-case letters, digits and _")
    return name


def variant_key(prompt_ver: str, model_id: str) -> str:
    """Return `<prompt_ver>--<model_id>`, the key of a variant; ConfigError if nobody could tell the two apart."""
    for what, part in (("prompt version", prompt_ver), ("model", model_id)):
        check_key(part, what)
        if VARIANT_SEPARATOR in part or part.endswith("-"):
            words = f"{VARIANT_SEPARATOR!r} separates prompt and model, so no name holds it or ends in '-'"
            raise ConfigError(f"{what} {part!r}: {words}")
    return check_key(f"{prompt_ver}{VARIANT_SEPARATOR}{model_id}", "variant")
