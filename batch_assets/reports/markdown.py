"""Text of records inside Markdown: none of it may count as markup."""

import re

SHOWN_CHARACTERS = 200


def as_code(text: str) -> str:
    """Return one line of text as a code span, cut to 200 characters; a backtick inside becomes an apostrophe."""
    line = " ".join(text.split())
    shown = line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
    return f"`{shown.replace('`', chr(39))}`" if shown else "(empty)"


def as_block(text: str) -> str:
    """Return text as a code block, whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
