"""A clock that only the test moves."""

import pytest
from clocks import Clock


@pytest.fixture
def clock() -> Clock:
    """Return it."""
    return Clock()
