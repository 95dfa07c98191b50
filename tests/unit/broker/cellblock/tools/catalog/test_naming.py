"""Module paths of servers, export names of tools, and what is said in place of a name that is not there."""

import base64
import json
import random
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import deno
import pytest
from hypothesis import given, strategies as st

from cellblock import Broker
from cellblock.base.errors import ConfigError
from cellblock.base.suggest import MAX_CANDIDATES, by_shared_words, nearest_names
from cellblock.base.visible import UNSEEN
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import (
    DISCOVERY_EXPORTS,
    DISCOVERY_SPECIFIER,
    ERROR_CLASSES,
    ERRORS_SPECIFIER,
    SERVERS_PREFIX,
    ModuleUrls,
    data_url,
    fixed_modules,
    server_meta,
    server_module,
)
from cellblock.tools.catalog.naming import (
    RESERVED_WORDS,
    check_tool_name,
    export_names,
    identifier,
    module_path,
    module_paths,
)
from cellblock.tools.python.tool_mark import tool
from cellblock.types.absent_globals import absent_hint, absent_module_hint, import_hint
from cellblock_worker.wire.protocol import MAX_NAME_CHARS
from support.entries import settings
from support.recorded_catalogs import recorded_tools

BAD = {"empty": "", "blank": "  ", "long": "x" * (MAX_NAME_CHARS + 1), "surrogate": "a\ud800"}
"""Names of Python tools that nothing could call."""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("google-drive", "google-drive"),
        ("Google Drive", "google-drive"),
        ("A__B..C", "a-b-c"),
        ("--x--", "x"),
        ("@scope/pkg", "scope-pkg"),
        ("ÄÖ-1", "1"),
        ("İ", "i"),
        ("K", "k"),
        ("日本", "server"),
        ("", "server"),
        ("__proto__", "proto"),
    ],
)
def test_module_path(name: str, path: str) -> None:
    assert module_path(name) == path


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("read_file", "read_file"),
        ("read-file", "read_file"),
        ("a.b/c d", "a_b_c_d"),
        ("123tool", "_123tool"),
        ("$x", "$x"),
        ("créer_é", "créer_é"),
        ("cre\u0301er", "créer"),
        ("日本 語", "日本_語"),
        ("a\u200db\u3164\ufe0f²", "a_b___"),
        ("\u0301x", "_\u0301x"),
        ("", "_"),
        ("٣x", "_٣x"),
        ("delete", "delete_"),
        ("await", "await_"),
        ("then", "then_"),
        ("constructor", "constructor"),
        ("Delete", "Delete"),
    ],
)
def test_identifier(tool: str, name: str) -> None:
    assert identifier(tool) == name


@pytest.mark.slow
@given(st.lists(st.text(max_size=8), max_size=12))
def test_exports_are_unique_identifiers_whatever_the_tools_are_called(tools: list[str]) -> None:
    names = export_names(tools)
    assert set(names) == set(tools)
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert name.replace("$", "_").isidentifier() and not re.search(f"[{UNSEEN}]", name)
        assert name not in RESERVED_WORDS and name not in ("then", "__meta__")
    assert export_names(sorted(tools, reverse=True)) == names


