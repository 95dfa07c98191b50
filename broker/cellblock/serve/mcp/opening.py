"""The tool's description has an opening: all that a first script needs, in what the shortest-sighted client passes on.

Claude Code cuts a tool's description, and a server's instructions, at 2,048 characters (docs/clients.md). Whatever else
is told stands behind the opening, in the same description (see `manual`). The text depends on the catalog alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cellblock.tools.catalog.model import Catalog

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

DECLARATIONS: Final = (
    "TypeScript declarations are at the end of this description; any others a script can read: "
    'import { getTool, searchTools } from "@codemode/discovery"; await getTool("<id>", "<function>"), '
    'await searchTools("what it should do").'
)

ABSENT_CHARS: Final = 200
"""Bounds the characters for the ids of servers that are not connected."""

STARTING_AS_KNOWN: Final = "Still starting, shown as last known"
"""Marks servers whose first attempt to connect is not over."""

STARTING: Final = "Still starting (a script that imports one waits for it)"
"""Marks servers whose first attempt to connect is not over, and of which no tools are known."""

MORE_IDS: Final = "Their functions: listTools(id) of @codemode/discovery."

HEADING: Final = 'Servers, as "@codemode/servers/<id>", and their functions:'


def opening(catalog: Catalog) -> str:
    """Writes purpose, example, rules, the way to declarations, and each server that may be named with its functions;
    `OPENING_CHARS` at most."""
    functions = {
        server.server_id: [tool.export_name for tool in server.tools] for server in catalog.servers.values()
    }
    head = "\n".join([PURPOSE, "", *_example(functions), "", *RULES, DECLARATIONS, ""])
    none = "No server is connected yet." if catalog.starting else "No server is connected."
    lines = [head, HEADING if functions else none]
    end = absent(catalog, ABSENT_CHARS)
    room = OPENING_CHARS - sum(len(line) + 1 for line in (*lines, *end))
    return "\n".join([*lines, *rows_within(functions, room), *end])


def left_out(catalog: Catalog) -> list[str]:
    """Names the servers, connected or not, that the opening has no room for."""
    shown: set[str] = set()
    before = f"\n{HEADING}\n" if catalog.servers else "\nNo server is connected"
    for line in opening(catalog).partition(before)[2].splitlines():
        if line.startswith("- "):
            shown.add(line[2:].split(" ")[0].removesuffix(":"))
        elif line != MORE_IDS:
            shown.update(line.rpartition(": ")[2].removesuffix(".").split(", "))
    return [server_id for server_id in {**catalog.servers, **catalog.unavailable} if server_id not in shown]


def absent(catalog: Catalog, room: int) -> list[str]:
    """Returns lines for the servers that still start, those of which something is known first, and one for those that
    are not connected, with ids in `room` characters each."""
    starting = catalog.who_starts
    lines = {
        STARTING_AS_KNOWN: [server_id for server_id in starting if server_id in catalog.servers],
        STARTING: [server_id for server_id in starting if server_id not in catalog.servers],
        "Not connected": [server_id for server_id in catalog.unavailable if server_id not in starting],
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
    shown = dict.fromkeys(functions, "")
    # Who needs least comes first: what it leaves of its share goes to the others.
    by_need = sorted(functions, key=lambda server_id: len(_row(server_id, functions[server_id], room)))
    spare = room - sum(least.values())
    for place, server_id in enumerate(by_need):
        own = least[server_id] + spare // (len(by_need) - place)
        shown[server_id] = _row(server_id, functions[server_id], own - 1)
        spare -= len(shown[server_id]) + 1 - least[server_id]
    return list(shown.values())


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


def _example(functions: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns four lines that call a real function, if there is one whose name leaves room for the rest."""
    server_id, name = next(
        (
            (server_id, name)
            for server_id, names in functions.items()
            for name in names
            if len(server_id) + len(name) <= NAME_CHARS
        ),
        ("files", "read_file"),
    )
    return [
        f'import {{ {name} }} from "@codemode/servers/{server_id}";',
        f"const value = await {name}({{ /* as its declaration says */ }});",
        "console.log(typeof value); // logs come back, too: print little",
        "globalThis.__codemode_result__ = { value }; // any JSON value: only what matters",
    ]
