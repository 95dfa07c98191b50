"""Finds the native TypeScript compiler, and owns one process of it: confined, with an empty environment. It holds a
script and its declarations, for each of the two languages in a project.

The compiler reads hostile text: the script, and what upstream servers say of their tools. Under bubblewrap its root
holds the compiler, the declarations of the language and two settings files, read-only, without a network. Elsewhere
the settings alone keep it from other files: it resolves no import and no reference (`noResolve`).

The protocol is the language server protocol over JSON-RPC 2.0; a message is capped before anything is decoded.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import platform
import re
import resource
import sys
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from cellblock.base.json import is_array, is_object
from cellblock.base.raw_json import LIGHT_BYTES
from cellblock_worker.base import lifetime
from cellblock_worker.confinement import bubblewrap, confinement, syscall_lists
from cellblock_worker.launch.deno_process import DenoProcess
from cellblock_worker.launch.launching import Launcher, SpawnRequest


def _folder() -> Path:
    """Finds where the package `cellblock-typescript` keeps the compiler; a folder that is not there without it."""
    try:
        import cellblock_typescript
    except ImportError:
        return Path(__file__).parent / "no_compiler"
    return cellblock_typescript.FOLDER


FOLDER: Final = _folder()
"""Holds the compiler, the declarations of the language, and `BUILD.json`."""

WORKSPACE: Final = Path(__file__).parent / "workspace"
"""Holds one project for JavaScript and one for TypeScript; the script and the declarations never are on disk."""

BINARY: Final = "tsc"

MEMORY_BOUND_BYTES: Final = 1024 * 1024 * 1024
"""Sets RLIMIT_DATA. Go's heap grows in arenas of 64 MiB; a usual check has 40 MiB resident."""

SOFT_MEMORY_BYTES: Final = 384 * 1024 * 1024
"""Says where Go's collector begins to work hard (GOMEMLIMIT), well below the kernel's bound."""

CPU_BOUND_SECONDS: Final = 600
"""Sets RLIMIT_CPU of one process, which is replaced long before (`checker.MAX_CHECKS`): a backstop behind the timer."""

FIX: Final = "Install cellblock-typescript again, in the version that cellblock needs."

_INSIDE: Final = "/typescript"
_WORKSPACE_INSIDE: Final = "/workspace"


