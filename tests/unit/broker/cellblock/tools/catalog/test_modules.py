"""The text of `@codemode/*` modules: real JavaScript whatever an upstream calls its things."""

import base64
import json
import subprocess
from typing import Any

import deno

from cellblock.tools.catalog import modules
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import (
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
from cellblock.tools.catalog.naming import export_names

HOSTILE = [
    '"; throw new Error("escaped"); "',
    "`${globalThis.pwned = 1}`",
    "\u2028\u2029\n\r\0",
    "</script>",
    "*/ alert(1) /*",
    "\\",
    "'",
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
    assert set(discovery) == set(modules.DISCOVERY_EXPORTS)


def test_a_functions_length_tells_whether_it_takes_an_input() -> None:
    tools = (ToolEntry("none", "none"), ToolEntry("some", "some", input_schema={"type": "object"}))
    text = server_module(ServerEntry("s", "S", "S", tools=tools))
    assert '"none", "none", 0' in text and '"some", "some", 1' in text


def test_lone_surrogates_do_not_stop_a_module() -> None:
    assert "\ufffd" not in text_of(data_url(server_module(server(["\ud800"]))))


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
    monkeypatch.setattr(modules, "_URLS_KEPT", 4)
    urls = ModuleUrls()
    seen = {
        urls.url_for(Catalog(number, {"s": server([f"tool{number}"])}), SERVERS_PREFIX + "s")
        for number in range(20)
    }
    assert len(seen) == 20
    assert urls._urls.size <= 4  # pyright: ignore[reportPrivateUsage]
