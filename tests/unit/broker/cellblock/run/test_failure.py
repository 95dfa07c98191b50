"""From what a worker says of a failure to a diagnostic: in the agent's terms, whatever the worker says."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.run.failure import (
    MAX_HINT_CHARS,
    MAX_MESSAGE_CHARS,
    diagnose,
    in_script_terms,
    places_in_stacks,
)
from cellblock.run.response import Diagnostic
from cellblock.script.source import prepare
from cellblock.tools.catalog.model import Withheld
from support.script_places import path_of

SCRIPT = prepare('import * as a from "@codemode/x"; a.b();', lambda _: "data:text/javascript;base64,QUJD", "")
URL = "data:application/javascript;base64,AAA+/="
MODULE = "data:text/javascript;base64,QUJD"
KINDS: list[Any] = ["module", "exception", "rejection", "result"]


def diagnosed(failure: object, kind: Any = "exception") -> Diagnostic:
    return diagnose(kind, failure, SCRIPT, 1000)


def test_urls_become_places_in_the_agents_source() -> None:
    assert in_script_terms("no url: data", SCRIPT) == "no url: data"
    assert in_script_terms(f"at f ({URL}:2:5)", SCRIPT) == "at f (script.js:2:5)"
    assert in_script_terms(f"in {URL} and {MODULE}:1:2", SCRIPT) == "in script.js and @codemode"
    end = SCRIPT.text.index("a.b()") + 1
    assert in_script_terms(f"{URL}:1:{end}", SCRIPT) == "script.js:1:{}".format(
        'import * as a from "@codemode/x"; a.b();'.index("a.b()") + 1
    )


def test_stacks_in_a_result_name_places_and_other_data_urls_stay() -> None:
    text = "data:application/script:1:3 data:application/script:x data:application/javascript;base64,AAAA:1:2"
    assert (
        places_in_stacks(text.encode(), SCRIPT)
        == text.replace("data:application/script:1:3", "script.js:1:3").encode()
    )
    assert places_in_stacks(b'{"a": 1}', SCRIPT) == b'{"a": 1}'


def test_positions_of_absurd_length_are_text() -> None:
    text = f"{URL}:{'1' * 5000}:{'2' * 5000}"
    assert in_script_terms(text, SCRIPT).startswith("script.js:111")


def test_an_exception() -> None:
    failure = {"name": "TypeError", "message": "x is not a function", "stack": f"TypeError\n at {URL}:1:3"}
    found = diagnosed(failure)
    assert (found.severity, found.code) == ("error", "UNCAUGHT_EXCEPTION")
    assert found.message == "TypeError: x is not a function"
    assert found.path == "script.js:1:3"
    assert found.hint and found.error_class is None


def test_an_error_of_codemode_keeps_its_class_and_hint() -> None:
    found = diagnosed({"name": "ToolCallError", "message": "m", "hint": "Do this."}, "module")
    assert (found.error_class, found.hint, found.code) == ("ToolCallError", "Do this.", "UNCAUGHT_EXCEPTION")


@pytest.mark.parametrize("cause", ["", "\n", 0, None, [], {}])
def test_causes_of_any_kind(cause: object) -> None:
    found = diagnosed({"name": "Error", "message": "m", "causes": [cause]})
    assert found.message.startswith("Error: m")


def test_the_first_line_of_the_first_cause_is_shown() -> None:
    found = diagnosed({"name": "Error", "message": "m", "causes": ["why\nstack", "other"]})
    assert found.message == "Error: m (cause: why)"


def test_errors_that_an_error_sums_up_or_suppresses_are_shown() -> None:
    failure = {
        "name": "AggregateError",
        "message": "m",
        "errors": ["Error: a\nstack", "TypeError: b", "… 3 more"],
    }
    assert diagnosed(failure).message == "AggregateError: m (errors: Error: a | TypeError: b | … 3 more)"
    failure = {
        "name": "SuppressedError",
        "message": "m",
        "error": "Error: b\nstack",
        "suppressed": "Error: a",
    }
    assert diagnosed(failure).message == "SuppressedError: m (error: Error: b; suppressed: Error: a)"
    lies = {"name": "E", "message": "m", "errors": [{}, None, *["x"] * 99], "error": 7, "suppressed": []}
    assert diagnosed(lies).message == "E: m (errors: x | x | x)"


def test_what_an_error_says_is_not_changed_but_for_places_in_stacks() -> None:
    text = f'<script src="{MODULE}"> {URL}:1:2 data:application/script:1:3'
    found = diagnosed({"name": "Error", "message": text, "causes": [text]})
    told = text.replace("data:application/script:1:3", "script.js:1:3")
    assert found.message == f"Error: {told} (cause: {told})"


def test_an_error_without_frames_may_be_another_one() -> None:
    assert "error.stack" in (diagnosed({"name": "Error", "message": "m"}, "module").hint or "")
    for failure in (
        {"name": "Error", "message": "m", "stack": f"    at {URL}:1:3"},
        {"name": "AggregateError", "message": "m"},
        {"name": "Error", "message": "m", "hint": "Do this."},
    ):
        assert "error.stack" not in (diagnosed(failure, "module").hint or "")


def test_a_rejection_and_a_thrown_value() -> None:
    assert (
        diagnosed({"name": "Error", "message": "m"}, "rejection").message == "Unhandled rejection: Error: m"
    )
    assert diagnosed({"name": "Thrown value", "message": "3"}).message == "3"


def test_syntax_and_import_failures() -> None:
    found = diagnosed({"name": "SyntaxError", "message": f"Unexpected token ')' at {URL}:3:4"}, "module")
    assert (found.code, found.path) == ("SYNTAX_ERROR", "script.js:3:4")
    assert found.message == "SyntaxError: Unexpected token ')'"
    text = f"The requested module '{MODULE}' does not provide an export named 'nope' at {URL}:1:10"
    found = diagnosed({"name": "SyntaxError", "message": text}, "module")
    assert (found.code, found.message) == ("IMPORT_FAILURE", "The module has no export nope.")
    assert found.path == "script.js:1:10"


@pytest.mark.parametrize("code", ["1;\u2028\t'💥'; let a = ;", "\ufeff/*\r*/ let a = ;", "'\t\t'; let a = ;"])
def test_a_syntax_error_of_denos_parser_has_its_place_in_the_agents_source(code: str) -> None:
    """It ends lines with LF only, counts characters, tabs for two, and sees no byte order mark."""
    before = code.removeprefix("\ufeff")[:-1]
    text = f"SyntaxError: Expression expected\n  |\n1 | x\n    at {URL}:1:{len(before) + before.count(chr(9)) + 1}"
    body = {"name": "TypeError", "message": text}
    found = diagnose("module", body, prepare(code, lambda _: None, ""), 1000)
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
    'import { a } from "@codemode/discovery";\nimport * as b from "@codemode/servers/s";\n',
    lambda _: "data:text/javascript;base64,QUJD",
    "",
)
EXPORTS = {"@codemode/discovery": ["getTool", "listTools"], "@codemode/servers/s": ["act", "get_sum"]}


@pytest.mark.parametrize(
    ("line", "name", "hint"),
    [
        (1, "listTool", "Did you mean listTools or getTool?"),
        (1, "get_sum", "It exports getTool, listTools."),
        (1, "default", "There is no default export: import the names, or `import * as`."),
        (2, "get_sun", "Did you mean get_sum?"),
        (2, "listTools", "Use the names in the server's __meta__.tools, or `import * as`."),
        (2, "subtract", "Use the names in the server's __meta__.tools, or `import * as`."),
        (2, "default", "There is no default export: import the names, or `import * as`."),
    ],
)
def test_the_hint_about_an_export_is_of_its_own_module(line: int, name: str, hint: str) -> None:
    text = f"The requested module '{MODULE}' does not provide an export named '{name}' at {URL}:{line}:10"
    failure = {"name": "SyntaxError", "message": text}
    found = diagnose("module", failure, TWO, 1000, EXPORTS)
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
    found = diagnose("exception", failure, TWO, 1000, EXPORTS, withheld)
    assert found.hint is not None and found.hint.startswith(hint)
    assert (found.path is None) == (not where)


def test_a_return_outside_of_functions_is_told_of_the_result() -> None:
    found = diagnosed({"name": "SyntaxError", "message": f"Illegal return statement at {URL}:3:4"}, "module")
    assert found.hint == "Assign the result instead of returning it: globalThis.__codemode_result__ = …"


def test_the_end_of_memory_is_a_limit() -> None:
    found = diagnosed({"name": "RangeError", "message": "Array buffer allocation failed"})
    assert (found.code, found.error_class) == ("SANDBOX_LIMIT", "SandboxLimitError")
    assert "1000" in found.message


def test_a_result_that_is_no_json() -> None:
    found = diagnosed({"name": "ResultError", "message": "a function", "path": "/a/0"}, "result")
    assert (found.code, found.message, found.path) == ("RESULT_NOT_JSON", "a function", "/a/0")


def test_messages_are_capped() -> None:
    for kind in KINDS:
        assert len(diagnosed({"name": "E", "message": "x" * 100_000}, kind).message) <= MAX_MESSAGE_CHARS


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
