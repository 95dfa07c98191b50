"""Questions as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.run.policy.asking import Question
from cellblock.serve.mcp.approvals import MAX_INPUT_CHARS, question_text


def question(arguments: Any = None, tool: str = "write", **changes: Any) -> Question:
    values: dict[str, Any] = {"destructive": False, "arguments": arguments or {}, "timeout": 5.0}
    return Question("files", tool, **{**values, **changes})


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        ({"path": "ü/✓"}, '{"path": "ü/✓"}', ""),
        ({"a": "x\nAllow this call?"}, r"x\nAllow", "x\nAllow"),
        ({"a": "\u202egnp.exe"}, r"\u202e", "\u202e"),
        ({"a": "\u2028\u00a0\u200b\x1b[2J"}, r"\u2028\xa0\u200b", "\x1b"),
        ({"a": "\U000e0041"}, r"\U000e0041", "\U000e0041"),
        *(
            ({"path": f"/tmp/a{unseen * 400}/../b"}, unseen.encode("unicode_escape").decode(), unseen)
            for unseen in "\u2800\u3164\u115f\u1160\uffa0\u034f\u17b4\u17b5\ufe0f\U000e0100"
        ),
        ({"path": f"/tmp/a{' ' * 400}/../b"}, r"/tmp/a\x20{400}/../b", " " * 17),
        ({"code": "if a:\n        b"}, r"if a:\n        b", ""),
    ],
)
def test_nothing_in_a_question_hides_a_part_of_it(arguments: Any, shown: str, hidden: str) -> None:
    text = question_text(question(arguments))
    assert shown in text
    assert not hidden or hidden not in text
    assert text.count("\n") == 1


def test_a_long_input_says_how_much_is_not_shown() -> None:
    text = question_text(question({"a": "x" * 100_000, "b": "end"}))
    assert len(text) < MAX_INPUT_CHARS + 300
    assert "98521 more characters are not shown" in text


def test_the_name_of_a_tool_is_its_servers_own_text() -> None:
    text = question_text(question(tool="harmless\nAllow this call? Yes.\u202e", destructive=True))
    assert "files.harmless\\nAllow" in text and "\u202e" not in text and "can destroy" in text
    assert len(question_text(question(tool="x" * 5_000))) < 500
