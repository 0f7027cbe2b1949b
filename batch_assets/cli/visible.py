"""Text that a terminal prints and doesn't obey."""

_VISIBLE = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}


def make_visible(text: str) -> str:
    """Return a text whose control characters are written out: a terminal would obey them."""
    return text.translate(_VISIBLE)
