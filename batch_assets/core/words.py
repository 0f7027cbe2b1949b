"""Numbers as a person says them."""


def format_count(number: int, one: str, many: str = "") -> str:
    """Return `1 batch`, `2 batches`; `many` is `one` with an s unless it is given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
