"""What is told of the text at a syntax error."""

import pytest

from cellblock.script.slips import syntax_hint


@pytest.mark.parametrize(
    ("line", "is_python"),
    [
        ("from codemode.servers import tracker", True),
        ("import json", True),
        ("def total(rows):", True),
        ("for row in rows:", True),
        ("if total > 3:", True),
        ("import x from 'a' from 'b'", False),
        ("for (const row of rows) {", False),
        ("default:", False),
        ("iffy ? a : b", False),
    ],
)
def test_python_is_told(line: str, is_python: bool) -> None:
    assert ("Python" in (syntax_hint(line, 1, 1) or "")) == is_python
