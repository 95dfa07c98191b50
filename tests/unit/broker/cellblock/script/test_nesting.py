"""What is refused because it would use up the stack of the worker's parsers, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellblock.script.imports import TooComplex, find_imports
from cellblock.script.nesting import MAX_COST, MAX_LEVELS

BOUND = 20.0
"""Far more than these texts take."""


def refused(code: str) -> bool:
    try:
        find_imports(code.encode(), BOUND)
    except TooComplex as error:
        assert "nested too deeply" in str(error)
        return True
    return False


LEVELS: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "[" * n + "]" * n,
    "parentheses": lambda n: "(" * n + "1" + ")" * n,
    "blocks": lambda n: "{" * n + "}" * n,
    "templates": lambda n: "`${" * n + "1" + "}`" * n,
    "functions": lambda n: "(() => {" * n + "})" * n,
    "objects": lambda n: "({ a: " * n + "1" + "})" * n,
    "arrows": lambda n: "a => " * n + "1",
    "types": lambda n: "let a: " + "A<" * n + "1" + ">" * n,
    "open brackets": lambda n: "[" * n,
    "open parentheses": lambda n: "(" * n,
    "open templates": lambda n: "`${" * n,
    "open functions": lambda n: "(()=>{" * n,
    "open arrows": lambda n: "a=>" * n,
    "open classes": lambda n: "class A{static{" * n,
}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_are_refused_from_some_depth_on(name: str) -> None:
    """Crashing takes 300 levels of the dearest form, which are several brackets or nodes each."""
    assert not refused(LEVELS[name](50))
    assert refused(LEVELS[name](MAX_LEVELS + 10))
    assert refused("const before = 1;\n" * 100 + LEVELS[name](1000))


CHAINS: dict[str, Callable[[int], str]] = {
    "sums": lambda n: "1 + " * n + "1",
    "negations": lambda n: "!" * n + "1",
    "calls": lambda n: "f" + "()" * n,
    "members": lambda n: "a" + ".b" * n,
    "conditions": lambda n: "a ? 1 : " * n + "1",
    "else": lambda n: "if (a) 1; else " * n + "1;",
}


@pytest.mark.parametrize("name", CHAINS)
def test_long_chains_are_ordinary_and_very_long_ones_are_refused(name: str) -> None:
    assert not refused(CHAINS[name](1_000))
    assert refused(CHAINS[name](MAX_COST + 10))


def test_what_is_long_but_flat_is_fine() -> None:
    many = 3_000
    assert not refused("f([{ a: (1) }]);\n" * many)
    assert not refused("[" + "[1], " * many + "]")
    assert not refused("const text = `" + "[({" * many + "`;")
    assert not refused("a, " * many + "a")


def test_an_ordinary_mistake_in_a_long_script_stays_a_syntax_error() -> None:
    assert not refused("f([{ a: (1) }]);\n" * 500 + "const = 1;\n" + "g({ b: [2] });\n" * 500)
