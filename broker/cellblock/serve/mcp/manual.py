"""The agent's manual is one text, made from the code's own tables (Code Mode specification: documented to the agent).

It stands in the description of the one tool, behind its opening and before the declarations. The opening is all that a
first script needs, in what the shortest-sighted client passes on: Claude Code cuts a tool's description, and a server's
instructions, at 2,048 characters (docs/clients.md). It depends on the catalog alone. The server's instructions say when
to use the tool, and repeat nothing of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cellblock.base.settings.sections import ALL, ANSWER_BYTES, FrontendSettings, LimitSettings, Profile
from cellblock.base.settings.settings import Settings
from cellblock.run.policy.grants import effect_of
from cellblock.run.request import KEYS
from cellblock.tools.catalog.model import Catalog, ToolEntry
from cellblock.tools.catalog.modules import ERROR_CLASSES
from cellblock.tools.catalog.naming import module_paths

OPENING_CHARS: Final = 2_000
"""Bounds the characters of the opening, within the 2,048 that Claude Code leaves of a description."""

NAME_CHARS: Final = 80
"""Bounds the characters of a function's name in the example: two names of any length would fill the opening."""

PURPOSE: Final = (
    "Runs one JavaScript or TypeScript module that calls the tools of MCP servers as functions. Make all calls, loop, "
    "join and filter in one script; only its result comes back."
)

RULES: Final = (
    "- Assign what you want to see to globalThis.__codemode_result__: that is the result.",
    "- await every call: the run ends when the top level has settled. Promise.all makes calls at once.",
    "- A function takes one object. It returns structured content, else the tool's text: a string, which needs "
    "JSON.parse if it is JSON. A failed call throws.",
)
"""Says what scripts get wrong most."""

AT_THE_END: Final = (
    "TypeScript declarations are at the end of this description; any others a script can read: "
)

IN_SCRIPTS: Final = "TypeScript declarations: a script can read them: "
"""Begins the way to declarations where a client does not show the end of the description."""

DECLARATIONS: Final = (
    'import { describe, searchTools } from "@codemode/discovery"; await describe("<id>", "<function>"), '
    'await searchTools("what it should do"); getTool gives schemas.'
)

READING: Final = frozenset(
    ["count", "describe", "fetch", "find", "get", "list", "lookup", "query", "read", "search", "show"]
)
"""Holds first words of names of functions that only read, where nobody says so."""

_WORD: Final = re.compile(r"([a-z\d])([A-Z])")

ABSENT_CHARS: Final = 200
"""Bounds the characters for the ids of servers that are not connected."""

STARTING_AS_KNOWN: Final = "Still starting, shown as last known"
"""Marks servers whose first attempt to connect is not over."""

STARTING: Final = "Still starting (a script that imports one waits for it)"
"""Marks servers whose first attempt to connect is not over, and of which no tools are known."""

RESOURCES_ALONE: Final = "With resources and no functions (readResource of @codemode/discovery)"
"""Marks servers of which a script can read resources alone."""

LOGINS: Final = "Need a login of your user's own"
"""Marks servers of which nothing is known before their user has logged in."""

MORE_IDS: Final = "Their functions: listTools(id) of @codemode/discovery."

HEADING: Final = 'Servers, as "@codemode/servers/<id>", and their functions:'


