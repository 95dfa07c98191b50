"""What a run's answers say of fields, and of what scripts got in place of what was assumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.run import answers as module
from cellblock.run.answers import Answers
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ToolOutput

SERVER = ServerEntry("tracker", "Tracker", "tracker")
TOOL = ToolEntry("list", "list")


def answered(value: Any, kind: Any = "value", *, keeps: bool = True) -> Answers:
    answers = Answers(keeps)
    answers.add("tracker", "list", kind, json.dumps(value).encode())
    return answers


@pytest.mark.parametrize(
    "value",
    [
        {"title": 1},
        {"deep": [{"title": None}]},
        json.dumps({"title": 1}),
        {"text": json.dumps({"inner": json.dumps({"title": 1})})},
    ],
    ids=["at the top", "deep", "in a JSON text", "in a JSON text in a JSON text"],
)
def test_a_field_is_found_wherever_it_is(value: Any) -> None:
    answers = answered(value)
    assert answers.may_have("title")
    for other in ("titl", "itle", "Title", "titles", "t.tle"):
        assert not answers.may_have(other)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_field_is_found_however_its_letters_are_written(ascii_only: bool) -> None:
    answers = Answers(keeps=True)
    answers.add("tracker", "list", "value", json.dumps({"größe": 1}, ensure_ascii=ascii_only).encode())
    assert answers.may_have("größe") and not answers.may_have("grösse")


def test_what_was_not_kept_may_have_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Answers(keeps=True).may_have("title"), "no tool was called"
    assert answered({}, keeps=False).may_have("title")
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 10)
    assert answered({"a": 1}).may_have("title") is False
    assert answered({"a": 1, "b": 2}).may_have("title")


DECLARED = ToolOutput("declared", "", schema={"type": "object"})


@pytest.mark.parametrize(
    ("value", "kind", "assumed", "got"),
    [
        ('{"a": 1}', "text", DECLARED, "document"),
        ('[{"a": 1}]', "text", None, "document"),
        ("{a sentence in braces", "text", None, "text"),
        ("a sentence", "text", DECLARED, "text"),
        ({"a": 1}, "json", DECLARED, None),
        ({"a": 1}, "value", None, None),
        ('{"a": 1}', "text", ToolOutput("observed", "", document={}), None),
        ("a sentence", "text", ToolOutput("observed", "", text=True), None),
    ],
)
def test_texts_where_something_else_was_assumed(value: Any, kind: str, assumed: Any, got: str | None) -> None:
    found = answered(value, kind).unlike([(SERVER, TOOL, assumed)])
    if got is None:
        assert found == {}
    else:
        output = found["tracker", "list"]
        assert (output.document is not None, output.text) == (got == "document", got == "text")


def test_one_value_among_texts_and_nothing_is_said() -> None:
    answers = answered('{"a": 1}', "text")
    assert answers.texts() == [("tracker", "list")]
    answers.add("tracker", "list", "value", b'{"a": 1}')
    assert answers.unlike([(SERVER, TOOL, DECLARED)]) == {} and answers.texts() == []
