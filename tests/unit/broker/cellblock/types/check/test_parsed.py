"""A parsed script is freed with its last reference: the tree's C objects hide cycles from the garbage collector."""

import gc
import itertools
import time
import weakref

import pytest

from cellblock.types.check.parsed import ParsedScript


@pytest.mark.parametrize("typescript", [False, True])
def test_nothing_keeps_a_script_that_nobody_uses(typescript: bool) -> None:
    source = ParsedScript("const a = { b: 1 };\nif (a.b) a.c;", typescript)
    assert source.guards is not None
    assert source.node(6, 7) is not None
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None


def test_a_busy_machine_does_not_end_the_reading_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is of the thread's own time: others may have the processor for ten seconds between two looks."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert ParsedScript("n;\n" * 30_000, False).root.child_count == 30_000