def opening(
    catalog: Catalog, chars: int = OPENING_CHARS, ways: str = AT_THE_END, used: Sequence[str] = ()
) -> str:
    """Writes purpose, example, rules, the way to declarations, and each server that may be named with its functions.

    Args:
        catalog: The servers.
        chars: Bounds the text. Below `OPENING_CHARS` it has the first rule alone, and a short example.
        ways: Says where declarations are.
        used: What the client has used, see `UseLog.ranked`.
    """
    functions = {
        server.server_id: [
            tool.export_name for tool in by_use(server.tools, tools_used(used, server.server_id))
        ]
        for server in catalog.servers.values()
    }
    is_whole = chars >= OPENING_CHARS
    rules = RULES if is_whole else RULES[:1]
    head = "\n".join([PURPOSE, "", *_example(catalog, is_whole), "", *rules, ways + DECLARATIONS, ""])
    none = "No server is connected yet." if catalog.starting else "No server is connected."
    lines = [head, HEADING if functions else none]
    end = absent(catalog, ABSENT_CHARS if is_whole else ABSENT_CHARS // 4)
    room = chars - sum(len(line) + 1 for line in (*lines, *end))
    return "\n".join([*lines, *rows_within(functions, room), *end])


def tools_used(used: Sequence[str], server_id: str) -> list[str]:
    """Returns the names of the tools of a server that a client has used, see `UseLog.ranked`."""
    start = f"{server_id}."
    return [name.removeprefix(start) for name in used if name.startswith(start)]


def by_use(tools: Sequence[ToolEntry], used: Sequence[str] = ()) -> list[ToolEntry]:
    """Returns tools with those first that a script needs: those `used` before, then reads before writes, one of each
    noun before two of the same."""
    nouns = Counter[tuple[bool, str]]()
    ranks: dict[int, tuple[int, bool, int]] = {}
    for place, tool in enumerate(tools):
        words = words_of(tool.export_name)
        noun = is_reading(tool), words[-1].removesuffix("s")
        before = used.index(tool.tool_name) if tool.tool_name in used else len(used)
        ranks[place] = before, not noun[0], nouns[noun]
        nouns[noun] += 1
    return [tools[place] for place in sorted(ranks, key=lambda place: (ranks[place], place))]


def is_reading(tool: ToolEntry) -> bool:
    """Says whether a tool only reads, by what is stated of it or by its name."""
    effect = effect_of(tool)
    return effect == "read" if effect else words_of(tool.export_name)[0] in READING


def words_of(name: str) -> list[str]:
    """Returns the words of a function's name, at least one, in lower case."""
    return _WORD.sub(r"\1 \2", name).replace("_", " ").lower().split() or [name]


def left_out(catalog: Catalog) -> list[str]:
    """Names the servers, connected or not, that the opening has no room for."""
    shown: set[str] = set()
    before = f"\n{HEADING}\n" if catalog.servers else "\nNo server is connected"
    for line in opening(catalog).partition(before)[2].splitlines():
        if line.startswith("- "):
            shown.add(line[2:].split(" ")[0].removesuffix(":"))
        elif line != MORE_IDS:
            ids = line.partition(": ")[2] or line
            shown.update(one.partition(" (")[0] for one in ids.removesuffix(".").split(", "))
    return [server_id for server_id in {**catalog.servers, **catalog.unavailable} if server_id not in shown]


def absent(catalog: Catalog, room: int) -> list[str]:
    """Returns lines for the servers that still start, those of which something is known first, for those with resources
    alone, those that need a login, with how where there is room, and those that are not connected, with ids in `room`
    characters each."""
    starting, logins = catalog.who_starts, catalog.logins.keys() & catalog.unavailable.keys()
    how = [f"{server_id} ({catalog.logins[server_id]})" for server_id in sorted(logins)]
    lines = {
        STARTING_AS_KNOWN: [server_id for server_id in starting if server_id in catalog.servers],
        STARTING: [server_id for server_id in starting if server_id not in catalog.servers],
        RESOURCES_ALONE: [one.server_id for one in catalog.servers.values() if one.has_resources_alone],
        LOGINS: how if len(", ".join(how)) <= room else sorted(logins),
        "Not connected": [one for one in catalog.unavailable if one not in starting and one not in logins],
    }
    return [f"{words}: {listed_within(ids, room)}." for words, ids in lines.items() if ids]


def listed_within(words: Sequence[str], room: int) -> str:
    """Returns the words that `room` characters have room for, with commas, and how many more there are."""
    for shown in range(len(words), 0, -1):
        left = len(words) - shown
        text = ", ".join([*words[:shown], *([f"and {left} more"] if left else [])])
        if len(text) <= room:
            return text
    return f"{len(words)} in all"


def rows_within(functions: Mapping[str, Sequence[str]], room: int) -> list[str]:
    """Returns a line for each server, with as many names of its functions as there is room for: short lists whole, the
    room that is left shared equally among the others, which say how many there are. When not even that fits, the ids
    are listed alone, and how many more there are.

    Args:
        functions: Names by server id.
        room: Characters, line ends included.
    """
    least = {server_id: len(_row(server_id, names, 0)) + 1 for server_id, names in functions.items()}
    if sum(least.values()) > room:
        return [listed_within(list(functions), room - len(MORE_IDS) - 1), MORE_IDS]
    more = {
        server_id: len(_row(server_id, names, room)) + 1 - least[server_id]
        for server_id, names in functions.items()
    }
    shared = shares(more, room - sum(least.values()))
    return [
        _row(server_id, names, least[server_id] + shared[server_id] - 1)
        for server_id, names in functions.items()
    ]


def shares(needs: Mapping[str, int], room: int, used: Sequence[str] = ()) -> dict[str, int]:
    """Shares characters out among servers: what was used has what it needs, as far as it goes, the latest first; the
    others have what they need where that is less than an equal share of what is left, else the share.

    Args:
        needs: Characters that each server needs, by id.
        room: Characters for all.
        used: Ids of servers, those that matter most first.
    """
    got: dict[str, int] = {}
    for server_id in used:
        if needs.get(server_id, room + 1) <= room:
            got[server_id] = needs[server_id]
            room -= needs[server_id]
    rest = sorted((one for one in needs if one not in got), key=lambda one: needs[one])
    for place, server_id in enumerate(rest):
        got[server_id] = max(0, min(needs[server_id], room // (len(rest) - place)))
        room -= got[server_id]
    return got


def _row(server_id: str, names: Sequence[str], room: int) -> str:
    """Returns one server's line of at most `room` characters, or its shortest one."""
    whole = f"- {server_id}: {', '.join(names)}" if names else f"- {server_id}: none"
    if len(whole) <= room or not names:
        return whole
    line = f"- {server_id} ({len(names)}):"
    end = ", …"
    for name in names:
        separator = " " if line.endswith(":") else ", "
        if len(line) + len(separator) + len(name) + len(end) > room:
            break
        line += separator + name
    return line.removesuffix(":") if line.endswith(":") else line + end


def _example(catalog: Catalog, is_whole: bool) -> list[str]:
    """Returns lines that call a real function, if there is one whose name leaves room for the rest: one that reads, if
    there is."""
    named = [
        (not is_reading(tool), server.server_id, tool.export_name)
        for server in catalog.servers.values()
        for tool in by_use(server.tools)
        if len(server.server_id) + len(tool.export_name) <= NAME_CHARS
    ]
    # The first of the least: the order of the file.
    _, server_id, name = min(named, key=lambda one: one[0], default=(False, "files", "read_file"))
    lines = [
        f'import {{ {name} }} from "@codemode/servers/{server_id}";',
        f"const value = await {name}({{ /* as its declaration says */ }});",
        "console.log(typeof value); // logs come back, too: print little",
        "globalThis.__codemode_result__ = { value }; // any JSON value: only what matters",
    ]
    return lines if is_whole else [*lines[:2], "globalThis.__codemode_result__ = { value };"]


UNWRAPPING: Final = (
    "structuredContent, if the result has it",
    "else the string of a single text block",
    "else the full MCP result (images and audio are in its content as base64 strings)",
)
"""Says what a tool function returns (section 5.3.2), in the order in which the rules are tried."""

CONVENTIONS: Final = (
    "- In place of the assignment, which wins: a top-level return, `export default` of a value or a function, or a "
    "function alone, which is called.\n"
    "- Image and audio blocks of a tool's result that are in the script's result are shown to you."
)
"""Says how else a script may give its result (see `script/conventions.py`), and what becomes of media in it."""

_UNITS: Final = {"Ms": "ms", "Bytes": "bytes", "Calls": "calls"}


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, str]]:
    # Not at the top: a client is greeted without it.
    from cellblock_worker.confinement.confinement import BUNDLE_DIR

    return json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))


