"""A parsed script is freed with its last reference: the tree's C objects hide cycles from the garbage collector."""

import gc
import weakref

import pytest

from cellblock.typecheck.parsed import ParsedScript


@pytest.mark.parametrize("typescript", [False, True])
def test_nothing_keeps_a_script_that_nobody_uses(typescript: bool) -> None:
    source = ParsedScript("const a = { b: 1 };\nif (a.b) a.c;", typescript)
    assert source.guards is not None
    assert source.node(6, 7) is not None
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None
