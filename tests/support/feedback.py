"""What Cellblock answers the scripts and commands of feedback_cases.py, asked over `serve --stdio`, as clients do."""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult

from support import commands
from support.http_daemon import TOOL
from support.waits import until_found

BOUND_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.2
MAX_RESULT_CHARS: Final = 250
_DATE: Final = re.compile(r"\b20\d\d-\d\d-\d\d(?: \d\d:\d\d UTC)?\b")


@dataclass(frozen=True, slots=True)
class World:
    """Servers and settings that cases share, with the state that they leave for each other."""

    servers: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sections of `cellblock`."""

    overlays: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """More files of the working folder, by name."""


@dataclass(frozen=True, slots=True)
class Case:
    """One script, or one command, and the sentence that it shows."""

    world: str
    script: str
    """Without the imports of servers whose ids it has before a dot; or the words of a command, after `cellblock`."""

    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More members of the request."""

    before: Sequence[str] = ()
    """Scripts that run before it, in the same session."""

    as_is: bool = False
    """Whether nothing is imported for it."""

    shows: Literal["response", "message"] = "response"
    """What of the answer counts: the response, or `isError` and how the text begins."""

    until: str = ""
    """A regular expression of the result that is waited for: results are looked at when nothing else is to do."""

    is_command: bool = False
    only: str = ""
    """A regular expression of the lines of a command's output that count; all by default."""

    after: str = ""
    """What ran before it, in words."""


def answers(cellblock: str, worlds: Mapping[str, World], cases: Sequence[Case], folder: Path) -> list[str]:
    """What is answered each case, as one Markdown line.

    Args:
        cellblock: The program.
        worlds: By name.
        cases: In the order in which they are asked, world by world.
        folder: For configurations and state.
    """
    said: dict[int, str] = {}
    for name, world in worlds.items():
        own = {number: case for number, case in enumerate(cases) if case.world == name}
        said |= asyncio.run(_said_in(cellblock, folder / name, world, own))
    return [said[number] for number in range(len(cases))]


async def _said_in(cellblock: str, here: Path, world: World, cases: Mapping[int, Case]) -> dict[int, str]:
    """Asks in one world: scripts first, in one session, then commands."""
    (here / "overlays").mkdir(parents=True)
    overlays = {f"overlays/{name}.toml": text for name, text in world.overlays.items()}
    for name, text in {**overlays, **world.files}.items():
        (here / name).write_text(text, "utf-8")
    section = {
        "pool": {"warm": 0},
        "typecheck_timeout_ms": 60_000,
        **world.settings,
        "schemas": {"overlays": str(here / "overlays"), **world.settings.get("schemas", {})},
    }
    config = here / "cellblock.json"
    config.write_text(json.dumps({"mcpServers": dict(world.servers), "cellblock": section}), "utf-8")
    place = ["--config", str(config), "--state-dir", str(here / "state")]
    environment = {**os.environ, "PYTHONPATH": str(here), "NO_COLOR": "1"}
    serve = StdioServerParameters(command=cellblock, args=["serve", "--stdio", *place], env=environment)
    said: dict[int, str] = {}
    async with Client(serve, mode="legacy") as client:
        for number, case in cases.items():
            if not case.is_command:
                said[number] = await _script(client, world, case)
    for number, case in cases.items():
        if case.is_command:
            words = (*case.script.split(), *place)
            done = await commands.cellblock(*words, program=Path(cellblock), env=environment, cwd=here)
            said[number] = _command(case, done.out, done.err, here)
    return said


async def _script(client: Client, world: World, case: Case) -> str:
    for code in case.before:
        await client.call_tool(TOOL, {"code": code, "limits": {"maxToolCalls": 1000}})
    asked = {"code": case.script if case.as_is else _imports(world, case.script) + case.script, **case.limits}
    found: list[CallToolResult] = []

    async def is_there() -> object:
        found.append(await client.call_tool(TOOL, asked))
        return re.search(case.until, json.dumps((found[-1].structured_content or {}).get("result")))

    await until_found(is_there, f"{case.script} comes to {case.until}", BOUND_SECONDS, pause=PAUSE_SECONDS)
    return _opening(found[-1]) if case.shows == "message" else _response(found[-1].structured_content or {})


def _imports(world: World, script: str) -> str:
    servers = [*world.servers, *(["local"] if "tools" in world.settings else [])]
    named = [name for name in servers if re.search(rf"\b{name}\.", script)]
    return "".join(f'import * as {name} from "@codemode/servers/{name}";\n' for name in named)


def _command(case: Case, out: str, errors: str, folder: Path) -> str:
    if case.script.startswith("run "):
        return _response(json.loads(out))
    lines = [line for line in (out + errors).splitlines() if re.search(case.only or r"\S", line)]
    told = [line.replace(f"{folder}/", "") for line in lines]
    return _plain("\n".join(_DATE.sub("YYYY-MM-DD", line) for line in told)) or "(nothing)"


def _response(response: Mapping[str, Any]) -> str:
    """The result, and each diagnostic with its hint."""
    parts = [code_cell(json.dumps(response["result"], ensure_ascii=False))]
    for found in response["diagnostics"]:
        place = f" at {found['path']}" if found.get("path") else ""
        kind = f" ({found['errorClass']})" if found.get("errorClass") else ""
        hint = f" *{_plain(found['hint'])}*" if found.get("hint") else ""
        parts.append(
            f"**{found['severity']}** `{found['code']}`{kind}{_plain(place)}: {_plain(found['message'])}{hint}"
        )
    return "<br>".join(parts)


def _opening(result: CallToolResult) -> str:
    """`isError`, and how the text begins that models are shown."""
    (text, *_) = result.content
    return f"`isError: {json.dumps(bool(result.is_error))}`; the text begins {code_cell(text.text[:120])}"


def code_cell(text: str) -> str:
    """A text as code in a cell of a table."""
    text = _DATE.sub("YYYY-MM-DD", text)
    text = text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + "…"
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{_cell(text)}{ticks}"


def _plain(text: str) -> str:
    """A text for a cell: as it is where it is code, else with what Markdown would read escaped."""
    pieces = _DATE.sub("YYYY-MM-DD", text).split("`")
    if len(pieces) % 2 == 0:
        pieces = ["'".join(pieces)]
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([*_\[\]\\])", r"\\\1", pieces[at]).replace("<", "&lt;")
    return _cell("`".join(pieces))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
