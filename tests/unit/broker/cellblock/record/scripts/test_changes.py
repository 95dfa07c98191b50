"""The table of changes: each row is found, and what the table says does not matter is no alarm."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as some

from cellblock.record.scripts.changes import compared
from support.params import mostly

INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["open", "closed", "done"], "description": "Which."},
        "label": {"type": "string"},
        "limit": {"type": "integer", "default": 10},
    },
    "required": ["status"],
    "additionalProperties": False,
}
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "issues": {"type": "array", "items": {"$ref": "#/$defs/Issue"}},
        "total": {"type": "integer"},
        "page": {"type": "integer"},
    },
    "required": ["issues", "total", "page"],
    "$defs": {
        "Issue": {
            "type": "object",
            "title": "Issue",
            "properties": {
                "title": {"type": "string"},
                "opened": {"type": "string"},
                "owner": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "mail": {"type": "string"}},
                },
                "state": {"type": "string", "enum": ["open", "closed"]},
                "weight": {"type": ["number", "null"]},
            },
            "required": ["title", "opened", "owner", "state", "weight"],
        }
    },
}
CODE = """import { list_issues } from "@codemode/servers/tracker";
const { issues, total } = await list_issues({ status: "open" });
globalThis.__codemode_result__ = issues.map((one) => [one.title, one.owner.name, one.state, one.weight]);
"""
SENT = {"status": "open"}
ISSUE = {
    "title": "t",
    "opened": "2026",
    "owner": {"name": "ann", "mail": "a@b"},
    "state": "open",
    "weight": None,
}
GOT = {"issues": [ISSUE], "total": 1, "page": 1}

RANK = ["works", "changed", "broken"]


def verdict(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> str:
    """What a change of the schemas means."""
    after = copy.deepcopy([INPUT, OUTPUT])
    change(after[0], after[1])
    return worst([INPUT, OUTPUT], after)


def worst(before: list[Any], after: list[Any]) -> str:
    found = [one.verdict for one in compared("tracker.list_issues", CODE, before, after, [SENT], [GOT])]
    return max(found, key=RANK.index, default="works")


def issue(output: dict[str, Any]) -> dict[str, Any]:
    return output["$defs"]["Issue"]["properties"]


def one_more_required(taken: dict[str, Any], _given: dict[str, Any]) -> None:
    taken["properties"]["project"] = {"type": "string"}
    taken["required"].append("project")


ROWS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], object]]] = {
    "a required input": ("broken", one_more_required),
    "an optional input is required": ("broken", lambda taken, _: taken["required"].append("label")),
    "a retyped input": ("broken", lambda taken, _: taken["properties"]["status"].update(type="integer")),
    "an enum value in use": (
        "broken",
        lambda taken, _: taken["properties"]["status"].update(enum=["closed"]),
    ),
    "a field that is read is gone": ("broken", lambda _, out: issue(out).pop("title")),
    "a field of a field that is read": (
        "broken",
        lambda _, out: issue(out)["owner"]["properties"].pop("name"),
    ),
    "a list that is read is gone": ("broken", lambda _, out: out["properties"].pop("issues")),
    "a retyped field": ("broken", lambda _, out: issue(out)["title"].update(type="integer")),
    "a list becomes an object": (
        "broken",
        lambda _, out: out["properties"].update(issues={"type": "object", "properties": {}}),
    ),
}


@pytest.mark.parametrize(("expected", "change"), ROWS.values(), ids=ROWS)
def test_each_row_of_the_table(expected: str, change: Callable[..., object]) -> None:
    assert verdict(change) == expected


def test_a_recorded_result_that_does_not_fit() -> None:
    assert verdict(lambda _, out: issue(out)["state"].update(enum=["closed"])) == "changed"
    outputs = [(OUTPUT, None), (None, OUTPUT), (None, {"type": "array"})]
    assert [worst([INPUT, old], [INPUT, new]) for old, new in outputs] == ["changed", "works", "broken"]


def test_where_it_is_said() -> None:
    after = copy.deepcopy(OUTPUT)
    del issue(after)["title"]
    found = [*compared("tracker.list_issues", CODE, [INPUT, OUTPUT], [INPUT, after], [SENT], [GOT])]
    assert [one.place for one in found] == ["tracker.list_issues output/issues/0/title"]


# ---- what does not matter ----------------------------------------------------------------------------

Change = Callable[[dict[str, Any], dict[str, Any], str], object]

HARMLESS: list[Change] = [
    lambda taken, _, word: taken.update(description=word),
    lambda taken, _, word: taken["properties"]["status"].update(description=word, title=word),
    lambda taken, _, word: taken["properties"]["limit"].update(default=len(word), examples=[1]),
    lambda taken, _, word: taken["properties"].update({"new_" + word: {"type": "string"}}),
    lambda taken, _, word: taken["properties"]["status"].update(enum=["open", "closed", "done", word]),
    lambda taken, _, __: taken["properties"]["status"].update(enum=["open", "done"]),
    lambda taken, _, __: taken["properties"].pop("label", None),
    lambda taken, _, __: taken["properties"]["limit"].update(type="number"),
    lambda taken, _, __: taken.update(additionalProperties=True),
    lambda taken, _, __: taken.update(properties=dict(reversed(taken["properties"].items()))),
    lambda _, out, word: out.update(title=word, description=word),
    lambda _, out, word: out["properties"].update({"new_" + word: {"type": "string"}}),
    lambda _, out, word: (
        out["properties"].update({"must_" + word: {"type": "string"}}),
        out["required"].append("must_" + word),
    ),
    lambda _, out, word: issue(out).update({"new_" + word: {"type": "string"}}),
    lambda _, out, word: (
        issue(out).update({"must_" + word: {"type": "string"}}),
        out["$defs"]["Issue"]["required"].append("must_" + word),
    ),
    lambda _, out, __: issue(out).pop("opened", None),
    lambda _, out, __: out["properties"].pop("page", None),
    lambda _, out, __: out["properties"].update(page={"type": "string"}),
    lambda _, out, __: issue(out)["owner"]["properties"].pop("mail", None),
    lambda _, out, word: issue(out)["title"].update(description=word, examples=[word]),
    lambda _, out, __: issue(out)["state"].update(enum=["open", "closed", "else"]),
    lambda _, out, __: out["$defs"]["Issue"].update(properties=dict(reversed(issue(out).items()))),
    lambda _, out, __: out["$defs"]["Issue"].update(additionalProperties=False),
    lambda _, out, __: issue(out)["weight"].update(type=["null", "number"]),
]


WORDS = some.from_regex("zz[a-z]{1,8}", fullmatch=True)


@pytest.mark.parametrize("most", mostly([25], [25, 200]))
def test_what_does_not_matter_is_no_alarm(most: int) -> None:
    @settings(max_examples=most)
    @given(some.lists(some.tuples(some.sampled_from(HARMLESS), WORDS), min_size=1))
    def tried(changes: list[tuple[Change, str]]) -> None:
        assert verdict(lambda taken, out: [change(taken, out, word) for change, word in changes]) == "works"

    tried()
