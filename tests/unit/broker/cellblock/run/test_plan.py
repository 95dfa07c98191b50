"""What a worker is sent, and what is refused before one is used."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from cellblock.run.plan import (
    MAX_IMPORT_ERRORS,
    Plan,
    capability_warnings,
    imported_exports,
    make_plan,
    refusal,
)
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import IMPORT_SPECIFIER, ModuleUrls, fixed_modules

FILES = ServerEntry("files", "Files", "Files!", tools=(ToolEntry("read", "read"),))
CATALOG = Catalog(
    1,
    {"files": FILES, "git": ServerEntry("git", "Git", "git")},
    {"down": "no such command"},
    {"vault": "Ask for it."},
    ids={"Down, Right?": "down"},
)
PREFIX = "@codemode/servers/"


def plan(code: str) -> Plan:
    return make_plan(code, CATALOG, ModuleUrls())


def start(code: str) -> dict[str, Any]:
    made = plan(code)
    assert made.errors == ()
    body: dict[str, Any] = json.loads(made.body)
    return body


def text_of(url: str) -> str:
    return base64.b64decode(url.partition(",")[2]).decode()


def test_static_imports_are_given_their_modules() -> None:
    body = start(
        'import * as f from "@codemode/servers/files"; import {CodemodeError} from "@codemode/errors";'
    )
    assert set(body["modules"]) == {PREFIX + "files", "@codemode/errors"}
    assert body["refused"] == {}
    main = text_of(body["main"])
    assert body["modules"][PREFIX + "files"] in main
    assert "read" in text_of(body["modules"][PREFIX + "files"])


def test_a_script_without_imports_is_given_nothing() -> None:
    body = start("1")
    assert body["modules"] == {} and text_of(body["main"]) == "1"
    assert body["main"].startswith("data:application/javascript;base64,")
    assert text_of(start("let a: number")["main"]) == "let a        "
    assert start("enum A {}")["main"].startswith("data:application/typescript;base64,")


def test_the_same_server_gives_the_same_url() -> None:
    urls = ModuleUrls()
    code = 'import "@codemode/servers/files"'
    assert make_plan(code, CATALOG, urls).body == make_plan(code, CATALOG, urls).body


def test_a_constant_dynamic_import_is_given_or_refused_in_its_place() -> None:
    body = start('await import("@codemode/servers/git"); await import("node:fs");')
    assert set(body["modules"]) == {PREFIX + "git", IMPORT_SPECIFIER}
    assert list(body["refused"]) == ["node:fs"]
    assert body["refused"]["node:fs"]["errorClass"] == "CodemodeError"


def test_a_computed_import_is_given_everything_but_the_inside() -> None:
    body = start('const name = "git"; await import(`@codemode/servers/${name}`);')
    servers = {PREFIX + "files", PREFIX + "git"}
    assert set(body["modules"]) == servers | set(fixed_modules())
    assert set(body["refused"]) == {PREFIX + "down", PREFIX + "vault"}
    for specifier, word in ((PREFIX + "down", "no such command"), (PREFIX + "vault", "not granted")):
        assert body["refused"][specifier]["errorClass"] == "ServerNotFoundError"
        assert word in body["refused"][specifier]["message"]
    body = start(f'await import("{IMPORT_SPECIFIER}")')
    assert IMPORT_SPECIFIER in body["refused"]


@pytest.mark.parametrize(
    ("specifier", "error_class", "word"),
    [
        ("node:fs", None, "only @codemode/*"),
        ("@codemode/error", None, "@codemode/errors"),
        (PREFIX + "fils", "ServerNotFoundError", "files"),
        (PREFIX + "down", "ServerNotFoundError", "no such command"),
        (PREFIX + "zzzzzz", "ServerNotFoundError", "files, git"),
        ("", None, "only @codemode/*"),
        ("files", None, "'@codemode/servers/files'"),
        ("fs", None, "no fs and no files: use tools of @codemode/servers/*"),
        ("node:files", None, "Use tools of @codemode/servers/*"),
        (
            "codemode/servers/files",
            None,
            "only @codemode/* modules exist here. Did you mean '@codemode/servers/files'",
        ),
        ("@codemode/server/files", None, "there is no such module. Did you mean '@codemode/servers/files'?"),
        ("@codemode/tools/file", None, "there is no such module. Did you mean '@codemode/servers/files'?"),
        ("@codemode/git", None, "there is no such module. Did you mean '@codemode/servers/git'?"),
        ("@codemode/servers", None, "there is no such module. Connected servers: files, git."),
        ("@codemode/server", None, "there is no such module. Connected servers: files, git."),
        ("@codemode", None, "there is no such module. Connected servers: files, git."),
        ("@codemode/zzzz/zzzz", None, "there is no such module. Connected servers: files, git."),
        ("@codemode/discover", None, "there is no such module. Did you mean '@codemode/discovery'?"),
    ],
)
def test_a_static_import_that_cannot_be_had_is_an_error_with_its_place(
    specifier: str, error_class: str | None, word: str
) -> None:
    (error,) = plan(f'1;\nimport "{specifier}";').errors
    assert (error.code, error.path, error.error_class) == ("IMPORT_FAILURE", "script.js:2:8", error_class)
    assert word in f"{error.message} {error.hint}"


def test_the_inner_module_cannot_be_imported() -> None:
    made = plan(f'import {{ importable }} from "{IMPORT_SPECIFIER}";')
    assert [error.code for error in made.errors] == ["IMPORT_FAILURE"]


def test_the_names_of_each_module_are_known_dynamic_ones_too() -> None:
    code = 'import * as f from "@codemode/servers/files"; await import("@codemode/discovery"); await import("x");'
    names = imported_exports(plan(code).script, CATALOG)
    assert list(names) == [PREFIX + "files", "@codemode/discovery"]
    assert names[PREFIX + "files"] == ["read"] and "getTool" in names["@codemode/discovery"]


def test_errors_are_capped() -> None:
    made = plan("".join(f'import "m{number}";' for number in range(500)))
    assert len(made.errors) == MAX_IMPORT_ERRORS


def test_a_script_that_is_too_complex_is_refused() -> None:
    (error,) = plan('import "@codemode/errors";' * 5000).errors
    assert error.code == "SCRIPT_TOO_COMPLEX" and error.severity == "error" and error.hint


def test_hostile_specifiers_are_json_in_the_body() -> None:
    body = start('await import("</script>\u2028\\u{0}"); await import("__proto__");')
    assert "__proto__" in body["refused"]
    assert refusal("__proto__", CATALOG)["errorClass"] == "CodemodeError"


def test_capabilities_that_are_not_there_are_warned_of() -> None:
    there = ("files", "Files!", PREFIX + "git")
    assert capability_warnings(there, CATALOG) == []
    warnings = capability_warnings(("down", "fils", ""), CATALOG)
    assert [warning.code for warning in warnings] == ["CAPABILITY_UNAVAILABLE"] * 3
    assert all(warning.severity == "warning" and warning.hint for warning in warnings)
    assert "'down'" in warnings[0].message and "files" in (warnings[1].hint or "")
    assert "not connected (no such command)" in warnings[0].message
    named, by_id = capability_warnings(("Down, Right?", "down"), CATALOG)
    assert (named.hint, named.message) == (by_id.hint, by_id.message.replace("'down'", "'Down, Right?'"))


def test_a_list_of_servers_is_cut() -> None:
    many = Catalog(1, {f"s{number}": ServerEntry(f"s{number}", "S", "s") for number in range(50)})
    hint = refusal("@codemode/servers", many)["hint"]
    assert "s29 and 20 more." in hint and "s30" not in hint
