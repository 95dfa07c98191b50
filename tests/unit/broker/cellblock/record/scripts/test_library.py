"""The library of kept scripts: their files, what is made of runs, approvals and recordings, under concurrent saves,
full disks and kills, and hostile folders.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as some

from cellblock.base.errors import ConfigError
from cellblock.base.settings.policy import Grant
from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.record.recording import Recording
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.saving import header_of, input_schema, schema_of, with_parameters
from cellblock.record.scripts.script_file import (
    CLOSING,
    MAX_BYTES,
    NO_INPUT,
    OPENING,
    BadScript,
    Header,
    format_script,
    read_script,
    schema_digest,
)
from cellblock.run.hook import RecordedCall
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.schemas.validation import InputValidator
from support.at_once import at_once
from support.params import mostly

HEADER = Header(description="x")
AUTH = AuthSettings(keyring="off")


def library(tmp_path: Path) -> Library:
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    return Library(LocalStore(tmp_path / "state"), AUTH, tmp_path / "scripts", tmp_path / "state")


@pytest.fixture
def one(tmp_path: Path) -> Library:
    return library(tmp_path)


def trial(text: str) -> Trial:
    recording = Recording(
        made_by="",
        deno="",
        started_at=0.0,
        request={"code": text},
        body=b"{}",
        conventions=True,
        limits={},
        message_bytes=1,
        catalog={},
        seed="0" * 64,
    )
    return Trial(recording, {"said": text}, {})


def test_a_version_runs_when_it_was_approved(one: Library) -> None:
    script = one.write("report", HEADER, "1", trial("1"), replace=False)
    assert one.approvals.get("report") is None
    first = one.approvals.approve(script)
    changed = one.write("report", HEADER, "2", trial("2"), replace=True)
    known = one.approvals.get("report")
    assert (known.script.text, known.by) == (script.text, first.by)
    assert one.approvals.approve(changed).before == script.digest
    assert [*one.approvals.all()] == ["report"]
    one.approvals.remove("report")
    with pytest.raises(BadScript, match="No version"):
        one.approvals.remove("report")
    assert one.approvals.all() == {}


def test_a_damaged_approval_lets_nothing_in(tmp_path: Path, one: Library) -> None:
    one.approvals.approve(format_script("report", HEADER, "1"))
    file = tmp_path / "state" / "scripts" / "report.json"
    whole = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    for at in range(0, len(whole), 3):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        known = one.approvals.get("report")
        assert known is None or known.script.text == format_script("report", HEADER, "1").text
    file.write_bytes(whole)
    file.chmod(0o644)
    assert one.approvals.get("report") is None
    (tmp_path / "state" / "scripts" / "other.json").write_bytes(whole)
    assert one.approvals.get("other") is None


def test_recordings_are_sealed_and_belong_to_their_version(tmp_path: Path, one: Library) -> None:
    script = one.write("report", HEADER, "1", trial("hunter2"), replace=False)
    assert one.trial(script).input == {"said": "hunter2"}
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(b"hunter2" in file.read_bytes() for file in written)
    sealed = tmp_path / "state" / "script-recordings" / f"{script.header.recording}.json"
    sealed.write_bytes(sealed.read_bytes()[:-1] + b"x")
    with pytest.raises(BadScript, match="changed"):
        one.trial(script)
    sealed.unlink()
    assert one.trial(script) is None


@pytest.mark.parametrize(
    ("answer", "grants"),
    [(b"no JSON", {}), (b"[" * 100_000, {}), (b"1", "everything"), (b"1", {"approve": 5})],
    ids=["text", "depth", "word", "number"],
)
def test_what_a_strangers_recording_holds_spoils_no_test(answer: bytes, grants: object) -> None:
    recording, tool = trial("1").recording, ToolEntry("t", "t")
    recording.request["grants"] = grants
    call = RecordedCall(id=1, kind="call", server="s", tool="t", ok=True, answer=answer)
    recording.calls.append(call)
    catalog = Catalog(servers={"s": ServerEntry("s", "s", "s", tools=(tool,))})
    with pytest.raises(BadScript, match="cannot be kept"):
        header_of(recording, "1", catalog, {})
    call.answer, recording.request["grants"] = b"1", {}
    assert [*header_of(recording, "1", catalog, {})[0].tools] == ["s.t"]


def test_clients_propose_no_more_than_a_person_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: Library
) -> None:
    monkeypatch.setattr("cellblock.record.scripts.library.MAX_WAITING", 2)
    one.approvals.approve(one.write("a", HEADER, "1", trial("a"), replace=False))
    one.write("b", HEADER, "1", trial("b"), replace=False)
    one.check_room()
    one.write("a", HEADER, "2", trial("another version"), replace=True)
    with pytest.raises(BadScript, match="2 scripts wait"):
        one.check_room()
    # Those that a person has taken away leave nothing behind where there is no room.
    (tmp_path / "scripts" / "b.ts").unlink()
    one.check_room()
    recordings = tmp_path / "state" / "script-recordings"
    sizes = [file.stat().st_size for file in recordings.iterdir()]
    monkeypatch.setattr("cellblock.record.scripts.library.MAX_WAITING_BYTES", sum(sizes) - 1)
    one.check_room()
    assert len([*recordings.iterdir()]) == len(sizes) - 1
    monkeypatch.setattr("cellblock.record.scripts.library.MAX_WAITING_BYTES", 1)
    with pytest.raises(BadScript, match="wait for the user"):
        one.check_room()


def test_hostile_folders_are_refused(tmp_path: Path, one: Library) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    secret = tmp_path / "secret.ts"
    secret.write_text(format_script("report", HEADER, "secret").text)
    (folder / "report.ts").symlink_to(secret)
    os.mkfifo(folder / "pipe.ts")
    (folder / "folder.ts").mkdir()
    outside = ("../secret", "..", "/etc/passwd")
    for name in ("report", "pipe", "folder", *outside):
        with pytest.raises(BadScript):
            one.file(name)
    with pytest.raises(BadScript):
        one.write("report", HEADER, "1", trial("1"), replace=True)
    assert "secret" in secret.read_text()
    for name in outside:
        with pytest.raises(BadScript):
            one.approvals.get(name)


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    bare = Library(LocalStore(tmp_path), AUTH, None, tmp_path)
    with pytest.raises(ConfigError, match="scripts"):
        bare.write("report", HEADER, "1", trial("1"), replace=False)


def test_concurrent_saves_lose_none_and_mix_none(tmp_path: Path) -> None:
    library(tmp_path)
    refused: list[str] = []

    def saves(number: int) -> None:
        one = library(tmp_path)
        for name in ("own_" + "abcdefgh"[number], "shared"):
            try:
                one.write(name, HEADER, f"code {number}", trial(f"code {number}"), replace=False)
            except BadScript as error:
                refused.append(str(error))

    at_once(saves, range(8))
    one = library(tmp_path)
    assert (len(one.files()), len(refused)) == (9, 7)
    for script in map(one.file, one.files()):
        assert one.trial(script).recording.code == script.code


def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch, one: Library) -> None:
    before = one.write("report", HEADER, "1", trial("1"), replace=False)

    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("cellblock_worker.base.private_files.os.fsync", full)
    with pytest.raises(BadScript, match="No space left"):
        one.write("report", HEADER, "2", trial("2"), replace=True)
    with pytest.raises(BadScript, match="No space left"):
        one.approvals.approve(before)
    monkeypatch.undo()
    assert one.file("report").text == before.text and one.files() == ["report"]
    assert one.trial(before).recording.code == "1"


KILLED = """
import sys
from pathlib import Path
from test_library import HEADER, library, trial
one = library(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    if number == 2:
        print("begun", flush=True)
    script = one.write("report", HEADER, f"code {number}", trial(f"code {number}"), replace=True)
    one.approvals.approve(script)
"""


@pytest.mark.parametrize("pause", mostly([0.05], [0.01, 0.02, 0.03, 0.05, 0.07, 0.11]))
def test_a_killed_process_loses_none_and_mixes_none(tmp_path: Path, pause: float) -> None:
    library(tmp_path)
    here = Path(__file__)
    environment = {**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here.parents[5]}"}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
    one = library(tmp_path)
    script = one.file("report")
    assert one.trial(script).recording.code == script.code
    assert one.approvals.get("report").script.code.startswith("code ")


INPUT = {"type": "object", "properties": {"since": {"type": "string"}}}
CODE = 'import { a } from "@codemode/servers/x"; // one\nawait a(input.since);\n'
VISIBLE = some.text(
    some.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=40
)


def text_of(header: object, code: str = CODE) -> bytes:
    return (OPENING + (header if isinstance(header, str) else json.dumps(header)) + CLOSING + code).encode()


@given(
    VISIBLE, VISIBLE, some.dictionaries(some.from_regex("[a-z]{1,9}\\.[a-z*/]{1,9}", fullmatch=True), VISIBLE)
)
def test_what_is_written_comes_back(description: str, code: str, tools: dict[str, str]) -> None:
    header = Header(description=description, tools=tools, grants=Grant(read_only=True))
    script = format_script("one", header, code)
    assert (script.header, script.code) == (header, code)
    assert read_script("one", script.text.encode()) == script


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
    with pytest.raises(BadScript, match="cannot be the name"):
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
    with pytest.raises(BadScript, match=said):
        read_script("one", data)


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
    text = script.with_input({})
    assert runs in text
    assert text.count("\n") == script.text.count("\n")
    assert 'JSON.parse("' in script.with_input({"since": "2026", "__proto__": {"a": 1}})
    with pytest.raises(BadScript, match="over"):
        script.with_input({"since": "x" * 300_000})


def test_an_end_of_a_comment_in_a_header_ends_no_comment() -> None:
    header = Header(description="*/ globalThis.__codemode_result__ = 1; /*")
    script = format_script("one", header, CODE)
    assert (script.header, script.text.count("*/")) == (header, 1)


def test_words_are_no_part_of_a_schemas_digest() -> None:
    def tool(**more: Any) -> ToolEntry:
        schema = {"type": "object", "properties": {"title": {"type": "string", **more}}}
        return ToolEntry("a", "a", "said", input_schema=schema)

    assert schema_digest(tool()) == schema_digest(tool(description="other", title="T", default="x"))
    assert schema_digest(tool()) != schema_digest(tool(minLength=1))
    # A field that is called as a keyword is one.
    bare = ToolEntry("a", "a", input_schema={"type": "object", "properties": {}})
    assert schema_digest(bare) != schema_digest(tool())


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("f('open', \"open\");", "f(input.p, input.p);"),
        (
            'const { "open": x } = y; f({ "open": "open" });',
            'const { "open": x } = y; f({ "open": input.p });',
        ),
        (
            'class A { "open"() { return "open"; } "open" = 1 }',
            'class A { "open"() { return input.p; } "open" = 1 }',
        ),
        (
            'import a from "open"; export { b } from "open"; c("open");',
            'import a from "open"; export { b } from "open"; c(input.p);',
        ),
        (
            '"use strict"; type A = "open"; const a = "open" as "open";',
            '"use strict"; type A = "open"; const a = input.p as "open";',
        ),
        ('f(`${"open"} open`); g["open"]; // "open"', 'f(`${input.p} open`); g[input.p]; // "open"'),
    ],
)
def test_a_parameter_stands_where_an_expression_can(code: str, made: str) -> None:
    assert with_parameters(code, {"p": "open"}) == made


def test_each_parameter_is_a_literal_of_its_own() -> None:
    assert (
        with_parameters("f(1, true, '1');", {"a": 1, "b": True, "c": "1"}) == "f(input.a, input.b, input.c);"
    )
    for taken in ({"a": "x", "b": "x"}, {"a": "y"}, {"a": 1}):
        with pytest.raises(BadScript, match="has no literal"):
            with_parameters('f("x");', taken)


SHOWN: list[tuple[Any, Any, Any]] = [
    ({"n": 1, "x": None}, {"n": 1.5, "x": "text", "more": 1}, {"n": "text"}),
    ({"rows": []}, {"rows": [1]}, {"rows": {}}),
    ([{"a": 1}, {"a": "x", "b": True}], [{"b": False}], [{"b": 1}]),
    (None, {"any": "thing"}, ...),
    ("2026-11-02", "no date", 2026),
    ({f"2026-11-{day}": day for day in range(10, 29)}, {"other": "names"}, []),
]


@pytest.mark.parametrize(("shown", "fits", "not_fits"), SHOWN)
def test_a_schema_says_no_more_than_one_value_shows(shown: Any, fits: Any, not_fits: Any) -> None:
    validator = InputValidator(schema_of(shown), strict=True)
    assert validator.check(shown) is None and validator.check(fits) is None
    assert not_fits is ... or validator.check(not_fits) is not None


def test_an_input_has_the_names_that_it_had() -> None:
    validator = InputValidator(input_schema({"since": "x", "limit": None, "a-b": 3}), strict=True)
    all_given = {"since": "y", "limit": 5, "a-b": 0.5}
    inputs = (all_given, {"since": "y", "limit": 5}, {**all_given, "c": 1})
    assert [validator.check(one) is None for one in inputs] == [True, False, False]
    assert input_schema({}) == NO_INPUT


def test_a_script_has_its_input_unless_it_can_only_be_empty() -> None:
    free = {"type": "object", "additionalProperties": {"type": "string"}}
    script = format_script("one", Header(description="x", input=free), "f(input);")
    assert 'const input = {"a": "b"};' in script.with_input({"a": "b"})
    own = format_script("one", Header(description="x"), "const input = 1;")
    assert own.with_input({}) == own.text


def test_ends_of_lines_of_windows_are_no_hidden_characters() -> None:
    assert format_script("one", Header(description="x"), "f();\r\ng();\r\n").code == "f();\ng();\n"
