"""Patterns of tools, and how they are written."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cellblock.base.settings.policy import Grant
from cellblock.run.policy.patterns import any_fits, fits, glob, may_fit_server
from cellblock.tools.catalog.model import ToolEntry


@pytest.mark.parametrize(
    ("pattern", "server", "tool", "expected"),
    [
        ("*", "files", "read", True),
        ("files.*", "files", "read", True),
        ("files.read", "files", "read", True),
        ("files.read", "files", "read_all", False),
        ("files.read_*", "files", "read_all", True),
        ("files.*_all", "files", "read_all", True),
        ("*.read", "files", "read", True),
        ("*.read", "files", "write", False),
        ("file*.r*d", "files", "read", True),
        ("files.Read", "files", "read", False),
        ("files--2.*", "files", "read", False),
        # The first dot ends the server: a tool that is called like a server and a tool is no other server's.
        ("a.b.c", "a", "b.c", True),
        ("a.b.*", "a", "b", False),
        # The function's name is a name of the tool, too.
        ("files.get_file", "files", "get-file", True),
        ("files.get-file", "files", "get-file", True),
        ("files.__proto__", "files", "read", False),
    ],
)
def test_what_fits(pattern: str, server: str, tool: str, expected: bool) -> None:
    entry = ToolEntry(tool, re.sub(r"\W", "_", tool))
    assert fits(pattern, server, entry) is expected
    if expected:
        assert may_fit_server(pattern, server)


@given(st.text("ab*", max_size=12), st.text("ab", max_size=12))
def test_a_star_is_any_characters(pattern: str, text: str) -> None:
    assert glob(pattern, text) == fnmatch.fnmatchcase(text, pattern)


def test_a_pattern_of_a_request_cannot_hold_the_broker() -> None:
    began = time.process_time()
    assert not glob("a*" * 299 + "b", "a" * 600)
    assert time.process_time() - began < 1


def test_stars_in_a_row_cost_nothing() -> None:
    patterns = ["f" + "*" * 595 + f"{number}.x" for number in range(200)]
    began = time.process_time()
    for _ in range(100):
        assert not any_fits(patterns, "files", ToolEntry("read", "read"))
    assert time.process_time() - began < 0.5
    assert glob("a**b***", "a-b") and not glob("a**b***", "-ab")


@pytest.mark.parametrize("pattern", ["", "files", "files.", ".read", "x" * 601, 7, None])
def test_what_is_no_pattern_says_what_is_meant(pattern: object) -> None:
    with pytest.raises(ValidationError, match=r"server\.tool|characters|string"):
        Grant.model_validate({"tools": [pattern]})
