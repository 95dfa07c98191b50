"""What is checked beside a run, and how its failure is told."""

import asyncio
import gc
import time
import weakref
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from cellblock.base.settings.settings import CellblockSettings
from cellblock.run.failure import (
    MAX_HINT_CHARS,
    MAX_MESSAGE_CHARS,
    diagnose,
    in_script_terms,
    places_in_stacks,
)
from cellblock.run.plan import make_plan
from cellblock.run.request import read_request
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.run.side_checks import (
    MAX_LATE_SCRIPTS,
    MAX_TOLD_LATE,
    MAX_TOOLS,
    PastCheck,
    SideCheck,
    SideChecks,
)
from cellblock.run.type_errors import CHECK_SECONDS, TypeErrors, _earlier
from cellblock.script.slips import syntax_hint
from cellblock.script.source import prepare
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, Withheld
from cellblock.tools.catalog.modules import ModuleUrls
from cellblock.types.check.ambient import Declarations
from cellblock.types.check.checker import Checked, TypeChecker
from cellblock.types.check.faults import TypeFault
from cellblock.types.check.verdict import Complaint
from support.script_places import path_of
from support.virtual_time import virtual_time

SERVER = ServerEntry("x", "X", "x", tools=(ToolEntry("list", "list"), ToolEntry("rows", "rows")))
CATALOG = Catalog(1, {"x": SERVER})
SUCCEEDED = RunResponse(logs=[], diagnostics=[], result=1)
FAILED = RunResponse(
    logs=[],
    diagnostics=[Diagnostic(severity="error", code="UNCAUGHT_EXCEPTION", message="m", path="script.js:1:1")],
)


class Compiler:
    """One at a time, as the real one does it: each check takes `seconds` of virtual time, and finds one fault."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.declarations = Declarations()
        self.unavailable = None
        self.got: list[set[tuple[str, str]]] = []
        self._turn = asyncio.Lock()

    async def check(self, code: str, *, got: Any, **_more: Any) -> Checked:
        async with self._turn:
            self.got.append(set(got))
            await asyncio.sleep(self.seconds)
        said = "JSON text" if got else "wrong"
        about = Complaint("characters", "", "", is_text=bool(got))
        return Checked((TypeFault(f"{said} in {code.splitlines()[-1]}", None, 2, 1, about),))


class World:
    """Runs scripts of which nothing but the check takes time."""

    def __init__(self, seconds: float) -> None:
        settings = CellblockSettings()
        self.compiler = Compiler(seconds)
        checker = cast("TypeChecker", self.compiler)
        self.checks = SideChecks(checker)
        self.errors = TypeErrors(settings, checker)
        self.settings = settings

    def started(self, code: str, client: str = "one") -> SideCheck:
        plan = make_plan(f'import * as x from "@codemode/servers/x";\n{code}', CATALOG, ModuleUrls())
        side = SideCheck(self.checks, plan, CATALOG, client, "", self.errors.check_seconds)
        side.begin()
        return side

    async def ended(self, side: SideCheck, response: RunResponse) -> tuple[list[str], float]:
        """What the response says of types, and how long it was held."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        late = side.late()
        told = await self.errors.after(response, read_request({"code": "1"}, self.settings), side)
        said = [found.message for found in [*told.diagnostics, *late] if found.code == "TYPE_ERROR"]
        return said, loop.time() - began