def manual(settings: Settings, granted: Catalog | None = None) -> str:
    """Says how a script is written and what it may do, what all must know first; the same text for the same
    configuration.

    Args:
        settings: The configuration in force.
        granted: The only servers and tools that may be named; None: all.
    """
    return "\n".join(
        [
            f'- A failed call throws; classes are in "@codemode/errors" ({", ".join(ERROR_CLASSES)}), and each has '
            "a `hint`. What went wrong comes back as `diagnostics`.",
            "- Top-level await works.",
            *([] if settings.cellblock.frontend.strict else [CONVENTIONS]),
            f"- A tool returns {', '.join(UNWRAPPING)}. A tool whose input is not an object takes that value.",
            *deviations(settings, granted),
            '- "@codemode/discovery": listServers(), describeServer(id), listTools(id, { detail }), getTool(id, name), '
            'searchTools(text, { serverId, limit, detail }); detail is "name", "description" or "full". '
            "describe(id) or describe(id, functions) gives TypeScript. "
            "readResource(id, uri) gives what a resource_link names: its text, else { contents }; it is a tool call.",
            "- Only @codemode/* can be imported. console output comes back as logs: print summaries, not whole data.",
            *_kept(settings.cellblock.frontend),
            f"- {_limits(settings.cellblock.limits)}",
            "- requestedCapabilities: ids of servers.",
            f"- {_globals()}",
        ]
    )