def version(folder: Path = FOLDER) -> str | None:
    """Gives the version of the compiler that `folder` holds, or None when there is none."""
    try:
        info: object = json.loads((folder / "BUILD.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(info.get("typescript")) if os.access(folder / BINARY, os.X_OK) and is_object(info) else None


def why_absent(folder: Path = FOLDER) -> str | None:
    """Says why there is no compiler, or None when there is one."""
    if version(folder) is not None:
        return None
    return f"there is no TypeScript compiler for {sys.platform} on {platform.machine()}"


def can_wrap() -> bool:
    """Says whether there is a bubblewrap to try."""
    return sys.platform.startswith("linux") and bubblewrap.find_binary() is not None


def _order(*, wrapped: bool, folder: Path) -> SpawnRequest:
    """Says how to start the compiler as a language server on its standard streams; the descriptors must be closed here
    after the spawn. Raises OSError."""
    env = {"GOMEMLIMIT": str(SOFT_MEMORY_BYTES), "GOTRACEBACK": "none"}
    if not wrapped:
        argv = lifetime.dying_with_this([str(folder / BINARY), "--lsp", "--stdio"])
        return SpawnRequest(argv, env, preexec=lifetime.child_setup())
    binary = bubblewrap.find_binary()
    if binary is None:
        raise FileNotFoundError("there is no bwrap")
    inside = f"{_INSIDE}/{BINARY}"
    arguments = [
        *bubblewrap.NAMESPACES,
        *("--ro-bind", str(folder), _INSIDE, "--ro-bind", str(WORKSPACE), _WORKSPACE_INSIDE),
        # The compiler asks for its own path; there is no /proc.
        *("--symlink", inside, "/proc/self/exe"),
        *("--remount-ro", "/", inside, "--lsp", "--stdio"),
    ]
    program = syscall_lists.filter_program("tsc", version(folder))
    fds = () if program is None else (bubblewrap.open_filter(program),)
    argv = [binary, *(part for fd in fds for part in ("--seccomp", str(fd))), *arguments]
    return SpawnRequest(argv, env, fds)


def limit(pid: int) -> None:
    """Puts the kernel's bounds on a live compiler: memory, CPU, files, core dumps. No-op where there is no prlimit."""
    if not sys.platform.startswith("linux"):
        return
    confinement.limit_at_boot(pid)
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (MEMORY_BOUND_BYTES, MEMORY_BOUND_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CPU, (CPU_BOUND_SECONDS, CPU_BOUND_SECONDS + 1))
    except ProcessLookupError:
        return


logger = logging.getLogger("cellblock.typecheck")

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""Bounds what may wait for a compiler that does not read: the largest script and declarations fit several times."""

EXIT_BOUND_SECONDS: Final = 5.0
"""Bounds the time from SIGKILL to the reaped process; it takes milliseconds."""


MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Bounds a message of the compiler: a script within the checker's cap that has an error in every token gives about 6
MB."""

MAX_HEADER_BYTES: Final = 256
"""Bounds a message's header, which is one `Content-Length: N` line, and perhaps a `Content-Type`."""

_MAX_MEMBERS: Final = 500
_FIELD_KINDS: Final = (5, 10)
"""Holds `Field` and `Property` of the protocol's CompletionItemKind; data, not methods."""

_END: Final = b"\r\n\r\n"
_HEADER: Final = re.compile(
    rb"(?>(?:(?!content-length:)[^\r\n]++\r\n)*)content-length:[ \t]*+(\d{1,10})[ \t]*+\r\n(?:[^\r\n]++\r\n)*+\r\n",
    re.I,
)


class SessionLost(Exception):
    """Tells that the compiler has died, was killed, or broke the protocol; the text says which."""


def encode(message: dict[str, Any]) -> bytes:
    """Writes one message with its header. `jsonrpc` is added. Text is escaped to ASCII, so any string can be
    sent."""
    body = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()
    return b"Content-Length: %d%s%s" % (len(body), _END, body)


class Decoder:
    """Turns bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Gives the messages that `data` completes.

        Raises:
            SessionLost: A header or body is malformed or too long; nothing more can be read.
        """
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while (header := _HEADER.match(self._buffer, 0, MAX_HEADER_BYTES)) is not None:
            end = header.end() + int(header[1])
            if int(header[1]) > MAX_MESSAGE_BYTES:
                raise SessionLost(f"a message has {int(header[1])} bytes, over {MAX_MESSAGE_BYTES}")
            if len(self._buffer) < end:
                return messages
            body = bytes(self._buffer[header.end() : end])
            del self._buffer[:end]
            try:
                message = _read(body)
            except (ValueError, RecursionError) as error:
                raise SessionLost(f"a message is no JSON: {error}") from None
            if not is_object(message):
                raise SessionLost("a message is no object")
            messages.append(message)
        if len(self._buffer) >= MAX_HEADER_BYTES or _END in self._buffer:
            raise SessionLost("a header has no length, or no end")
        return messages


def _read(body: bytes) -> object:
    """Reads a message; of one that is too long for the loop, the beginning. Raises ValueError, RecursionError.

    Only a report is so long, as it follows the script; what comes first in it is as in the script, and more than the
    complaints that are looked at.
    """
    if len(body) <= LIGHT_BYTES:
        return json.loads(body)
    message = from_json(body[:LIGHT_BYTES].decode("utf-8", "ignore"), allow_partial=True)
    report: object = message.get("result") if is_object(message) else None
    items = report.get("items") if is_object(report) else None
    if is_array(items) and items:
        # It may lack its end.
        items.pop()
    return message


class CompilerSession:
    """Runs a language server. Implements `ProcessEvents`.

    Args:
        wrapped: Whether bubblewrap is around it.
        folder: Where the build has put it.

    Attributes:
        checks: Counts the scripts that it was given.
        lost: Why nothing more can be asked; None while it runs.

    Raises:
        OSError: It cannot be spawned.
    """

    def __init__(self, *, wrapped: bool, folder: Path) -> None:
        self._wrapped = wrapped
        self.workspace_uri = f"file://{_WORKSPACE_INSIDE}" if wrapped else WORKSPACE.as_uri()
        self._decoder = Decoder()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._open: dict[str, str] = {}
        self.checks = 0
        self.lost: str | None = None
        self._exited = asyncio.Event()
        order = _order(wrapped=wrapped, folder=folder)
        try:
            self._process = DenoProcess(Launcher(alone=True), order, self, max_unsent_bytes=MAX_UNSENT_BYTES)
        finally:
            for fd in order.fds:
                os.close(fd)

    @property
    def pid(self) -> int:
        """Gives the process id of the child; under bubblewrap, of the process that watches over the compiler."""
        return self._process.pid

    async def initialize(self) -> None:
        """Makes the protocol's handshake, and sets the kernel's bounds, before any text of others is sent.
        Raises SessionLost."""
        capabilities: dict[str, Any] = {
            "textDocument": {"diagnostic": {"relatedInformationSupport": False}},
            "workspace": {"configuration": False},
        }
        params = {"processId": None, "rootUri": self.workspace_uri, "capabilities": capabilities}
        await self.request("initialize", params)
        worker = bubblewrap.inner_pid(self.pid) if self._wrapped else self.pid
        if worker is None:
            self.kill("it has no process to put bounds on")
            raise SessionLost(self.lost)
        limit(worker)
        self.notify("initialized", {})

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Sends a request to the compiler, and waits for the answer without a bound of its own. Raises SessionLost."""
        if self.lost is not None:
            raise SessionLost(self.lost)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "method": method, "params": params})
            return await answer
        finally:
            self._waiting.pop(number, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification to the compiler, which has no answer. Nothing happens when it is lost."""
        self._send({"method": method, "params": params})

    async def diagnostics(self, code: str, declarations: str, typescript: bool) -> list[Any]:
        """Gives the compiler's report on a script. Raises SessionLost."""
        self.checks += 1
        project = _project(typescript)
        self._put(f"{project}/types.d.ts", declarations)
        script = f"{project}/script.{project}"
        self._put(script, code)
        report: object = await self.request(
            "textDocument/diagnostic", {"textDocument": {"uri": self._uri(script)}}
        )
        items = report.get("items") if is_object(report) else None
        if not is_array(items):
            raise SessionLost("it gave no diagnostic report")
        return items

    async def names_at(self, position: tuple[int, int], typescript: bool) -> list[str]:
        """Gives the names of what could stand at a place, data before methods."""
        answer = await self._ask_at("textDocument/completion", position, typescript)
        items = answer.get("items") if is_object(answer) else None
        known = items[:_MAX_MEMBERS] if is_array(items) else []
        known.sort(key=lambda item: item.get("kind") not in _FIELD_KINDS)
        labels: list[object] = [item.get("label") for item in known]
        return [label.removesuffix("?")[:100] for label in labels if isinstance(label, str)]

    async def described_at(self, position: tuple[int, int], typescript: bool) -> str:
        """Gives what the compiler says of the name at a place, with its type."""
        return str(await self._ask_at("textDocument/hover", position, typescript))

    def kill(self, why: str) -> None:
        """Sends SIGKILL; whoever waits for an answer gets SessionLost. Harmless when it is gone."""
        self._lose(why)
        self._process.kill()

    async def killed(self, why: str) -> None:
        """Kills, and waits until the process is reaped, within `EXIT_BOUND_SECONDS`."""
        self.kill(why)
        try:
            await asyncio.wait_for(self._exited.wait(), EXIT_BOUND_SECONDS)
        except TimeoutError:
            logger.warning("the TypeScript compiler %d is not reaped", self.pid)

    # ---- what the process tells (ProcessEvents) ------------------------------------------------------

    def on_output(self, data: bytes) -> None:
        """Takes bytes of the compiler's stdout."""
        if self.lost is not None:
            return
        try:
            for message in self._decoder.feed(data):
                self._hear(message)
        except SessionLost as error:
            self.kill(str(error))

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        """Notes that the compiler is reaped."""
        self._exited.set()
        if self.lost is None:
            said = self._process.stderr_tail.decode("utf-8", "replace").strip()[:300]
            logger.info("the TypeScript compiler ended with code %d: %s", returncode, said)
            self._lose(f"it ended with code {returncode}")

    # ---- inside --------------------------------------------------------------------------------------

    async def _ask_at(self, method: str, position: tuple[int, int], typescript: bool) -> object:
        project, (line, character) = _project(typescript), position
        document = {"uri": self._uri(f"{project}/script.{project}")}
        params = {"textDocument": document, "position": {"line": line, "character": character}}
        return await self.request(method, params)

    def _put(self, name: str, text: str) -> None:
        """Opens a document, or replaces its text when that is another one."""
        held = self._open.get(name)
        if held == text:
            return
        self._open[name] = text
        document = {"uri": self._uri(name), "version": next(self._numbers)}
        if held is None:
            language = "javascript" if name.endswith(".js") else "typescript"
            opened = {**document, "languageId": language, "text": text}
            self.notify("textDocument/didOpen", {"textDocument": opened})
        else:
            changes = {"textDocument": document, "contentChanges": [{"text": text}]}
            self.notify("textDocument/didChange", changes)

    def _uri(self, name: str) -> str:
        return f"{self.workspace_uri}/{name}"

    def _send(self, message: dict[str, Any]) -> None:
        if self.lost is None and not self._process.write(encode(message)):
            self.kill("it does not read")

    def _hear(self, message: dict[str, Any]) -> None:
        number: object = message.get("id")
        if "method" in message:
            if number is not None:
                # Everything that it asks is optional: registrations and settings.
                params: object = message.get("params")
                items = params.get("items") if is_object(params) else None
                self._send({"id": number, "result": [None] * len(items) if is_array(items) else None})
            return
        answer = self._waiting.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        error: object = message.get("error")
        if error is not None:
            answer.set_exception(SessionLost(f"it answered with an error: {str(error)[:300]}"))
        else:
            answer.set_result(message.get("result"))

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SessionLost(self.lost))


def _project(typescript: bool) -> str:
    return "ts" if typescript else "js"