@given(st.lists(st.text(max_size=8), max_size=12, unique=True))
def test_paths_are_unique_whatever_the_servers_are_called(servers: list[str]) -> None:
    paths = module_paths(servers)
    assert list(paths) == servers
    assert len(set(paths.values())) == len(servers)
    assert all(re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(--[0-9]+)?").fullmatch(path) for path in paths.values())


@pytest.mark.parametrize("name", ["add", "größe", "a b", "\U0001f4a5", "x" * MAX_NAME_CHARS])
def test_good_names(name: str) -> None:
    check_tool_name(name)


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_bad_names_are_refused_in_text_that_can_be_shown(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tool_name(name)
    assert "name" in str(caught.value) and caught.value.hint
    assert len(str(caught.value).encode()) < 300


@pytest.mark.parametrize("kind", ["long", "surrogate"])
async def test_a_broker_with_such_a_tool_does_not_start(kind: str, tmp_path: Path) -> None:
    @tool(name=BAD[kind])
    def work() -> int:
        return 1

    with pytest.raises(ConfigError, match="name"):
        async with Broker(settings(tmp_path), tools=[work]):
            pass


def catalog(**servers: list[str]) -> Catalog:
    def entry(tool: str) -> ToolEntry:
        properties = {"url": {}} if "fetch" in tool else {}
        return ToolEntry(tool, tool, None, None, {"type": "object", "properties": properties})

    made = [
        ServerEntry(name.replace("_", "-"), name, name, tools=tuple(map(entry, tools)))
        for name, tools in servers.items()
    ]
    return Catalog(1, {one.server_id: one for one in made})


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
    hint = absent_hint(name, "", KNOWN)
    assert hint is not None and part in hint and name in hint
    # Not a matter of which server comes first.
    turned = Catalog(1, dict(reversed([*KNOWN.servers.items()])))
    assert absent_hint(name, "", turned) == hint


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
    asks = catalog(everything=["trigger_elicitation_request", "download_issue"])
    assert "@codemode/servers/*" in str(absent_hint("fetch", "", asks))
    assert absent_hint("fetch", "", catalog(git=["log"])) == (
        "The sandbox has no fetch and no network: use tools of @codemode/servers/*."
    )
    assert absent_hint("mine", "", KNOWN) is None and absent_module_hint("mine", KNOWN) is None


TOOLS = [tool["name"] for tool in recorded_tools()]


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("create_pull_requst", "create_pull_request"),
        ("createPullRequest", "create_pull_request"),
        ("CREATE-ISSUE", "create_issue"),
        ("issue_create", "create_issue"),
        ("list_dir", "list_directory"),
        ("brwoser_click", "browser_click"),
        ("geocode", "maps_geocode"),
        ("tree", "directory_tree"),
        ("query_docs", "query-docs"),
        ("API_post_page", "API-post-page"),
    ],
)
def test_finds_the_tool_that_was_meant(name: str, best: str) -> None:
    assert nearest_names(name, TOOLS)[0] == best


def test_one_slip_in_any_real_name_is_recovered() -> None:
    dice = random.Random(3)
    names = sorted({name for name in TOOLS if len(name) >= 8})
    slips: list[tuple[str, str]] = []
    for name in names:
        at = dice.randrange(1, len(name) - 2)
        slips.append((name[:at] + name[at + 1 :], name))
        slips.append((name[:at] + name[at + 1] + name[at] + name[at + 2 :], name))
    missed = [pair for pair in slips if pair[0] not in TOOLS and pair[1] not in nearest_names(pair[0], TOOLS)]
    assert len(missed) <= len(names) // 50, missed


PAGES = ["page_b", "page_a", "page_b", "page_c", "page_d"]


def test_names_that_share_words_stand_first() -> None:
    names = ["add_slicer", "list_workbooks", "read_range", "write_range", "import_excel_data"]
    assert by_shared_words("writeDataToExcel", names) == [names[4], names[3], *names[:3]]


@pytest.mark.parametrize(
    ("wanted", "names", "near"),
    [
        ("xyzzy", TOOLS, []),
        ("", TOOLS, []),
        ("_-_", TOOLS, []),
        ("\ud800", TOOLS, []),
        ("click", [], []),
        # A part of a name begins with a word or is half of it.
        ("subtract", ["act"], []),
        ("subtract", ["add"], []),
        ("act", ["subtract"], []),
        ("dir", ["list_directory"], ["list_directory"]),
        ("code", ["geocode"], ["geocode"]),
        ("issues", ["list_repository_issues"], ["list_repository_issues"]),
        # Each once, in their order, and no more than three.
        ("page", PAGES, ["page_b", "page_a", "page_c"]),
        # Other scripts.
        ("страницы", ["страница", "браузер"], ["страница"]),
        ("Café", ["cafe", "thé"], ["cafe"]),
    ],
)
def test_what_is_near(wanted: str, names: list[str], near: list[str]) -> None:
    assert nearest_names(wanted, names) == near


def test_the_limit_is_the_callers() -> None:
    assert nearest_names("page", PAGES, limit=1) == ["page_b"]
    assert nearest_names("page", PAGES, limit=0) == nearest_names("page", PAGES, limit=-1) == []
    assert nearest_names("page", iter(PAGES), limit=9) == ["page_b", "page_a", "page_c", "page_d"]


def test_hostile_names_are_bounded() -> None:
    alike = ["a" * 1000 + str(number) for number in range(MAX_CANDIDATES)]
    started = time.process_time()
    assert len(nearest_names("a" * 1_000_000, alike)) == 3
    nearest_names("\0\ud800" * 100_000, TOOLS)
    endless = iter(f"{number}abc" for number in range(10**6))
    nearest_names("abc" * 100_000, endless)
    assert next(endless) == f"{MAX_CANDIDATES}abc"
    assert time.process_time() - started < 4


@given(st.text(st.characters()))
def test_suggestions_for_any_text(text: str) -> None:
    assert len(nearest_names(text, [text[1:], text[::-1], "plain"])) <= 3


