"""A configuration file's text: syntax errors and places, edits where it stands, and its references."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from ruamel.yaml import YAML

from cellblock.app.config.edit import REMOVED, EditFault, edited, read
from cellblock.app.config.references import MAX_FILE_BYTES, Resolver, input_variable
from cellblock.base.settings.syntax import (
    Path as Place,
    Position,
    SyntaxFault,
    find_positions,
    parse,
    position_at,
    without_comments,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1} // end', {"a": 1}),
        ('// first\n{"a": /* , */ [1, 2,], }', {"a": [1, 2]}),
        ('{"url": "http://x/*y*/", "b": ",]",}', {"url": "http://x/*y*/", "b": ",]"}),
        ('{"quote\\"//": "\\\\",}', {'quote"//': "\\"}),
        ('{"a": [1 /* one */ , /* nothing */ ]}', {"a": [1]}),
    ],
)
def test_json_as_vs_code_allows_it(text: str, value: Any) -> None:
    assert parse(text, toml=False) == value
    assert len(without_comments(text)) == len(text)


@pytest.mark.slow
@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_plain_json_is_left_as_it_is(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert without_comments(text) == text


@pytest.mark.parametrize(
    ("text", "toml", "where"),
    [
        ("{", False, Position(1, 2)),
        ('{"a": 1,\n  b: 2}', False, Position(2, 3)),
        ('{\n// a comment, "x"\n"a" 1}', False, Position(3, 5)),
        ('{"a": "never ends}', False, Position(1, 7)),
        ("", False, Position(1, 1)),
        ("a = 1\nb = ", True, Position(2, 5)),
        ("[a\nb = 1", True, Position(1, 3)),
        ("a = 1\na = 2\n", True, Position(2, 6)),
        ("[" * 100_000, False, Position(1, 1)),
        ('{"a": ' + "1" * 5_000 + "}", False, Position(1, 1)),
    ],
)
def test_the_place_where_it_ends_being_valid(text: str, toml: bool, where: Position) -> None:
    with pytest.raises(SyntaxFault) as caught:
        parse(text, toml=toml)
    assert caught.value.position == where
    assert "line" not in caught.value.message or "newline" in caught.value.message


def test_lines_and_columns() -> None:
    text = "ab\n\u00e4\U0001f600x\n"
    assert [position_at(text, offset) for offset in (0, 2, 3, 5, 7)] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
        (3, 1),
    ]


@pytest.mark.parametrize("unit", ["/*", ",", '"', "//", ", ", '{"'])
def test_text_that_is_made_to_take_long_does_not(unit: str) -> None:
    with pytest.raises(SyntaxFault):
        parse('{"a": ' + unit * 500_001, toml=False)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def places(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_every_json_value_is_where_it_is_said_to_be(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    found = find_positions(text, toml=False)
    expected = dict(places(value))
    assert set(found.values) == set(expected)
    assert set(found.keys) == {path for path in expected if path and isinstance(path[-1], str)}
    decoder = json.JSONDecoder()
    for path, below in expected.items():
        assert decoder.raw_decode(text, found.values[path])[0] == below
        if path in found.keys:
            assert decoder.raw_decode(text, found.keys[path])[0] == path[-1]
    assert found.duplicates == []


TOML = r'''
title = "a # b"        # a comment with [brackets]
"quoted.key".'other' = { q = [1, 2, { r = "#]}" }], 's' = 2020-01-01 10:00:00 }
a . b.c = -1_000

[t . u]
basic = """one "two" ""three"" four"""
literal = \'\'\'it's ''fine\'\'\'
ends = """two quotes"""""
escaped = "say \"x\" \\"
empty = ""
day = 1979-05-27
inf = +inf
list = [
  "x", # one

  [ ], { }, [ [ 1 ], 2 ],
]

[[many]]
v = 1
[many.sub]
w = true
[[many.deep]]
x = 0x1F
[[many.deep]]
x = 2
[[many]]
v = 'C:\temp'
[z]
'''.replace("\\'", "'")


INLINE = [("quoted.key", "other"), ("t", "u", "list")]


def test_every_toml_value_is_where_it_is_said_to_be() -> None:
    """What is within a value stands where that does."""
    data = tomllib.loads(TOML)
    found = find_positions(TOML, toml=True)
    expected = dict(places(data))
    within = {path for path in expected if any(path[:n] in INLINE for n in range(len(path)))}
    assert set(found.values) == set(expected) - within
    lines = TOML.splitlines(keepends=True)
    for path, value in expected.items():
        position = found.find(path, key=False)
        if path in within:
            assert position == found.find(next(one for one in INLINE if path[: len(one)] == one), key=False)
            continue
        assert sum(map(len, lines[: position.line - 1])) + position.column - 1 == found.values[path]
        if not isinstance(value, dict | list):
            assert _first_value(TOML[found.values[path] :]) == value, path
    for path, offset in found.keys.items():
        assert TOML[offset:].startswith((str(path[-1]), f'"{path[-1]}"', f"'{path[-1]}'")), path


def _first_value(text: str) -> Any:
    """What TOML reads at the beginning of a text: of the longest part that is a value."""
    for end in range(min(len(text), 60), 0, -1):
        try:
            return tomllib.loads(f"k = {text[:end]}")["k"]
        except tomllib.TOMLDecodeError:
            continue
    return None


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(key, ensure_ascii=False)} = {toml_value(below)}" for key, below in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",\n ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@settings(max_examples=40)
@given(
    st.dictionaries(
        KEYS,
        st.recursive(
            st.booleans() | st.integers(-(2**63), 2**63 - 1) | KEYS,
            lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
            max_leaves=12,
        ),
    )
)
def test_any_toml_document_is_walked_to_its_end(document: dict[str, Any]) -> None:
    text = "".join(
        f"{json.dumps(key, ensure_ascii=False)} = {toml_value(value)} # x\n"
        for key, value in document.items()
    )
    assert tomllib.loads(text) == document
    assert set(find_positions(text, toml=True).values) == {(), *((key,) for key in document)}


def test_a_key_that_is_there_twice() -> None:
    found = find_positions('{"a": 1,\n "b": {"c": 1, "c": [2]}}', toml=False)
    assert [(path, found.at(offset)) for path, offset in found.duplicates] == [(("b", "c"), Position(2, 16))]
    assert found.find(("b", "c", 0), key=False) == Position(2, 22)


@pytest.mark.parametrize(
    ("path", "key", "where"),
    [
        (("a",), True, Position(1, 2)),
        (("a",), False, Position(1, 7)),
        (("a", "missing"), True, Position(1, 7)),
        (("a", "b", 7), False, Position(2, 7)),
        (("nothing",), True, Position(1, 1)),
    ],
)
def test_what_is_not_there_is_where_it_would_be(path: Place, key: bool, where: Position) -> None:
    assert find_positions('{"a": {\n "b": [1]}}', toml=False).find(path, key=key) == where


WITH_COMMENTS = """{
  // top
  "a": 1, // one
  "mcp": {
    "x": {"k": 2}, // behind x
    /* odd */ "y": [1, 2,] // last, and "quoted": {
  },
}
"""

MEMBERS = st.sampled_from(["a", "b", "mcp", "x y", 'q"uote', "//no", "ü"])
MEMBER_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        # A new member stands behind the comment of the last, with the tabs that there are.
        (
            WITH_COMMENTS,
            ("mcp", "new"),
            {"c": [1]},
            WITH_COMMENTS.replace(
                '[1, 2,] // last, and "quoted": {\n',
                '[1, 2,], // last, and "quoted": {\n    "new": {\n      "c": [\n        1\n      ]\n    }\n',
            ),
        ),
        ('{\n\t"a": {\n\t}\n}', ("a", "b"), {"c": 1}, '{\n\t"a": {\n\t\t"b": {\n\t\t\t"c": 1\n\t\t}\n\t}\n}'),
        # A removed one takes its line and its comma along.
        (WITH_COMMENTS, ("a",), REMOVED, WITH_COMMENTS.replace('  "a": 1, // one\n', "")),
        (
            WITH_COMMENTS,
            ("mcp", "y"),
            REMOVED,
            WITH_COMMENTS.replace("2}, // behind", "2} // behind").replace('"y": [1, 2,] ', ""),
        ),
        ('{"a": 1, "b": 2}', ("b",), REMOVED, '{"a": 1}'),
        ('{"a": 1, "b": 2}', ("a",), REMOVED, '{"b": 2}'),
        ("{}", ("a", "b"), REMOVED, "{}"),
    ],
)
def test_only_the_lines_of_what_is_edited_change(
    text: str, path: tuple[str, ...], value: object, after: str
) -> None:
    assert edited(text, "json", {path: value}) == after


@pytest.mark.parametrize("text", ["", "\n", "// nothing yet\n"])
def test_an_empty_file_gets_an_object(text: str) -> None:
    after = edited(text, "json", {("mcp", "x"): 1})
    assert read(after, "json") == {"mcp": {"x": 1}} and text.strip() in after


def test_line_ends_are_kept() -> None:
    windows = edited('{\r\n  "a": 1\r\n}\r\n', "json", {("b",): {"c": 1}})
    assert windows.count("\n") == windows.count("\r\n") == 6


@given(
    data=st.dictionaries(MEMBERS, MEMBER_VALUES, max_size=4),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    changes=st.dictionaries(
        st.lists(MEMBERS, min_size=1, max_size=3).map(tuple), MEMBER_VALUES | st.just(REMOVED), max_size=3
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
    assert YAML(typ="safe", pure=True).load(after)["extensions"]["new"] == {"enabled": True, "args": ["a"]}
    assert edited(after, "yaml", {("extensions", "new"): REMOVED}) == text


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("yaml", "a: [1\n", None),
        ("yaml", "- 1\n", None),
        ("json", "[1]", None),
        ("json", '{"a": {"b": 1, "b": 2}}', "twice"),
        ("json", '{"mcp": 1}', "mcp is no object"),
        ("toml", "mcp = 1\n", "mcp is no object"),
        ("yaml", "mcp: 1\n", "mcp is no object"),
        # What the libraries cannot keep.
        ("toml", "mcp = {x = {command = 'c'}}\n", None),
        ("yaml", "d: 2024-13-45\n", None),
        ("yaml", "a:   1   # laid out by hand\nb:\n     c: 2\n", None),
    ],
)
def test_what_holds_no_object_or_cannot_be_kept_is_left_alone(form: Any, text: str, said: str | None) -> None:
    with pytest.raises(EditFault, match=said):
        edited(text, form, {("mcp", "new"): {"command": "c"}})


def resolver(folder: Path, **given: Any) -> Resolver:
    variables = {"TOKEN": "tok-123456", "EMPTY": "", "HOME": "/home/me"}
    return Resolver(folder / "c.json", environment=variables, **given)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:TOKEN}", "tok-123456"),
        ("Bearer ${TOKEN}!", "Bearer tok-123456!"),
        ("${NONE:-a default}", "a default"),
        ("${env:NONE:-x}", "x"),
        ("${EMPTY:-x}${EMPTY}", "x"),
        ("${NONE:-}", ""),
        ("$${TOKEN} $${env:NONE}", "${TOKEN} ${env:NONE}"),
        # `${x:0:3}` looks like a kind of reference that we do not know; the shell's own must be escaped.
        ("$TOKEN ${} ${1} ${a b} $${x:0:3}$", "$TOKEN ${} ${1} ${a b} ${x:0:3}$"),
        ("${pathSeparator}${/}", os.sep * 2),
        ("${userHome}", str(Path.home())),
        ("nothing", "nothing"),
    ],
)
def test_what_a_text_stands_for(text: str, value: str, tmp_path: Path) -> None:
    made = resolver(tmp_path)
    assert (made.resolve(text, ()), made.problems) == (value, [])


def test_values_are_secrets_and_defaults_and_homes_are_not(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    made = resolver(tmp_path, inputs={"pw": {"default": "shown"}})
    tree = {"a": ["${TOKEN}", "${HOME}/x", "${NO:-default}"], "b": {"c": "${file:key} ${input:pw}"}, "d": 5}
    assert made.resolve(tree, ()) == {
        "a": ["tok-123456", "/home/me/x", "default"],
        "b": {"c": "from-a-file shown"},
        "d": 5,
    }
    assert made.secrets == {"tok-123456", "from-a-file"}
    assert made.files == [tmp_path / "key"]


def test_an_input_is_a_variable_of_its_name(tmp_path: Path) -> None:
    assert input_variable("git-hub.token") == "GIT_HUB_TOKEN"
    assert input_variable("--") == "INPUT"
    made = resolver(tmp_path, inputs={"token": {"default": "not this"}})
    assert (made.resolve("${input:token}", ()), made.secrets) == ("tok-123456", {"tok-123456"})
    made.resolve("${input:api-key}", ("x",))
    (problem, why) = made.missing[0]
    assert "API_KEY" in problem.hint and problem.path == ("x",) and why in problem.message


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("${env:NONE}", "NONE is not set"),
        ("${NONE}", "NONE is not set"),
        ("${file:missing}", "cannot be read"),
        ("${file:.}", "no regular file"),
        ("${file:fifo}", "no regular file"),
        ("${file:binary}", "no UTF-8"),
        ("${file:large}", "over 65536 bytes"),
        ("${command:pick}", "nothing that Cellblock can look up"),
        ("${x:0:3}", "nothing that Cellblock can look up"),
        ("${workspaceFolder}/x", "no workspace"),
    ],
)
def test_what_stands_for_nothing_is_said_with_its_place(text: str, word: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    made = resolver(tmp_path)
    assert made.resolve([f"{text} ${{TOKEN}}"], ("args",)) == [f"{text} tok-123456"]
    # What no environment can give is an error; all else may be there tomorrow, or elsewhere.
    (problem,) = made.problems if "look up" in word else [one for one, _ in made.missing]
    assert len(made.problems) + len(made.missing) == 1
    assert problem.path == ("args", 0) and word in problem.message and problem.hint
    assert "tok-123456" not in problem.message + problem.hint


@pytest.mark.parametrize("name", [".vscode/mcp.json", ".cursor/mcp.json", ".mcp.json"])
def test_the_workspace_is_known_from_where_an_editor_keeps_its_file(name: str, tmp_path: Path) -> None:
    made = Resolver(tmp_path / name, environment={})
    assert made.resolve("${workspaceFolder}|${workspaceFolderBasename}", ()) == f"{tmp_path}|{tmp_path.name}"