@pytest.mark.parametrize("response", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
@pytest.mark.parametrize(
    ("check", "ran", "others", "held", "is_told"),
    [
        (0.02, 0.0, 0, 0.02, True),
        (10.0, 0.0, 0, CHECK_SECONDS, False),
        (10.0, 9.99, 0, 0.01, True),
        (0.4, 0.1, 0, 0.3, True),
        (0.02, 5.0, 0, 0.0, True),
        (0.01, 0.0, 1, 0.02, True),
        (0.2, 0.1, 1, 0.03, False),
    ],
)
@virtual_time
async def test_no_response_is_held_longer_than_it_may_be(
    response: RunResponse, check: float, ran: float, others: int, held: float, is_told: bool
) -> None:
    """`ran` is how long the script was at work, the check beside it, behind `others`."""

    world = World(check)
    for number in range(others):
        world.started(f"x.list({number});", "another")
    side = world.started("x.list({});")
    await asyncio.sleep(ran)
    said, took = await world.ended(side, response)
    assert (bool(said), took) == (is_told, pytest.approx(held, abs=1e-6))
    await asyncio.sleep(check * (1 + others))
    later, took = await world.ended(world.started("1;"), SUCCEEDED)
    assert took <= CHECK_SECONDS + 1e-6
    assert sum(message.startswith("In an earlier script of yours") for message in later) == (not is_told)
    await world.checks.close()


@virtual_time
async def test_of_several_late_scripts_none_is_lost() -> None:
    world = World(1.0)
    scripts = ["x.list(1);", "x.list(2);", "x.list(3);"]
    for code in scripts:
        response = FAILED if code == scripts[1] else SUCCEEDED
        assert (await world.ended(world.started(code), response))[0] == []
    await asyncio.sleep(3)
    assert (await world.ended(world.started("x.list(9);", client="other"), SUCCEEDED))[0] == []
    said, _ = await world.ended(world.started("x.list(4);"), SUCCEEDED)
    assert [message.partition(" in ")[2] for message in said] == scripts
    await asyncio.sleep(3)
    said, _ = await world.ended(world.started("x.list(4);"), SUCCEEDED)
    assert said == ["wrong in x.list(4);"], "of the script itself, no longer of one before it"
    await world.checks.close()


@virtual_time
async def test_what_waits_for_a_client_is_bounded_and_comes_in_order() -> None:
    world = World(0.01)
    for number in range(MAX_LATE_SCRIPTS + 5):
        found = Diagnostic(severity="warning", code="TYPE_ERROR", message=f"m{number}")
        world.checks.tell_later("one", b"%d" % number, [found, found])
    told: list[str] = []
    for _ in range(MAX_LATE_SCRIPTS):
        said, _ = await world.ended(world.started("1;"), SUCCEEDED)
        late = [message for message in said if message.startswith("m")]
        assert len(late) <= MAX_TOLD_LATE
        told += late
    assert told == [f"m{number}" for number in range(MAX_LATE_SCRIPTS) for _ in range(2)]
    await world.checks.close()


@virtual_time
async def test_a_text_that_nobody_expected_is_checked_while_the_script_still_runs() -> None:
    world = World(0.05)
    side = world.started("x.rows({});")
    side.answers.add("x", "rows", "text", b'"[1]"')
    side.answers.add("x", "rows", "text", b'"[2]"')
    await asyncio.sleep(0.11)
    assert world.compiler.got == [set(), {("x", "rows")}], "before the script has ended"
    said, took = await world.ended(side, FAILED)
    assert (said, took) == (["JSON text in x.rows({});"], 0.0)
    await world.checks.close()


@virtual_time
async def test_a_text_that_was_a_value_after_all_is_not_told() -> None:
    world = World(0.0)
    side = world.started("x.rows({});")
    side.answers.add("x", "rows", "text", b'"[1]"')
    await asyncio.sleep(0.01)
    side.answers.add("x", "rows", "value", b"[1]")
    assert (await world.ended(side, SUCCEEDED))[0] == ["wrong in x.rows({});"]
    assert not side.answers.may_be_text(("x", "rows")) and side.answers.may_be_text(("x", "list"))
    await world.checks.close()


class Entry(ServerEntry):
    """One that can be watched."""


def tools_of(count: int) -> tuple[ToolEntry, ...]:
    return tuple(ToolEntry(f"t{number}", f"t{number}", None, None, {}, None) for number in range(count))


def key_of(number: int, server: Entry) -> Any:
    return b"%d" % number, (id(server),), frozenset[tuple[str, str]]()


def test_a_server_that_changes_for_every_run_is_not_held_a_thousand_times() -> None:
    checks = SideChecks(None)
    watched: list[weakref.ref[Entry]] = []

    for number in range(60):
        server = Entry("changes", "changes", "changes", version=str(number), tools=tools_of(MAX_TOOLS // 20))
        watched.append(weakref.ref(server))
        # Again is no second one.
        for _ in range(2):
            checks.keep(key_of(number, server), PastCheck((server,), [], 0, Checked(()), value_uses=0))
    del server
    gc.collect()
    assert [number for number, one in enumerate(watched) if one() is not None] == list(range(40, 60))


def test_sessions_that_share_their_definitions_count_once() -> None:
    checks = SideChecks(None)
    tools = tools_of(MAX_TOOLS)
    servers = [Entry("same", "same", "same", tools=tools, session=number) for number in range(30)]
    for number, server in enumerate(servers):
        checks.keep(key_of(number, server), PastCheck((server,), [], 0, Checked(()), value_uses=0))
    assert list(checks._kept) == [key_of(number, server) for number, server in enumerate(servers)]


@pytest.mark.parametrize(
    ("code", "line"), [("a\fb\n c", 2), ("a\u2028b\r\n c", 3), ("a\rb\u2029 c", 3), ("a\x1cb\x85\v\n c", 2)]
)
def test_the_line_of_an_earlier_script_is_the_one_that_the_engine_counts(code: str, line: int) -> None:
    (told,) = _earlier([TypeFault("It is wrong.", None, line, 2, Complaint("name", "", ""))], code)
    assert told.message == "In an earlier script of yours, at `c`: It is wrong."


CODE = 'import * as a from "@codemode/x"; a.b();'
SCRIPT = prepare(CODE, lambda _: "data:text/javascript;base64,QUJD", "")
URL = "data:application/javascript;base64,AAA+/="
MODULE = "data:text/javascript;base64,QUJD"
KINDS: list[Any] = ["module", "exception", "rejection", "result"]


def diagnosed(failure: object, kind: Any = "exception") -> Diagnostic:
    return diagnose(kind, failure, SCRIPT, 1000, {}, {}, Catalog())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no url: data", "no url: data"),
        (f"{URL}:{'1' * 5000}:{'2' * 5000}", f"script.js:{'1' * 5000}:{'2' * 5000}"),
        (f"at f ({URL}:2:5)", "at f (script.js:2:5)"),
        (f"in {URL} and {MODULE}:1:2", "in script.js and @codemode"),
        (
            f"{URL}:1:{SCRIPT.text.index('a.b()') + 1}",
            f"script.js:1:{CODE.index('a.b()') + 1}",
        ),
    ],
)
def test_urls_become_places_in_the_agents_source(text: str, shown: str) -> None:
    assert in_script_terms(text, SCRIPT) == shown


def test_stacks_in_a_result_name_places_and_other_data_urls_stay() -> None:
    rest = b"data:application/script:x data:application/javascript;base64,AAAA:1:2"
    found = places_in_stacks(b"data:application/script:1:3 " + rest, SCRIPT)
    assert found == b"script.js:1:3 " + rest
    assert places_in_stacks(b'{"a": 1}', SCRIPT) == b'{"a": 1}'


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        *(({"causes": [cause]}, "") for cause in ("", 0, None, [], {})),
        ({"causes": ["why\nstack", "other"]}, " (cause: why)"),
        (
            {"errors": ["Error: a\nstack", "TypeError: b", "… 3 more"]},
            " (errors: Error: a | TypeError: b | … 3 more)",
        ),
        (
            {"error": "Error: b\nstack", "suppressed": "Error: a"},
            " (error: Error: b; suppressed: Error: a)",
        ),
        ({"errors": [{}, None, *["x"] * 99], "error": 7, "suppressed": []}, " (errors: x | x | x)"),
    ],
)
def test_what_an_error_was_caused_by_sums_up_or_suppresses_is_shown(more: dict[str, Any], shown: str) -> None:
    assert diagnosed({"name": "E", "message": "m", **more}).message == f"E: m{shown}"


