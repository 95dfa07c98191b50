"""Files of people, with comments, indentation and odd places, come out as they were but for what was asked for."""

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cellblock.app.config.edit import REMOVED, EditFault, edited, read

WITH_COMMENTS = """{
  // top
  "a": 1, // one
  "mcp": {
    "x": {"k": 2}, // behind x
    /* odd */ "y": [1, 2,] // last, and "quoted": {
  },
}
"""

KEYS = st.sampled_from(["a", "b", "mcp", "x y", 'q"uote', "//no", "ü"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def test_a_new_member_stands_behind_the_comment_of_the_last() -> None:
    after = edited(WITH_COMMENTS, "json", {("mcp", "new"): {"c": [1]}})
    assert after == WITH_COMMENTS.replace(
        '[1, 2,] // last, and "quoted": {\n',
        '[1, 2,], // last, and "quoted": {\n    "new": {\n      "c": [\n        1\n      ]\n    }\n',
    )


def test_a_removed_member_takes_its_line_and_its_comma_along() -> None:
    assert '"a"' not in edited(WITH_COMMENTS, "json", {("a",): REMOVED})
    last = edited(WITH_COMMENTS, "json", {("mcp", "y"): REMOVED})
    assert '"x": {"k": 2} // behind x\n' in last and "// top" in last
    assert edited('{"a": 1, "b": 2}', "json", {("b",): REMOVED}) == '{"a": 1}'
    assert edited('{"a": 1, "b": 2}', "json", {("a",): REMOVED}) == '{"b": 2}'
    assert edited("{}", "json", {("a", "b"): REMOVED}) == "{}"


@pytest.mark.parametrize("text", ["", "\n", "// nothing yet\n"])
def test_an_empty_file_gets_an_object(text: str) -> None:
    after = edited(text, "json", {("mcp", "x"): 1})
    assert read(after, "json") == {"mcp": {"x": 1}} and text.strip() in after


def test_tabs_and_line_ends_are_kept() -> None:
    assert edited('{\n\t"a": {\n\t}\n}', "json", {("a", "b"): {"c": 1}}) == (
        '{\n\t"a": {\n\t\t"b": {\n\t\t\t"c": 1\n\t\t}\n\t}\n}'
    )
    windows = edited('{\r\n  "a": 1\r\n}\r\n', "json", {("b",): {"c": 1}})
    assert windows.count("\n") == windows.count("\r\n") == 6


def test_a_key_that_stands_twice_is_not_touched() -> None:
    with pytest.raises(EditFault, match="twice"):
        edited('{"a": {"b": 1, "b": 2}}', "json", {("c",): 1})


@pytest.mark.parametrize("form", ["json", "toml", "yaml"])
def test_a_value_on_the_way_is_not_overwritten(form: Any) -> None:
    text = {"json": '{"a": 1}', "toml": "a = 1\n", "yaml": "a: 1\n"}[form]
    with pytest.raises(EditFault, match="a is no object"):
        edited(text, form, {("a", "b"): 1})


@given(
    data=st.dictionaries(KEYS, VALUES, max_size=4),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    changes=st.dictionaries(
        st.lists(KEYS, min_size=1, max_size=3).map(tuple), VALUES | st.just(REMOVED), max_size=3
    ),
    comments=st.booleans(),
)
def test_what_is_not_asked_for_stays(data: Any, indent: Any, changes: Any, comments: bool) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if comments:
        # Behind each comma that is no part of a text, as JSON with one value a line shows it.
        text = re.sub(r"([\[{,])\n", r"\1 // a \\ comment, with {\n", text) + "\n/* the end */\n"
    wanted = json.loads(json.dumps(data))
    try:
        after = edited(text, "json", changes)
    except EditFault as error:
        assert "is no object" in str(error)
        return
    for path, value in changes.items():
        at = wanted
        for key in path[:-1]:
            at = at.setdefault(key, {}) if value is not REMOVED else at.get(key, {})
        if value is REMOVED:
            at.pop(path[-1], None)
        else:
            at[path[-1]] = value
    assert read(after, "json") == wanted
    assert not comments or after.endswith("/* the end */\n")


def test_toml_keeps_comments_and_order() -> None:
    text = 'model = "x" # hi\n\n[mcp_servers.other]\ncommand = "y" # why\n\n[tui]\nz = 1979-05-27\n'
    after = edited(text, "toml", {("mcp_servers", "new"): {"command": "c", "args": ["a"], "env": {"A": "b"}}})
    assert [line for line in text.splitlines() if line and line not in after.splitlines()] == []
    assert tomllib.loads(after)["mcp_servers"]["new"] == {"command": "c", "args": ["a"], "env": {"A": "b"}}
    assert tomllib.loads(edited(after, "toml", {("mcp_servers", "new"): REMOVED})) == tomllib.loads(text)
    once = edited("", "toml", {("mcp_servers", "new"): {"command": "c"}})
    assert tomllib.loads(edited(once, "toml", {("mcp_servers", "new"): REMOVED})) == {}


@pytest.mark.parametrize("dash", ["", "  "])
def test_yaml_keeps_comments_quotes_and_indentation(dash: str) -> None:
    text = f"A: 'x' # why\nextensions:\n  dev:\n    on: yes\n    args:\n    {dash}- a\n    {dash}- \"b\"\nlast: 1.50\n"
    after = edited(text, "yaml", {("extensions", "new"): {"enabled": True, "args": ["a"]}})
    assert [line for line in text.splitlines() if line not in after.splitlines()] == []
    said = YAML(typ="safe", pure=True).load(after)
    assert said["extensions"]["new"] == {"enabled": True, "args": ["a"]}
    assert edited(after, "yaml", {("extensions", "new"): REMOVED}) == text


@pytest.mark.parametrize(("form", "text"), [("yaml", "a: [1\n"), ("yaml", "- 1\n"), ("json", "[1]")])
def test_what_holds_no_object_is_refused(form: Any, text: str) -> None:
    with pytest.raises(EditFault):
        edited(text, form, {("a",): 1})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("toml", "mcp = {x = {command = 'c'}}\n"),
        ("yaml", "d: 2024-13-45\n"),
        ("yaml", "a:   1   # laid out by hand\nb:\n     c: 2\n"),
    ],
)
def test_what_the_libraries_cannot_keep_is_left_alone(form: Any, text: str) -> None:
    with pytest.raises(EditFault):
        edited(text, form, {("mcp", "new"): {"command": "c"}})
