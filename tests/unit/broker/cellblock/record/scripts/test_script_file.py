"""The file of a kept script: what it says comes back, and what is hostile in it is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from cellblock.base.settings.policy import Grant
from cellblock.record.scripts.script_file import (
    CLOSING,
    MAX_BYTES,
    OPENING,
    BadScript,
    Header,
    check_name,
    format_script,
    read_script,
    schema_digest,
)
from cellblock.tools.catalog.model import ToolEntry

INPUT = {"type": "object", "properties": {"since": {"type": "string"}}}
CODE = 'import { a } from "@codemode/servers/x"; // one\nawait a(input.since);\n'
VISIBLE = some.text(
    some.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=40
)


def text_of(header: object, code: str = CODE) -> bytes:
    return (OPENING + (header if isinstance(header, str) else json.dumps(header)) + CLOSING + code).encode()


def refusal(name: str, data: bytes) -> str:
    with pytest.raises(BadScript) as caught:
        read_script(name, data)
    return str(caught.value)


@given(
    VISIBLE, VISIBLE, some.dictionaries(some.from_regex("[a-z]{1,9}\\.[a-z*/]{1,9}", fullmatch=True), VISIBLE)
)
def test_what_is_written_comes_back(description: str, code: str, tools: dict[str, str]) -> None:
    header = Header(description=description, tools=tools, grants=Grant(read_only=True))
    script = format_script("one", header, code)
    again = read_script("one", script.text.encode())
    assert (again.header, again.code, again.digest) == (header, code, script.digest)


def test_an_end_of_a_comment_in_a_header_ends_no_comment() -> None:
    header = Header(description="*/ globalThis.__codemode_result__ = 1; /*")
    script = format_script("one", header, CODE)
    assert script.header == header
    assert script.text.count("*/") == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "A",
        "1a",
        "a-b",
        "a.b",
        "a\n",
        "a\0",
        "é",
        "a" * 65,
        "then",
        "class",
        "input",
    ],
)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(BadScript):
        check_name(name)
    with pytest.raises(BadScript):
        format_script(name, Header(description="x"), CODE)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "header"),
        (CODE.encode(), "header"),
        (OPENING.encode(), "header"),
        (text_of("{"), "no JSON"),
        (text_of([]), "cannot be used"),
        (text_of({}), "description"),
        (text_of({"description": "x", "more": 1}), "more"),
        (text_of('{"description": "x", "description": "y"}'), "twice"),
        (text_of('{"description": "x", "input": {"a": NaN}}'), "no JSON"),
        (text_of('{"description": "x", "input": {"a": "\\ud800"}}'), "no JSON"),
        (text_of('{"description": "a */ b"}'), "ends before"),
        (text_of({"description": "x", "input": {"type": "array"}}), "no object"),
        (text_of({"description": "x", "grants": {"tools": ["*"]}}), "tools"),
        (text_of({"description": "x", "grants": {"more": 1}}), "more"),
        (text_of({"description": "x", "tools": {"*": ""}}), "tools"),
        (text_of({"description": "x", "tools": {"no_dot": ""}}), "tools"),
        (text_of({"description": "x", "tools": {"A.b": ""}}), "tools"),
        (text_of({"description": "x", "recording": "../../x"}), "recording"),
        (text_of('{"description": "x", "input": ' + '{"a": ' * 5000 + "1" + "}" * 5001), "no JSON"),
        (text_of({"description": "x"}, "const a = 1;\u202e // hidden\n"), "hidden"),
        (text_of({"description": "x"}, "const a = 1;\x00\n"), "hidden"),
        (text_of({"description": "x"}, "const a = 1;\r\n"), "hidden"),
        (text_of({"description": "x"}) + b"\xff", "UTF-8"),
        (text_of({"description": "x"}, "x" * MAX_BYTES), "over"),
    ],
)
def test_hostile_contents_are_refused(data: bytes, said: str) -> None:
    assert said in refusal("one", data)


@given(some.integers(0, 10_000), some.integers(0, 255))
def test_each_byte_is_in_the_digest(at: int, byte: int) -> None:
    script = format_script("one", Header(description="x", input=INPUT), CODE)
    data = bytearray(script.text.encode())
    data[at % len(data)] = byte
    try:
        again = read_script("one", bytes(data))
    except BadScript:
        return
    assert (again.digest == script.digest) is (again.text == script.text)


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        ("f(input.since);", " const input = {};\nf(input.since);"),
        ('import { a } from "b";\nf();', '\nimport { a } from "b"; const input = {};\nf();'),
        (
            '// c\nimport { a } from "b"\nimport c from "d"; f();',
            '\nimport c from "d"; const input = {}; f();',
        ),
        ('const a = 1;\nimport { b } from "c";', " const input = {};\nconst a = 1;"),
        ('import { a } from "é";f();', '\nimport { a } from "é"; const input = {};f();'),
    ],
)
def test_the_input_stands_behind_the_first_imports(code: str, runs: str) -> None:
    script = format_script("one", Header(description="x", input=INPUT), code)
    given_one = {"since": "2026", "__proto__": {"a": 1}}
    text = script.with_input({})
    assert runs.replace("{}", "{}") in text
    assert text.count("\n") == script.text.count("\n")
    assert 'JSON.parse("' in script.with_input(given_one)


def test_a_large_input_is_refused() -> None:
    script = format_script("one", Header(description="x", input=INPUT), CODE)
    with pytest.raises(BadScript, match="over"):
        script.with_input({"since": "x" * 300_000})


def test_words_are_no_part_of_a_schemas_digest() -> None:
    def tool(**more: Any) -> ToolEntry:
        schema = {"type": "object", "properties": {"title": {"type": "string", **more}}}
        return ToolEntry("a", "a", "said", input_schema=schema)

    assert schema_digest(tool()) == schema_digest(tool(description="other", title="T", default="x"))
    assert schema_digest(tool()) != schema_digest(tool(minLength=1))
    # A field that is called as a keyword is one.
    bare = ToolEntry("a", "a", input_schema={"type": "object", "properties": {}})
    assert schema_digest(bare) != schema_digest(tool())