def test_what_an_error_says_is_not_changed_but_for_places_in_stacks() -> None:
    text = f'<script src="{MODULE}"> {URL}:1:2 data:application/script:1:3'
    found = diagnosed({"name": "Error", "message": text, "causes": [text]})
    told = text.replace("data:application/script:1:3", "script.js:1:3")
    assert found.message == f"Error: {told} (cause: {told})"


@pytest.mark.parametrize(
    ("failure", "may_be_another"),
    [
        ({"name": "Error", "message": "m"}, True),
        ({"name": "Error", "message": "m", "stack": f"    at {URL}:1:3"}, False),
        ({"name": "AggregateError", "message": "m"}, False),
        ({"name": "Error", "message": "m", "hint": "Do this."}, False),
    ],
)
def test_an_error_without_frames_may_be_another_one(failure: dict[str, str], may_be_another: bool) -> None:
    assert ("error.stack" in (diagnosed(failure, "module").hint or "")) is may_be_another


@pytest.mark.parametrize(
    ("kind", "failure", "told", "hint"),
    [
        (
            "module",
            {"name": "SyntaxError", "message": f"Unexpected token ')' at {URL}:3:4"},
            ("SYNTAX_ERROR", "SyntaxError: Unexpected token ')'", "script.js:3:4"),
            None,
        ),
        (
            "module",
            {"name": "SyntaxError", "message": f"Illegal return statement at {URL}:3:4"},
            ("SYNTAX_ERROR", "SyntaxError: Illegal return statement", "script.js:3:4"),
            "Assign the result instead of returning it: globalThis.__codemode_result__ = …",
        ),
        (
            "module",
            {
                "name": "SyntaxError",
                "message": f"{MODULE} does not provide an export named 'no' at {URL}:1:10",
            },
            ("IMPORT_FAILURE", "The module has no export no.", "script.js:1:10"),
            None,
        ),
        (
            "result",
            {"name": "ResultError", "message": "a function", "path": "/a/0"},
            ("RESULT_NOT_JSON", "a function", "/a/0"),
            None,
        ),
    ],
    ids=["syntax", "a return outside of functions", "import", "result"],
)
def test_the_kind_of_a_failure_has_its_code_and_its_place(
    kind: str, failure: dict[str, str], told: tuple[str, str, str], hint: str | None
) -> None:
    found = diagnosed(failure, kind)
    assert (found.code, found.message, found.path) == told
    assert hint in (None, found.hint)


