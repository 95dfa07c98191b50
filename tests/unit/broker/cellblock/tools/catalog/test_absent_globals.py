"""What is said in place of a global or module that is not there, or of a name that is not imported."""

from __future__ import annotations

import pytest

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.absent_globals import absent_hint, absent_module_hint, import_hint


def catalog(**servers: list[str]) -> Catalog:
    entries: dict[str, ServerEntry] = {}
    for name, tools in servers.items():
        server_id = name.replace("_", "-")
        made = tuple(ToolEntry(tool, tool, None, None, {"type": "object"}) for tool in tools)
        entries[server_id] = ServerEntry(server_id, name, name, tools=made)
    return Catalog(1, entries)


KNOWN = catalog(
    git=["log"], my_files=["read_file", "move"], web=["fetch_page", "move"], archive=["fetch_old", "find_one"]
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("git", 'Import it: `import * as git from "@codemode/servers/git";`'),
        ("my_files", 'Import it: `import * as my_files from "@codemode/servers/my-files";`'),
        ("myFiles", 'Import it: `import * as myFiles from "@codemode/servers/my-files";`'),
        ("find_one", 'Import it: `import { find_one } from "@codemode/servers/archive";`'),
        ("move", "Import it from one of its servers: my-files, web."),
        ("mine", None),
        ("Git", None),
    ],
)
def test_what_is_not_imported_is_told_with_its_import(name: str, hint: str | None) -> None:
    assert import_hint(name, KNOWN) == hint


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Buffer", "Uint8Array.fromBase64(text)"),
        (
            "fetch",
            'no network: use a tool, such as `import { fetch_old } from "@codemode/servers/archive";`.',
        ),
        ("Deno", 'no files: use a tool, such as `import { read_file } from "@codemode/servers/my-files";`.'),
        ("setImmediate", "queueMicrotask"),
        ("setInterval", "use setTimeout"),
        ("localStorage", "a variable"),
        ("window", "globalThis"),
        ("__dirname", "use tools of @codemode/servers/*"),
    ],
)
def test_globals_name_what_stands_in_their_place(name: str, part: str) -> None:
    hint = absent_hint(name, catalog=KNOWN)
    assert hint is not None and part in hint and name in hint
    # Not a matter of which server comes first.
    turned = Catalog(1, dict(reversed(KNOWN.servers.items())))
    assert absent_hint(name, catalog=turned) == hint


@pytest.mark.parametrize(
    ("specifier", "part"),
    [
        ("node:timers", "the global setTimeout"),
        ("node:timers/promises", "await new Promise"),
        ("buffer", "toBase64"),
        ("node:fs/promises", "read_file"),
        ("npm:axios", "fetch_old"),
        ("node:crypto", "crypto.randomUUID"),
        ("lodash/groupBy", "Object.groupBy"),
    ],
)
def test_modules_too(specifier: str, part: str) -> None:
    assert part in (absent_module_hint(specifier, KNOWN) or "")
    assert part in (absent_hint("require", specifier, KNOWN) or "")


def test_without_such_a_tool_the_servers_are_named() -> None:
    assert absent_hint("fetch", catalog=catalog(git=["log"])) == (
        "The sandbox has no fetch and no network: use tools of @codemode/servers/*."
    )
    assert absent_hint("mine", catalog=KNOWN) is None and absent_module_hint("mine", KNOWN) is None
