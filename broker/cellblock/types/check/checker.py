"""The checker is the one way to the compiler: it checks scripts one after another in a process that is kept warm.

The process is started when it is first wanted, killed when a check takes longer than its bound, replaced when it has
died or has served `MAX_CHECKS`, and stopped when nothing was asked for `IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cellblock.base.json import is_object
from cellblock.base.settings.sections import IsolationMode
from cellblock.base.tasks import TaskSet, end_tasks
from cellblock.tools.catalog.model import Catalog, OutputsOf, ToolOutput, stated_of
from cellblock.types.check import compiler
from cellblock.types.check.ambient import NOTHING, Declarations, Got, TooLarge
from cellblock.types.check.compiler import CompilerSession, SessionLost
from cellblock.types.check.faults import Checked, Script, TypeFault, find_faults
from cellblock.types.check.parsed import Shown, TextKind, Tool
from cellblock.types.check.verdict import judge

logger = logging.getLogger("cellblock.typecheck")

MAX_SCRIPT_BYTES: Final = 256 * 1024
"""Bounds the scripts that are checked: with a larger one, finding which complaints count would take longer than a run
may wait."""

START_BOUND_SECONDS: Final = 10.0
"""Bounds the time from spawning the compiler to its first answer; it takes 50 ms on a quiet machine."""

IDLE_SECONDS: Final = 10.0
"""Passes until a compiler that nobody uses is ended: a warm one holds about 30 MiB, and starting another takes 20 ms of
CPU beside a run."""

MAX_CHECKS: Final = 1_000
"""Bounds the checks of one process: whatever it keeps of scripts that are gone goes with it."""


__all__ = ["Checked", "TypeChecker", "TypeFault"]


class TypeChecker:
    """Owns at most one compiler.

    Args:
        isolation: Whether bubblewrap must, may or must not be around it.
        folder: Where the build has put the compiler.
        outputs: What a principal knows of the tools' outputs; its scripts are checked against it.
        revision: Another number whenever an answer of `outputs` would make other types.

    Attributes:
        declarations: What scripts are checked against.
    """

    def __init__(
        self,
        isolation: IsolationMode = "auto",
        *,
        folder: Path = compiler.FOLDER,
        outputs: OutputsOf = stated_of,
        revision: Callable[[], int] = lambda: 0,
    ) -> None:
        self._isolation = isolation
        self._folder = folder
        self.declarations = Declarations(outputs, revision)
        self._turn = asyncio.Lock()
        self._session: CompilerSession | None = None
        self._starting: asyncio.Task[CompilerSession] | None = None
        self._wrapping: bool | None = False if isolation == "off" else None
        self._idle: asyncio.TimerHandle | None = None
        self._dying = TaskSet()
        self._closed = False

    @property
    def unavailable(self) -> str | None:
        """Says why no script can be checked here, or None."""
        absent = compiler.why_absent(self._folder)
        if absent is None and self._isolation == "required" and not compiler.can_wrap():
            return "isolation is required, and there is no bubblewrap for the compiler"
        return absent

    def warm_up(self) -> None:
        """Starts the compiler in the background. Needs no answer: a check starts what is not there."""
        lost = self._session is None or self._session.lost is not None
        if lost and self._starting is None and not self._closed and self.unavailable is None:
            self._starting = asyncio.create_task(self._start(), name="typecheck start")
            self._starting.add_done_callback(self._started)

    async def check(
        self,
        code: str,
        *,
        typescript: bool,
        catalog: Catalog,
        imports: Iterable[str],
        bound_seconds: float,
        wait_for_start: bool = False,
        closed: bool = False,
        got: Got = NOTHING,
        principal: str = "",
    ) -> Checked:
        """Checks one script. Never raises for what the script or a server says, nor for what the machine lacks.

        Args:
            code: The agent's source.
            typescript: Whether it is TypeScript and no JavaScript.
            catalog: What is known of tools.
            imports: Specifiers that the script imports.
            bound_seconds: The longest that a caller wants to wait; a compiler at work on this script is killed then.
            wait_for_start: Whether a cold start is waited for on top of that, within `START_BOUND_SECONDS`.
            closed: Whether what is not declared of an object counts, though its schema is open.
            got: What a run of it has got from tools, where that is not what is known of them.
            principal: Whose script it is.
        """
        absent = self.unavailable
        if absent is not None or self._closed:
            return Checked(gave_up=f"{absent or 'Cellblock is closing'}")
        text = code.encode("utf-8", "replace").decode()
        if len(text.encode()) > MAX_SCRIPT_BYTES:
            return Checked(gave_up=f"the script is over {MAX_SCRIPT_BYTES} bytes")
        try:
            if wait_for_start:
                async with asyncio.timeout(START_BOUND_SECONDS):
                    await self._warm()
            async with asyncio.timeout(bound_seconds):
                async with self._turn:
                    return await self._checked(
                        Script(text, typescript, catalog, frozenset(imports), closed, got, principal)
                    )
        except TimeoutError:
            return Checked(gave_up=f"it took over {bound_seconds:g} s")
        except SessionLost as error:
            return Checked(gave_up=f"the compiler was lost: {error}")
        except TooLarge as error:
            return Checked(gave_up=str(error))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # Parsing beyond its bound, or a report of another shape than the protocol's.
            logger.info("a script could not be type-checked: %r", error)
            return Checked(gave_up="the compiler's report cannot be read")
        except (OSError, RuntimeError) as error:
            # No descriptor, process or thread is left: the run that this is for has its response all the same.
            logger.warning("a script could not be type-checked: %r", error)
            return Checked(gave_up=f"this machine cannot run the compiler now: {error}")

    async def close(self) -> None:
        """Kills the compiler and waits for its end, within bounds."""
        self._closed = True
        self._set_idle_timer(None)
        if self._starting is not None:
            await end_tasks(self._starting)
            await asyncio.sleep(0)  # for its callback
        if self._session is not None:
            self._retire(self._session, "Cellblock is closing")
        await self._dying.ended()

    # ---- inside: one check ---------------------------------------------------------------------------

    async def _checked(self, script: Script) -> Checked:
        self.warm_up()
        shown, declarations = await asyncio.to_thread(self._prepared, script)
        warm = await self._warm()
        self._set_idle_timer(None)
        try:
            report = await warm.diagnostics(shown.text, declarations, script.typescript)
            counted = await asyncio.to_thread(
                judge,
                report,
                shown,
                declarations,
                typescript=script.typescript,
                texts=self._texts(script),
            )
            observed = (
                self.declarations.observed(script.catalog, script.names, script.principal)
                if any(complaint.receiver for complaint in counted)
                else {}
            )
            faults = await find_faults(counted, script, declarations, observed, warm)
            if warm.checks >= MAX_CHECKS:
                self._retire(warm, "it has served long enough")
            return Checked(faults)
        except BaseException:
            # Cancelled, or lost: what it is busy with must not be the next one's.
            self._retire(warm, "a check took too long")
            raise
        finally:
            self._set_idle_timer(IDLE_SECONDS)

    def _prepared(self, script: Script) -> tuple[Shown, str]:
        """Gives what the compiler is shown of a script, and what it is checked against."""
        return Shown(script.code, script.typescript, changed=script.closed), self.declarations.text(
            script.catalog,
            script.names,
            script.code,
            closed=script.closed,
            got=script.got,
            principal=script.principal,
        )

    def _texts(self, script: Script) -> dict[Tool, TextKind]:
        """Gives the tools that the script names whose answer is a text."""
        known, outputs = self.declarations, self.declarations.outputs(script.principal)
        found: dict[Tool, TextKind] = {}
        for server, tool in known.named(script.catalog, script.names, script.code):
            output = script.got.get((server.server_id, tool.tool_name)) or outputs(server, tool)
            kind = None if output is None else _kind(output)
            # That somebody wants the lines of another text is likely, not certain.
            if kind == "json" or (kind is not None and script.closed):
                found[server.server_id, tool.export_name] = kind
        return found

    def _set_idle_timer(self, seconds: float | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if seconds is not None and self._session is not None:
            self._idle = asyncio.get_running_loop().call_later(seconds, self._stop_idle)

    def _stop_idle(self) -> None:
        if self._session is not None and not self._turn.locked():
            self._retire(self._session, "it was idle")

    def _retire(self, warm: CompilerSession, why: str) -> None:
        """Kills a compiler that runs; the next check starts another."""
        if self._session is warm:
            self._session = None
        self._dying.start(warm.killed(why), name="typecheck stop")
        # At once, and not when the task gets its turn: no one may ask it any more.
        warm.kill(why)

    # ---- inside: the compiler's life -----------------------------------------------------------------

    async def _warm(self) -> CompilerSession:
        if self._session is not None and (why := self._session.lost) is not None:
            # Lost is not yet reaped: closing must wait for that, and knows only of what is retired.
            self._retire(self._session, why)
        if self._session is not None:
            return self._session
        self.warm_up()
        if self._starting is None:
            raise SessionLost("there is none")
        # A caller that gives up does not stop the start: the next one finds it warm.
        return await asyncio.shield(self._starting)

    def _started(self, task: asyncio.Task[CompilerSession]) -> None:
        self._starting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.info("the TypeScript compiler did not start: %s", error)
        else:
            if self._session is not None:  # The one that this one replaces.
                self._retire(self._session, "it was lost")
            self._session = task.result()
            self._set_idle_timer(IDLE_SECONDS)

    async def _start(self) -> CompilerSession:
        if self._wrapping is not False and compiler.can_wrap():
            try:
                warm = await self._started_session(wrapped=True)
            except SessionLost:
                # Where bubblewrap has worked once, a failure is none of its own, and no reason to go without.
                if self._isolation == "required" or self._wrapping:
                    raise
            else:
                self._wrapping = True
                return warm
        warm = await self._started_session(wrapped=False)
        if self._wrapping is None:
            logger.info("the TypeScript compiler runs without bubblewrap")
            self._wrapping = False
        return warm

    async def _started_session(self, *, wrapped: bool) -> CompilerSession:
        try:
            session = CompilerSession(wrapped=wrapped, folder=self._folder)
        except OSError as error:
            raise SessionLost(f"it cannot be started: {error}") from None
        try:
            async with asyncio.timeout(START_BOUND_SECONDS):
                await session.initialize()
                declarations = await asyncio.to_thread(self.declarations.text, Catalog(), (), "")
                # The first check reads the declarations of the language: 40 ms that no script should wait for.
                await session.diagnostics("", declarations, False)
            return session
        except BaseException as error:
            await asyncio.shield(session.killed("it did not start"))
            if isinstance(error, TimeoutError):
                raise SessionLost(f"it did not start within {START_BOUND_SECONDS:g} s") from None
            raise


def _kind(output: ToolOutput) -> TextKind | None:
    if output.document is not None:
        return "json"
    if output.text:
        return "plain" if output.schema is None and not output.result else None
    return "boxed" if _holds_one_text(output.schema) else None


def _holds_one_text(schema: object) -> bool:
    properties: object = schema.get("properties") if is_object(schema) else None
    declared = list(properties.values()) if is_object(properties) else []
    return len(declared) == 1 and is_object(declared[0]) and declared[0].get("type") == "string"