@pytest.mark.parametrize("code", ["1;\u2028\t'💥'; let a = ;", "\ufeff/*\r*/ let a = ;", "'\t\t'; let a = ;"])
def test_a_syntax_error_of_denos_parser_has_its_place_in_the_agents_source(code: str) -> None:
    """It ends lines with LF only, counts characters, tabs for two, and sees no byte order mark."""
    before = code.removeprefix("\ufeff")[:-1]
    text = f"SyntaxError: Expression expected\n  |\n1 | x\n    at {URL}:1:{len(before) + before.count(chr(9)) + 1}"
    body = {"name": "TypeError", "message": text}
    found = diagnose("module", body, prepare(code, lambda _: None, ""), 1000, {}, {}, Catalog())
    assert (found.code, found.message) == ("SYNTAX_ERROR", "SyntaxError: Expression expected")
    assert found.path == path_of(code, len(code) - 1)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Bad", "Bad"),
        (f"Bad at {URL}:3:4", "Bad"),
        (f"Bad \t at {URL}:3:4", "Bad"),
        (f"Bad at {URL}:3:4 and more", "Bad at script.js:3:4 and more"),
        (f"Bad at  {URL}:3:4", "Bad at  script.js:3:4"),
        (f"Bat {URL}:3:4", "Bat script.js:3:4"),
        (f"Bad at {URL}:3:4\tx", "Bad at script.js:3:4\tx"),
        (f"Bad at {URL}:3:4\nsecond line", "Bad"),
        (f"at {URL}:3:4", "at script.js:3:4"),
        (f"Bad at {URL}:3:4/x", "Bad"),
    ],
)
def test_the_place_at_the_end_of_a_syntax_error_is_not_said_twice(said: str, shown: str) -> None:
    # The place is looked for in the whole message: one is there in any case.
    found = diagnosed({"name": "SyntaxError", "message": f"{said}\n{URL}:1:1"}, "module")
    assert (found.code, found.message) == ("SYNTAX_ERROR", f"SyntaxError: {shown}")


