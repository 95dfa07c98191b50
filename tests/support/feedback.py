"""What Cellblock answers the scripts and commands of feedback_cases.py, asked over `serve --stdio`, as clients do.

Nothing of Cellblock is imported, so that earlier versions can be asked the same.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

BOUND_SECONDS: Final = 60.0
SOON_SECONDS: Final = 5.0
"""For a version that may never answer so."""

PAUSE_SECONDS: Final = 0.2
MAX_RESULT_CHARS: Final = 250
_DATE: Final = re.compile(r"\b20\d\d-\d\d-\d\d(?: \d\d:\d\d UTC)?\b")


@dataclass(frozen=True, slots=True)
class World:
    """Servers and settings that cases share, with the state that they leave for each other."""

    servers: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sections of `cellblock` that are what the cases are about; an earlier version may have no such setting."""

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

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return " ".join([self.world, *self.limits, *([self.after] if self.after else []), self.script])


class Session:
    """One client of `cellblock serve --stdio`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._number = 0
        about = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "feedback", "version": "1"},
        }
        self.begun = self._ask("initialize", about) is not None
        if self.begun:
            self._send({"method": "notifications/initialized"})

    def run(self, code: str, more: Mapping[str, Any]) -> dict[str, Any]:
        """The result of `codemode.run`."""
        found = self._ask("tools/call", {"name": "codemode.run", "arguments": {"code": code, **more}})
        if found is None:
            raise RuntimeError(f"cellblock has ended: {self.close()}")
        return found

    def close(self) -> str:
        """Ends the process; returns what it wrote to its stderr."""
        return self._process.communicate()[1]

    def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        self._number += 1
        try:
            self._send({"id": self._number, "method": method, "params": params})
        except BrokenPipeError:
            return None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == self._number and "method" not in message:
                return message.get("result", message.get("error"))
        return None

    def _send(self, message: Mapping[str, Any]) -> None:
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()


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
        here = folder / name
        (here / "overlays").mkdir(parents=True)
        for file, text in world.overlays.items():
            (here / "overlays" / f"{file}.toml").write_text(text, "utf-8")
        for module, text in world.files.items():
            (here / module).write_text(text, "utf-8")
        environment = {**os.environ, "PYTHONPATH": str(here), "NO_COLOR": "1"}
        own = [(number, case) for number, case in enumerate(cases) if case.world == name]
        asking = _Asking(cellblock, here, world, environment)
        for number, case in own:
            if not case.is_command:
                said[number] = asking.script(case)
        asking.end()
        for number, case in own:
            if case.is_command:
                said[number] = asking.command(case)
    return [said[number] for number in range(len(cases))]


class _Asking:
    """Asks in one world: scripts first, in one session, then commands."""

    def __init__(self, cellblock: str, folder: Path, world: World, environment: Mapping[str, str]) -> None:
        self._cellblock, self._folder, self._world, self._environment = cellblock, folder, world, environment
        self._patience = {"typecheck_timeout_ms": 60_000}
        self._session: Session | None = None
        self._lacks = False
        self._write(world.settings)

    def _write(self, settings: Mapping[str, Any]) -> None:
        section = {
            "pool": {"warm": 0},
            "schemas": {"overlays": str(self._folder / "overlays"), **settings.get("schemas", {})},
            **self._patience,
            **{name: value for name, value in settings.items() if name != "schemas"},
        }
        config = {"mcpServers": dict(self._world.servers), "cellblock": section}
        (self._folder / "cellblock.json").write_text(json.dumps(config), "utf-8")

    @property
    def _where(self) -> list[str]:
        return ["--config", str(self._folder / "cellblock.json"), "--state-dir", str(self._folder / "state")]

    def script(self, case: Case) -> str:
        if self._session is None:
            command = [self._cellblock, "serve", "--stdio", *self._where]
            self._session = Session(command, self._environment)
            if not self._session.begun:
                self._session.close()
                self._lacks = True
                self._write({})
                self._session = Session(command, self._environment)
        for code in case.before:
            self._session.run(code, {"limits": {"maxToolCalls": 1000}})
        code = case.script if case.as_is else self._imports(case.script) + case.script
        found = self._session.run(code, case.limits)
        bound = time.monotonic() + (BOUND_SECONDS if self._patience else SOON_SECONDS)
        while not re.search(case.until, json.dumps(found.get("structuredContent", {}).get("result"))):
            if time.monotonic() > bound:
                break
            time.sleep(PAUSE_SECONDS)
            found = self._session.run(code, case.limits)
        lacks = "(there is no such setting) " if self._lacks else ""
        return lacks + (_opening(found) if case.shows == "message" else _response(found))

    def _imports(self, script: str) -> str:
        servers = [*self._world.servers, *(["local"] if "tools" in self._world.settings else [])]
        named = [name for name in servers if re.search(rf"\b{name}\.", script)]
        return "".join(f'import * as {name} from "@codemode/servers/{name}";\n' for name in named)

    def command(self, case: Case) -> str:
        done = subprocess.run(
            [self._cellblock, *case.script.split(), *self._where],
            env={**self._environment},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if case.script.startswith("run "):
            return _response({"structuredContent": json.loads(done.stdout)})
        lines = [
            line for line in (done.stdout + done.stderr).splitlines() if re.search(case.only or r"\S", line)
        ]
        told = [line.replace(f"{self._folder}/", "") for line in lines]
        return _plain("\n".join(_DATE.sub("YYYY-MM-DD", line) for line in told)) or "(nothing)"

    def end(self) -> None:
        if self._session is not None:
            self._session.close()


def _response(result: Mapping[str, Any]) -> str:
    """The result, and each diagnostic with its hint."""
    response = result.get("structuredContent")
    if response is None:
        return _plain(str(result.get("message", result)))
    parts = [code_cell(json.dumps(response["result"], ensure_ascii=False))]
    for found in response["diagnostics"]:
        place = f" at {found['path']}" if found.get("path") else ""
        kind = f" ({found['errorClass']})" if found.get("errorClass") else ""
        hint = f" *{_plain(found['hint'])}*" if found.get("hint") else ""
        parts.append(
            f"**{found['severity']}** `{found['code']}`{kind}{_plain(place)}: {_plain(found['message'])}{hint}"
        )
    return "<br>".join(parts)


def _opening(result: Mapping[str, Any]) -> str:
    """`isError`, and how the text begins that models are shown."""
    first = result["content"][0]["text"][:120]
    return f"`isError: {json.dumps(result.get('isError', False))}`; the text begins {code_cell(first)}"


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