def deviations(settings: Settings, granted: Catalog | None = None) -> list[str]:
    """Returns a line for each way in which results are given otherwise than by default (section 5.3.2.5), and by
    whom."""
    lines: list[str] = []
    schemas = settings.cellblock.schemas
    exact = _where(schemas.is_exact, settings, granted)
    if exact:
        lines.append(f"- Integers beyond 2^53 come as BigInt from {exact}; a BigInt is sent as an integer.")
    parsed = _where(schemas.unwraps, settings, granted)
    if parsed:
        lines.append(f"- A text that is a JSON object or array comes parsed from {parsed}: no JSON.parse.")
    if schemas.unbox:
        lines.append('- A value that a declared schema wraps, as in {"result": value}, comes bare.')
    return lines


def _where(holds: Callable[[str], bool], settings: Settings, granted: Catalog | None) -> str:
    """Returns the servers for which something holds, and the exceptions."""
    paths = module_paths([*settings.enabled, "local"])
    everywhere = holds(ALL)
    places: list[str] = []
    exceptions: list[str] = []
    for name, path in paths.items():
        if granted is not None and path not in granted.servers:
            continue
        of_server = holds(name)
        if of_server != everywhere:
            (places if of_server else exceptions).append(path)
    text = ", ".join(["all servers", *places] if everywhere else places)
    return f"{text} (but not {', '.join(exceptions)})" if text and exceptions else text


def _kept(shown: FrontendSettings) -> list[str]:
    inline = shown.inline_bytes
    if inline is None and shown.strict:
        return []
    most = min(inline or ANSWER_BYTES, ANSWER_BYTES)
    return [
        f"- Of a result and logs over {most} bytes you get a preview; the whole is an MCP resource, read in pages."
    ]


def _limits(limits: LimitSettings) -> str:
    shown: list[str] = []
    for key, (name, _) in KEYS.items():
        allowed = getattr(limits, name)
        unit = next(text for ending, text in _UNITS.items() if key.endswith(ending))
        shown.append(f"{key} {allowed.default} (at most {allowed.maximum}) {unit}")
    return f"limits, with defaults: {', '.join(shown)}. Other keys are ignored."


def _globals() -> str:
    deviations = _tables()["deviations"]
    absent = sorted(name for name, text in deviations.items() if text.startswith("absent"))
    others = "; ".join(
        f"{name}: {text}" for name, text in deviations.items() if not text.startswith("absent")
    )
    return (
        "Standard built-ins, URL, TextEncoder, setTimeout, crypto.randomUUID, structuredClone and the like are there. "
        f"Absent: network, files, process, require, Node and Deno, {', '.join(absent)}. {others}."
    )


EXTENDED_HINT: Final = (
    "Where no output is declared, one run of a tool is enough: "
    "search_tools and inspect_tool know then what it gives."
)
"""Describes the tools of the `extended` profile."""


INSTRUCTIONS_CHARS: Final = 1_000
"""Bounds the characters of the instructions: they are in a model's context whether it needs them or not."""

WHEN: Final = (
    "Behind this server's tool for scripts are MCP servers. Use it for whatever they can do, above all for several "
    "calls, for loops and joins over what calls return, and for results that are larger than what you need of them: a "
    "script works on them where they are. Its description says how, and what each server has."
)


PROXY: Final = (
    "The tools are those of several MCP servers, each as mcp__SERVER__TOOL. What is known of their results is in their "
    "output schemas; what no server has declared is only what results looked like so far."
)
"""Describes the tools of the profile `proxy`."""


def instructions(catalog: Catalog, profile: Profile = "default") -> str:
    """Returns the server's instructions: when to use the tool, and the servers that its description has no room for;
    `INSTRUCTIONS_CHARS` at most.

    Args:
        catalog: The servers that may be named.
        profile: The tools that the client sees.
    """
    if profile == "proxy":
        # The names of its tools say which servers are there.
        lines, named = [PROXY], [*catalog.unavailable]
    else:
        lines, named = [WHEN, *([EXTENDED_HINT] if profile == "extended" else [])], left_out(catalog)
    starting = set(catalog.who_starts)
    of: dict[str, list[str]] = {
        "More servers": [one for one in named if one in catalog.servers and one not in starting],
        "Servers, starting now": [one for one in named if one in starting],
        "Not connected": [one for one in named if one not in catalog.servers and one not in starting],
    }
    for said, ids in of.items():
        if ids:
            left = INSTRUCTIONS_CHARS - len("\n".join(lines)) - len(f"\n{said}: .")
            lines.append(f"{said}: {listed_within(ids, left // 2)}.")
    return "\n".join(lines)