TWO = prepare(
    'import { a } from "@codemode/discovery";\nimport * as b from "@codemode/servers/s";\n'
    'import { c } from "@codemode/servers/many";\n',
    lambda _: "data:text/javascript;base64,QUJD",
    "",
)
EXPORTS = {
    "@codemode/discovery": ["getTool", "listTools"],
    "@codemode/servers/s": ["act", "get_sum"],
    "@codemode/servers/many": [f"tool{n}" for n in range(40)],
}


@pytest.mark.parametrize(
    ("line", "name", "hint"),
    [
        (1, "listTool", "Did you mean listTools?"),
        (1, "get_sum", "It exports getTool, listTools."),
        (1, "default", "There is no default export: import the names, or `import * as`."),
        (2, "get_sun", "Did you mean get_sum?"),
        (2, "listTools", 'Import it: `import { listTools } from "@codemode/discovery";`'),
        (2, "subtract", "It exports act, get_sum."),
        (
            3,
            "subtract",
            f"It exports {', '.join(f'tool{n}' for n in range(12))} and 28 more: see __meta__.tools, or `import * as`.",
        ),
        (2, "default", "There is no default export: import the names, or `import * as`."),
    ],
)
def test_the_hint_about_an_export_is_of_its_own_module(line: int, name: str, hint: str) -> None:
    text = f"The requested module '{MODULE}' does not provide an export named '{name}' at {URL}:{line}:10"
    found = diagnose("module", {"name": "SyntaxError", "message": text}, TWO, 1000, EXPORTS, {}, Catalog())
    assert (found.code, found.hint) == ("IMPORT_FAILURE", hint)


@pytest.mark.parametrize(
    ("name", "message", "where", "hint"),
    [
        ("TypeError", "b.get-sum is not a function", True, "Did you mean get_sum?"),
        ("TypeError", "rows.get-sum is not a function", True, "Correct the script at that position"),
        ("TypeError", "b.c.get-sum is not a function", True, "Correct the script at that position"),
        ("TypeError", "(intermediate value).get-sun is not a function", True, "Did you mean get_sum?"),
        (
            "TypeError",
            "ev.hidden-tool is not a function",
            True,
            "The tool hidden-tool is left out: it is new. Ask.",
        ),
        (
            "SyntaxError",
            '"[object Object]" is not valid JSON',
            True,
            "What JSON.parse was given is a value already",
        ),
        *(
            (
                "SyntaxError",
                message,
                True,
                "JSON has double quotes, no comma before a closing bracket, and true",
            )
            for message in (
                "Expected property name or '}' in JSON at position 1 (line 1 column 2)",
                "Expected double-quoted property name in JSON at position 8 (line 1 column 9)",
                """Unexpected token ']', "[1,]" is not valid JSON""",
                """Unexpected token 'N', "{"a": None}" is not valid JSON""",
            )
        ),
        ("ReferenceError", "require is not defined", True, "The sandbox has no require: write `import`"),
        ("ReferenceError", "fetch is not defined", True, "The sandbox has no fetch"),
        ("ReferenceError", "mine is not defined", True, "Correct the script at that position"),
        ("Thrown value", "x", False, "Throw an Error in place of a plain value"),
        ("Error", "x", False, "Correct what the message names, or catch"),
        ("Error", "x", True, "Correct the script at that position"),
    ],
)
def test_the_hint_about_an_exception(name: str, message: str, where: bool, hint: str) -> None:
    failure = {"name": name, "message": message, "stack": f"{name}\n at {URL}:1:3" if where else ""}
    withheld = {"hidden_tool": Withheld("hidden-tool", "hidden_tool", "it is new", "Ask.")}
    found = diagnose("exception", failure, TWO, 1000, EXPORTS, withheld, Catalog())
    assert found.hint is not None and found.hint.startswith(hint)
    assert (found.path is None) == (not where)