# ---- the text of `@codemode/*` modules: real JavaScript whatever an upstream calls its things ------------


HOSTILE = [
    '"; throw new Error("escaped"); "',
    "`${globalThis.pwned = 1}`",
    "\u2028\u2029\n\r\0",
    "</script>",
    "*/ alert(1) /*",
    "\\",
    "'",
    "\ud800",
    "eval",
    "arguments",
    "enum",
    "implements",
    "default",
    "async",
    "of",
    "ü€😀",
    "__proto__",
    "constructor",
    "s",
    "t0",
    "meta",
    "__meta__",
    "",
]


def server(tools: list[str], name: str = "Server", **fields: Any) -> ServerEntry:
    entries = tuple(
        ToolEntry(tool, export, f"About {tool}", None, {}) for tool, export in export_names(tools).items()
    )
    return ServerEntry("the-server", name, "config", tools=entries, **fields)


def text_of(url: str) -> str:
    return base64.b64decode(url.partition(",")[2]).decode()


# Stands for the sandbox's boot hook: each binding gives what it was made with.
PROBE = """
globalThis.__cellblock_boot__ = {
  server: (id) => ({
    tool: (toolName, exportName, arity) => ({ id, toolName, exportName, arity }),
    meta: (json) => JSON.parse(json),
  }),
  errors: Object.fromEntries(%s.map((name) => [name, name])),
  discovery: new Proxy({}, { get: (_, name) => String(name) }),
  importable: 1,
};
const found = [];
for (const url of JSON.parse(%s)) found.push({ ...(await import(url)) });
console.log(JSON.stringify({ found, pwned: globalThis.pwned ?? null }));
"""


def imported(*urls: str) -> list[dict[str, Any]]:
    code = PROBE % (json.dumps(ERROR_CLASSES), json.dumps(json.dumps(urls)))
    done = subprocess.run(
        [deno.find_deno_bin(), "run", "--no-config", "--no-remote", "--no-npm", "--quiet", data_url(code)],
        env={"NO_COLOR": "1", "DENO_DIR": "/dev/null/deno"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["pwned"] is None
    return answer["found"]


def test_modules_are_valid_and_export_what_they_should_whatever_things_are_called() -> None:
    hostile = server(HOSTILE, name=HOSTILE[0], version=HOSTILE[2])
    first, empty, errors, discovery, _ = imported(
        data_url(server_module(hostile)), data_url(server_module(server([]))), *fixed_modules().values()
    )
    assert first == {
        "__meta__": server_meta(hostile),
        **{
            export: {"id": "the-server", "toolName": tool, "exportName": export, "arity": 0}
            for tool, export in export_names(HOSTILE).items()
        },
    }
    assert len(first) == len(HOSTILE) + 1
    assert empty == {"__meta__": {"serverId": "the-server", "serverName": "Server", "tools": []}}
    assert errors == {name: name for name in ERROR_CLASSES}
    assert set(discovery) == set(DISCOVERY_EXPORTS)


def test_a_functions_length_tells_whether_it_takes_an_input() -> None:
    tools = (ToolEntry("none", "none"), ToolEntry("some", "some", input_schema={"type": "object"}))
    text = server_module(ServerEntry("s", "S", "S", tools=tools))
    assert '"none", "none", 0' in text and '"some", "some", 1' in text


def test_urls_are_found_by_specifier() -> None:
    catalog = Catalog(1, {"files": server(["read"])}, {"down": "why"})
    urls = ModuleUrls()
    url: Any = urls.url_for(catalog, SERVERS_PREFIX + "files")
    assert '"read"' in text_of(url)
    assert urls.url_for(catalog, SERVERS_PREFIX + "files") is url
    for known in (ERRORS_SPECIFIER, DISCOVERY_SPECIFIER):
        assert urls.url_for(catalog, known) == fixed_modules()[known]
    for unknown in (
        "",
        "files",
        SERVERS_PREFIX,
        SERVERS_PREFIX + "down",
        SERVERS_PREFIX + "files/x",
        "node:fs",
    ):
        assert urls.url_for(catalog, unknown) is None


def test_a_changed_server_has_another_url_and_the_memory_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr("cellblock.tools.catalog.modules._URLS_KEPT", 4)
    urls = ModuleUrls()
    seen = {
        urls.url_for(Catalog(number, {"s": server([f"tool{number}"])}), SERVERS_PREFIX + "s")
        for number in range(20)
    }
    assert len(seen) == 20
    assert len(urls._urls._held) <= 4  # pyright: ignore[reportPrivateUsage]
