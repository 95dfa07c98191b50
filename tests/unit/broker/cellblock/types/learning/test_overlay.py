"""Overlay files: what is read, what a new one says, and where exactly a mistake is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.types.learning.overlay import ToolNotes, new_overlay, overlay_file, read_overlay

WHOLE = """\
# A comment.
[tools.list]
class = "read"

[tools."read-file"]
json_text = true
output = '''
{"type": "object", "properties": {"id": {"type": "integer"}}}
'''
examples = '''
[{"input": {"path": "a"}, "output": null}, {"input": {}}]
'''
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "files.toml"


def test_a_whole_file(file: Path) -> None:
    file.write_text(WHOLE, "utf-8")
    found = read_overlay(file).tools
    assert (found["list"].effect, found["list"].output) == ("read", None)
    read = found["read-file"]
    assert (read.json_text, read.output["type"], read.effect) == (True, "object", None)
    assert read.examples == (({"path": "a"}, None), ({}, None))


def test_no_file_is_no_overlay(file: Path) -> None:
    assert read_overlay(file).tools == {}


@pytest.mark.parametrize(
    ("text", "what", "line", "column"),
    [
        ("[tools.a]\nclass = reed\n", "Invalid value", 2, 9),
        ("[tools.a]\n\n  class = 'reed'\n", "class must be one of", 3, 3),
        ("[tools.b]\nclass = 'read'\n[tools.'a b']\nclas = 'read'\n", "unknown key 'clas'", 4, 1),
        ("x = 1\n", "unknown key 'x'", 1, 1),
        ("[tools.a]\noutput = '''\n{\n  \"type\": oops\n}\n'''\n", "output is no JSON", 4, 11),
        ("[tools.a]\noutput = '{'\n", "output is no JSON", 2, 12),
        ('[tools.a]\noutput = "{"\n', "output is no JSON", 2, 12),
        ('[tools.a]\noutput = "{\\"a\\": }"\n', "output is no JSON", 2, 1),
        ("[tools.a]\noutput = '''{\n  oops\n}'''\n", "output is no JSON", 3, 3),
        ("[tools.a]\noutput = { type = 'object' }\n", "output must be JSON in a text", 2, 1),
        ('[tools.a]\noutput = \'{"type": "objekt"}\'\n', "output is no JSON Schema", 2, 20),
        (
            '[tools.a]\noutput = """\n{"properties": {\n  "b": {"type": "string"},\n  "c": {"type": "strin"}}}\n"""\n',
            '"strin" is not valid',
            5,
            17,
        ),
        ("[tools.a]\noutput = '[]'\n", "output is no JSON Schema", 2, 1),
        ("[tools.a]\njson_text = 1\n", "json_text must be", 2, 1),
        ("[tools.a]\nexamples = '[{}]'\n", "example 1 must have input", 2, 14),
        ("[tools.a]\nexamples = '''\n[{\"input\": {}},\n {\"in\": 1}]\n'''\n", "example 2 must have", 4, 2),
        ("[tools.a]\nexamples = '{}'\n", "examples must be a list", 2, 1),
    ],
)
def test_a_mistake_has_its_place(file: Path, text: str, what: str, line: int, column: int) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_overlay(file)
    assert what in caught.value.message
    assert f"at line {line}, column {column})" in caught.value.message


def test_a_file_that_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError):
        read_overlay(file)


def test_a_new_file_is_valid_says_nothing_and_can_be_filled_in(file: Path) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    hostile = "]\n[tools.x]\nclass = 'read'\u2028'''"
    text = new_overlay(
        "files",
        [
            ToolNotes("read-file", "Reads.\n" + hostile, schema, schema, "Observed from 2 results."),
            ToolNotes(hostile, hostile, {"description": hostile}, {"description": hostile}, hostile),
            ToolNotes('quote " and \\', None, None, None, ""),
            ToolNotes("\ud800", None, None, None, ""),
        ],
    )
    assert set(tomllib.loads(text)["tools"]) == {"read-file", 'quote " and \\'}
    assert all(table == {} for table in tomllib.loads(text)["tools"].values())
    lines = text.splitlines()
    start = lines.index("# output = '''")
    end = lines.index("# '''", start)
    filled = [line.removeprefix("# ") if start <= at <= end else line for at, line in enumerate(lines)]
    file.write_text("\n".join(filled), "utf-8")
    assert read_overlay(file).tools["read-file"].output == schema


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "\x00", "My Files"])
def test_a_server_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    assert overlay_file(tmp_path, name).parent == tmp_path