def test_the_end_of_memory_is_a_limit() -> None:
    found = diagnosed({"name": "RangeError", "message": "Array buffer allocation failed"})
    assert (found.code, found.error_class) == ("SANDBOX_LIMIT", "SandboxLimitError")
    assert "1000" in found.message


def test_texts_of_a_worker_that_is_taken_over_are_cut_and_take_no_time() -> None:
    huge = "H" * 10_000_000
    for kind in KINDS:
        for mark in ["", "SyntaxError: ", "not a dependency ", "does not provide an export named '"]:
            message = f"{URL}:1:1 {mark}{' ' * 200_000}{URL}:1:1 {huge}"
            body = {"name": huge, "message": message, "stack": huge, "hint": huge, "path": huge}
            began = time.process_time()
            found = diagnosed({**body, "causes": [huge]}, kind)
            assert time.process_time() - began < 0.2
            assert len(found.message) <= MAX_MESSAGE_CHARS
            assert len(found.hint or "") <= MAX_HINT_CHARS and len(found.path or "") <= MAX_HINT_CHARS
    spaces = f"{URL}:1:1{' ' * 8000}x"
    began = time.process_time()
    for _ in range(20):
        diagnosed({"name": "Error", "message": spaces}, "module")
    assert time.process_time() - began < 0.2, "not quadratic in what is left either"


def test_a_long_name_that_is_no_export_is_shown_in_part() -> None:
    text = f"{URL}:1:1 does not provide an export named '{'n' * 7000}'"
    found = diagnosed({"name": "SyntaxError", "message": text}, "module")
    assert found.code == "IMPORT_FAILURE" and len(found.message) < MAX_MESSAGE_CHARS
    assert found.message.startswith("The module has no export nnnn")


pieces = st.sampled_from(
    [URL, MODULE, ":1:1", ":0:0", "\n", "SyntaxError: ", "Cannot import", "data:", "x", ""]
)
texts = st.lists(pieces, max_size=6).map("".join)
fields = st.sampled_from(["name", "message", "stack", "hint", "path", "causes", "errorClass"])
bodies = (
    st.none() | st.lists(texts) | st.dictionaries(fields, texts | st.integers() | st.lists(texts | st.none()))
)


@given(bodies, st.sampled_from(KINDS))
def test_whatever_a_worker_says_gives_one_error(body: object, kind: Any) -> None:
    found = diagnosed(body, kind)
    assert found.severity == "error" and found.hint
    if found.code in ("SYNTAX_ERROR", "IMPORT_FAILURE", "RESULT_NOT_JSON"):
        assert URL not in found.message


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
    assert ("Python" in (syntax_hint(f"{line}\nrows = 1", 2, 1) or "")) == is_python


def test_the_line_of_a_slip_is_the_engines() -> None:
    assert syntax_hint('const a = "\x0c";\nconst b = “x”;\n', 2, 11) == (
        "Write plain quotes in place of typographic ones."
    )
