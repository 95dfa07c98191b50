"""Other pauses between attempts to connect to servers than half a second and more."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cellblock.tools.upstream import lifecycle


@contextmanager
def retrying(first: float, longest: float) -> Iterator[None]:
    """Has sessions that begin in the block wait so many seconds at first, and at most."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lifecycle, "FIRST_PAUSE_SECONDS", first)
        patched.setattr(lifecycle, "LONGEST_PAUSE_SECONDS", longest)
        yield


@pytest.fixture
def quick_retries() -> Iterator[None]:
    """Has sessions connect again at once."""
    with retrying(0.05, 0.2):
        yield
