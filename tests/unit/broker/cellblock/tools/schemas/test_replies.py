"""What is said to questions: what fits, what is refused, and what a server gets of it."""

import json
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.questions import Given, ParkedQuestion, QuestionId, QuestionKind
from cellblock.tools.schemas.replies import MAX_REPLY_BYTES, WrongAnswer, checked, result_of

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "age": {"type": "integer"}},
    "required": ["name"],
}
SAID = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}


def question(kind: QuestionKind = "elicitation", schema: Any = FORM) -> ParkedQuestion:
    params = {"mode": "form", "message": "Who?", "requestedSchema": schema}
    return ParkedQuestion(
        call=3,
        server="files",
        tool="write",
        destructive=False,
        input="{}",
        bytes=2,
        kind=kind,
        nth=0 if kind == "approval" else 2,
        request=json.dumps(params) if kind == "elicitation" else "{}",
    )


def test_each_question_of_a_run_has_a_name_of_its_own() -> None:
    assert [str(one.id) for one in (question("approval"), question())] == ["3", "3.2"]
    for text, named in (("3", (3, 0)), ("3.2", (3, 2)), ("2000000003", (3, 2)), ("1001000000007", (7, 1001))):
        assert QuestionId.parse(text) == QuestionId(*named), "also as 0.1.0 has written it"


@pytest.mark.parametrize("text", ["", "x", "3.", ".3", "-1", "3.2.1", "3 ", "\u0663", "9" * 41])
def test_what_names_no_question(text: str) -> None:
    with pytest.raises(ValueError, match="names no question"):
        QuestionId.parse(text)


@pytest.mark.parametrize(
    "given",
    [
        "accepted",
        {"action": "accept"},
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"name": "A"}},
        {"action": "accept", "content": {"name": 5}},
        {"action": "accept", "content": {"name": "Ann", "age": "old"}},
        {"action": "accept", "content": {"name": "x" * MAX_REPLY_BYTES}},
        {"action": "yes"},
        {"name": "Ann"},
        SAID,
        {"roots": []},
        {},
    ],
)
def test_what_does_not_fit_a_form_is_refused(given: Given) -> None:
    with pytest.raises(WrongAnswer, match=r"does not fit.*still open"):
        checked(question(), given)


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
def test_a_form_that_is_filled_in_or_not_is_given_to_the_server(action: str) -> None:
    given: dict[str, Any] = {"action": action, "content": {"name": "Ann", "age": 5}}
    if action != "accept":
        del given["content"]
    assert result_of("elicitation", checked(question(), given)) == types.ElicitResult(**given)


def test_words_answer_what_needs_no_more() -> None:
    plain = question(schema={"type": "object", "properties": {}})
    for word, action in (("accepted", "accept"), ("declined", "decline"), ("cancelled", "cancel")):
        found = result_of("elicitation", checked(plain, word))  # pyright: ignore[reportArgumentType]
        assert isinstance(found, types.ElicitResult) and found.action == action
    login = question("login")
    assert checked(login, "accepted") == "accepted" and checked(login, {"action": "decline"}) == "declined"
    for kind in ("login", "approval"):
        with pytest.raises(WrongAnswer, match="yes or no"):
            checked(question(kind), SAID)


def test_a_model_and_roots_are_answered_by_results_or_refused() -> None:
    sampling, roots = question("sampling"), question("roots")
    assert isinstance(result_of("sampling", checked(sampling, SAID)), types.CreateMessageResult)
    listed: dict[str, Any] = {"roots": [{"uri": "file:///a"}]}
    assert isinstance(result_of("roots", checked(roots, listed)), types.ListRootsResult)
    for one in (sampling, roots):
        assert isinstance(result_of(one.kind, checked(one, "declined")), types.ErrorData)
        for wrong in ("accepted", {"action": "accept"}):
            with pytest.raises(WrongAnswer):
                checked(one, wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"name": {"type": "string", "pattern": "(a+)+$"}}},
        {"$ref": "#"},
        {"type": "nonsense"},
        {"allOf": [{"properties": {f"p{n}": {"type": "string"} for n in range(2_000)}}] * 20},
    ],
)
def test_a_schema_that_cannot_be_checked_is_the_servers_to_judge(schema: Any) -> None:
    given: Given = {"action": "accept", "content": {"name": "a" * 5_000 + "!"}}
    try:
        assert checked(question(schema=schema), given) == given
    except WrongAnswer:
        # It was checked after all, in its bounds.
        assert "pattern" in json.dumps(schema)
