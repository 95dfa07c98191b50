"""The session of one server: its task drives the state machine of `lifecycle`, and serves calls while it is ready."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from cellblock.base.budget import Budget
from cellblock.base.callbacks import tell
from cellblock.base.errors import Certainty, NeededLogin, ToolCallError
from cellblock.base.json import is_object
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import at_most as cut_off, end_tasks
from cellblock.base.visible import visible
from cellblock.tools.catalog.model import SUBSCRIBE, RequestEntry
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.connecting import Link, Upstream
from cellblock.tools.upstream.dispatcher import Session
from cellblock.tools.upstream.failures import CLOSED_BY_SERVER, ConnectionLost, HttpRefused, SessionForgotten
from cellblock.tools.upstream.input_rounds import ask, call_tool, read_resource
from cellblock.tools.upstream.installs import NO_PACKAGE
from cellblock.tools.upstream.lifecycle import FIRST_TRY, NO_ROOM, Lifecycle, State
from cellblock.tools.upstream.listing import ServerFacts, ToolList
from cellblock.tools.upstream.outstanding import Outstanding, Routing
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.requester import NOBODY, CallOrigin
from cellblock.tools.upstream.resources import Resources
from cellblock.tools.upstream.server_log import ServerLog, log_line, upstream_log, wanted_level
from cellblock.tools.upstream.wire.messages import SMALL_BYTES
from cellblock.tools.upstream.wire.results import ToolResult

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login

logger = logging.getLogger("cellblock.tools.upstream")

POLL_SECONDS: Final = 1.0
"""Sets how soon a session sees that somebody has logged in or out, or that nobody has called it for long."""

LOGIN_ENDED: Final = "its login has ended, or is another one now"

CLOSE_BOUND_SECONDS: Final = 8.0
"""Bounds the time from the order to close to giving up; the SDK allows a process 6 s to exit and be killed."""

LEFT_SHARE: Final = 0.05
"""Sets the share of a call's time that must be left when its turn comes: sent at the last moment, it can only time out,
and may have run."""

MAX_SAID_CHARS: Final = 64 * 1024
"""Bounds what is redacted, and kept, of an error result that is large."""

Send = Callable[[Session, Outstanding], Awaitable[Any]]
"""Sends a call and returns its result, as `input_rounds.call_tool`."""


class UpstreamSession:
    """Starts with `start`; `on_change` is called whenever state, reason or facts have changed.

    Args:
        name: The server's name in the configuration.
        config: Its entry there.
        settings: Bounds.
        max_message_bytes: Caps one message of the server.
        log_dir: Where the stderr of a started process goes, as `upstream-NAME.log`.
        on_change: Called from the event loop.
        budget: Of bytes that large messages of servers have in memory; None: of its own.
        login: What is known of its OAuth login; None for a server that cannot have one.
        prepare: Waited for before facts are taken over; gives those that are.
        followed: The URIs whose updates are wanted; a later session of the server is given the same set.
        on_update: Called with the URI when one of these has changed.
        rests_after: Seconds without a call after which it rests; None: it is kept connected, and connected again.
        has_room: Says whether it may connect now.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        settings: ServerBounds,
        *,
        max_message_bytes: int,
        log_dir: Path,
        on_change: Callable[[], None],
        budget: Budget | None = None,
        login: Login | None = None,
        prepare: Callable[[ServerFacts], Awaitable[ServerFacts]] | None = None,
        followed: set[str] | None = None,
        on_update: Callable[[str], object] | None = None,
        rests_after: float | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self.life = Lifecycle()
        redactor = login.redactor if login is not None else Redactor(config)
        holding = Holding(budget or Budget.of_servers(), name)
        log_file = upstream_log(log_dir, name)
        server = Upstream(name, config, settings, max_message_bytes, log_file, redactor, login, holding)
        self._server, self._on_change = server, on_change
        self.tools = ToolList(server, prepare, on_change)
        self.resources = Resources(server, on_change, set() if followed is None else followed, on_update)
        self._routing = Routing(name, redactor)
        self._turns = None if settings.max_calls is None else asyncio.Semaphore(settings.max_calls)
        self._server_log = ServerLog(name, redactor)
        self._link = self._new_link()
        self._shut_out_with = 0
        self._rests_after, self._at_work, self._used_at = rests_after, 0, 0.0
        self._has_room = has_room
        self._task: asyncio.Task[None] | None = None
        self._wanted, self._moved = asyncio.Event(), asyncio.Event()
        self._began = 0.0
        self._tried_with = ""

    def start(self, since: float | None = None, *, resting: bool = False) -> None:
        """Starts the task that owns the session; `settled` counts from `since`, on the loop's clock, or from now. One
        that starts `resting` connects when it is needed first."""
        self._began = self._used_at = asyncio.get_running_loop().time() if since is None else since
        if resting:
            self.life.rest()
        self._task = asyncio.create_task(self._own(), name=f"upstream {self._server.name}")

    async def close(self) -> None:
        """Ends the session and its process within `CLOSE_BOUND_SECONDS`."""
        # The state has the order, too: a connection that fails in that moment turns the cancellation into its error.
        self.life.closed()
        self.resources.close()
        self._link.ended.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_BOUND_SECONDS)
        if self._server.login is not None:
            await self._server.login.close(CLOSE_BOUND_SECONDS)
        self._told()

    @property
    def idle_since(self) -> float | None:
        """Says since when, on the loop's clock, a connection has had no call; None for one that has, or is none."""
        return None if self._at_work or self.life.state is not State.READY else self._used_at

    @property
    def is_busy(self) -> bool:
        """Says whether it has a call, or is about to have one."""
        return self._at_work > 0 or self.life.state is State.CONNECTING

    def rest(self) -> None:
        """Ends the connection, whatever it does, until somebody needs the server."""
        if self.life.state is State.READY:
            self.life.rest()
            self._link.ended.set()

    def wake(self) -> int | None:
        """Begins an attempt to connect, where there is no connection, and waits for nothing. Returns what
        `Lifecycle.wanted` does; None, too, where there is no room for one more connection."""
        attempt = self.life.wanted(asyncio.get_running_loop().time())
        begins = self.life.state in (State.WAITING, State.RESTING) and not self._wanted.is_set()
        if attempt is None or not begins:
            return attempt
        if not self._has_room():
            self.life.reason = NO_ROOM
            self._told()
            return None
        self._wanted.set()
        return attempt

    @property
    def has_login(self) -> bool:
        """Says whether there is a login, where one is needed."""
        return self._server.login is None or self._server.login.stamp() is not None

    @property
    def lacks_login(self) -> bool:
        """Says whether only a login helps: there is none, or the server has refused it."""
        return self._shut_out_with > 0 or not self.has_login

    @property
    def remedy(self) -> tuple[str | None, str] | None:
        """Says what is wrong with refused credentials, as far as that is known, and what to do."""
        return failures.remedy(self._shut_out_with, self._server.trouble(), self._server.name)

    async def settled(self, bound: float, *, at_most: float) -> None:
        """Waits for the end of the first attempt to connect.

        Args:
            bound: Seconds from the start of the session, however late this is called.
            at_most: Seconds from now.
        """
        async with cut_off(min(self._began + bound - asyncio.get_running_loop().time(), at_most)):
            while self.life.is_first:
                await self._moved.wait()

    @property
    def installing(self) -> bool:
        """Says whether the server's program installs the server, as far as can be seen."""
        install = self._link.install
        return self._server.package is not None and (install is None or install.running)

    @property
    def needed_login(self) -> NeededLogin | None:
        """Gives the login that a person can give; None where nobody can."""
        login = self._server.login
        if login is None or not login.is_given:
            return None
        # Who has logged in during an attempt, or a moment after, has not been refused.
        refused = self._tried_with if self._shut_out_with else None

        async def mark() -> str:
            return await login.mark() if refused is None else refused

        async def is_there(before: str) -> bool:
            if await login.mark() in ("", before):
                return False
            self.wake()
            return self.life.state is State.READY

        return NeededLogin(self._server.name, login.page, mark, is_there)

    async def call(
        self,
        tool: str,
        value: Any,
        *,
        call_bound: float,
        origin: CallOrigin = NOBODY,
        request: RequestEntry | None = None,
    ) -> Any:
        """Calls a tool, or sends another request.

        Args:
            tool: Canonical tool name, or the method of the request.
            value: The input, JSON data; an object unless the tool's schema has another root.
            call_bound: Longest time in seconds, without that in which the server waits for an answer of the client;
                past it the server is sent a cancel notification.
            origin: Whom the server may ask meanwhile.
            request: The request that it is; None for a tool.

        Returns:
            The `ToolResult`, or the result of the request.

        Raises:
            ToolCallError: Not connected, refused, timed out, or the answer was no result. Not for `isError`
                results: those are returned.
        """
        send = call_tool if request is None else partial(self._ask, request)
        self._at_work += 1
        try:
            return await self._at_its_turn(send, tool, value, call_bound, origin)
        finally:
            self._at_work -= 1
            self._used_at = asyncio.get_running_loop().time()

    async def _at_its_turn(
        self, send: Send, tool: str, value: Any, call_bound: float, origin: CallOrigin
    ) -> Any:
        if self._turns is None:
            return await self._in_turn(send, tool, value, call_bound, call_bound, origin)
        server, loop = self._server.name, asyncio.get_running_loop()
        deadline = loop.time() + call_bound
        try:
            async with asyncio.timeout_at(deadline - call_bound * LEFT_SHARE):
                await self._turns.acquire()
        except TimeoutError:
            raise ToolCallError(
                f"{server} has had its most calls at once for {call_bound:g} s; {tool} was not called.",
                hint=f"Call it less often at once, or raise upstream.max_calls for {server}.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        try:
            left = max(0.0, deadline - loop.time())
            return await self._in_turn(send, tool, value, left, call_bound, origin)
        finally:
            self._turns.release()

    async def tried(self) -> None:
        """Waits for the end of the attempt to connect that is under way, or of the next, which begins now; bound it.
        One that failed a moment ago is not repeated."""
        attempt = self.wake()
        while attempt is not None and not self.life.is_over(attempt):
            await self._moved.wait()

    # ---- calls ---------------------------------------------------------------------------------------

    async def _in_turn(
        self, send: Send, name: str, value: Any, left: float, bound: float, origin: CallOrigin
    ) -> Any:
        """Makes a call, once more where it certainly was not begun; `left` is what waiting for its turn has left of
        `bound`."""
        clock, link = asyncio.timeout(left), None

        async def sent(link: Link) -> Any:
            assert link.session is not None
            with self._routing.call(name, value, clock, origin) as call:
                return await send(link.session, call)

        try:
            async with clock:
                link = await self._ready(left * (1 - LEFT_SHARE))
                try:
                    result = await sent(link)
                except MCPError as error:
                    if not failures.not_begun(error):
                        raise
                    self._lose(link)
                    link = await self._ready(left * (1 - LEFT_SHARE))
                    result = await sent(link)
        except MCPError as error:
            raise self._failure(link, name, error) from None
        except TimeoutError:
            noise = link.noise() if link is not None else ""
            raise failures.timed_out(self._server.name, name, bound, noise) from None
        except ValidationError:
            raise failures.no_result(self._server.name, name) from None
        except (UnicodeEncodeError, ValueError, RecursionError) as error:
            # The request could not be written: text that is no UTF-8, or too deep.
            raise ToolCallError(
                f"The input of {name} cannot be sent: {type(error).__name__}.",
                hint="Pass plain, shallow JSON data.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        self.life.served()
        return self._redacted(result) if isinstance(result, ToolResult) and result.is_error else result

    def _redacted(self, result: ToolResult) -> ToolResult:
        """Returns an error result in which the server quotes none of its own secrets; of a large one what it says."""
        if len(result.body) > SMALL_BYTES:
            said = self._server.redactor.text(result.said()[:MAX_SAID_CHARS])
            return ToolResult.of({"content": [{"type": "text", "text": said}], "isError": True})
        plain = result.plain()
        safe = self._server.redactor.tree(plain)
        return result if safe == plain else ToolResult.of(safe)

    def _failure(self, link: Link | None, name: str, error: MCPError) -> ToolCallError:
        server, redactor = self._server.name, self._server.redactor
        if isinstance(error, SessionForgotten | ConnectionLost) and link is not None:
            # Every later call would be refused too: a new session is needed.
            if isinstance(error, SessionForgotten) or link.ended.is_set() or not error.sent:
                self._lose(link)
            if failures.not_begun(error):
                return failures.forgotten(server, name)
            return failures.closed(server, name, link.why_lost(error))
        if isinstance(error, HttpRefused):
            login = self._server.trouble()
            return failures.refused(server, name, error, login, redactor, self.needed_login)
        failure = failures.answered(server, name, error, redactor)
        failure.rpc_code = error.code
        return failure

    async def _ready(self, bound: float) -> Link:
        """Returns the connection; where it is lost, waits for an attempt to connect, which this starts at once.

        Raises:
            ToolCallError: There is none.
        """
        if self.life.state is not State.READY:
            async with cut_off(bound):
                await self.tried()
        if self.life.state is not State.READY:
            raise failures.not_connected(self._server.name, self.life.reason, self.remedy, self.needed_login)
        return self._link

    def _lose(self, link: Link) -> None:
        """Offers a connection that is known to be dead to no further call: what was never sent must be told as that."""
        if self.life.state is State.READY and self._link is link:
            self.life.lost(CLOSED_BY_SERVER)
            self._told()
            link.ended.set()

    # ---- the owning task -----------------------------------------------------------------------------

    async def _own(self) -> None:
        while True:
            if self.life.state is State.RESTING:
                self._told()
                await self._wanted.wait()
            self.life.begin()
            self._wanted.clear()
            self._told()
            link = self._link = self._new_link()
            login, at_question, is_unanswered = self._server.login, False, False
            self._tried_with = "" if login is None else await login.mark()
            try:
                await self._connect_and_serve(link)
                why = link.why_ended()
            except Exception as error:  # noqa: BLE001 - any failure of a transport means: report and retry
                first = failures.first_of(error)
                at_question = isinstance(first, ConnectionLost) and first.at_question
                is_unanswered = isinstance(first, ToolCallError) and link.session is None
                if isinstance(first, HttpRefused):
                    self._shut_out_with = first.status if first.status in (401, 403) else 0
                why = link.why_unconnected(first)
            if self.life.state is State.CLOSED:
                return
            if self.life.state is State.RESTING:
                continue
            why = visible(why, instead=" ")
            before = self.life.reason
            is_hopeless = re.search(NO_PACKAGE, why) is not None
            pause = self.life.ended(
                asyncio.get_running_loop().time(),
                why,
                at_question=at_question and not is_hopeless,
                is_unanswered=is_unanswered,
                is_hopeless=is_hopeless,
            )
            if not pause:
                continue
            logger.warning("upstream %s: %s", self._server.name, why)
            if why != before:
                log_line(self._server.log_file, f"cellblock: not connected: {why}")
            if self._rests_after is not None and self.lacks_login:
                # Nothing but a login helps, and whoever needs the server is told so by its call.
                self.life.rest(why if self._shut_out_with else "")
                continue
            self._told()
            await self._pause(pause if self._rests_after is None else inf)

    async def _pause(self, seconds: float) -> None:
        """Waits before the next attempt, until it is wanted, or somebody has logged in or out."""
        login = self._server.login
        look, before = (inf, None) if login is None else (POLL_SECONDS, login.stamp())
        async with cut_off(seconds):
            while not self._wanted.is_set() and (login is None or login.stamp() == before):
                async with cut_off(look):
                    await self._wanted.wait()

    async def _connect_and_serve(self, link: Link) -> None:
        async with link.opened(self.tools.first, handshake=self.life.handshake) as session:
            self._shut_out_with = 0
            # Whoever has it connected is about to call.
            self._used_at = asyncio.get_running_loop().time()
            self.life.connected(self._used_at)
            self._told()
            await self._serve(session)
            # Closing takes a while, in which no script should be offered what cannot be called.
            if self.life.state is State.READY:
                self.life.lost(visible(link.why_ended(), instead=" "))
            self._told()
            await session.connection.last_answers()

    async def _serve(self, session: Session) -> None:
        """Keeps what is known of the server current until the connection ends."""
        ended, keeping = session.connection.ended, asyncio.create_task(self.tools.keep(session))
        beside = self.tools.listen(session), self.resources.follow(session), self._watch(session)
        over = asyncio.create_task(ended.wait())
        tasks = [over, keeping, *map(asyncio.create_task, beside)]
        try:
            await asyncio.wait([over, keeping], return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
        finally:
            ended.set()
            await end_tasks(*tasks)

    async def _watch(self, session: Session) -> None:
        """Has a session rest that nobody has called for long, and ends a connection whose login was ended here. What
        the server holds for a person may be of another account after another login, so such a connection ends, too,
        when it is idle."""
        login, rests_after, before = self._server.login, self._rests_after, ""
        clock = asyncio.get_running_loop().time
        while login is not None or rests_after is not None:
            since = self.idle_since
            if rests_after is not None and since is not None and clock() - since >= rests_after:
                self.rest()
            mark = "" if login is None else await login.mark()
            is_idle = rests_after is not None and not self._at_work
            if before and mark != before and (bool(mark and is_idle) or not self.has_login):
                if rests_after is not None:
                    self.rest()
                session.connection.end(LOGIN_ENDED)
            before = before or mark
            await asyncio.sleep(POLL_SECONDS)

    def _new_link(self) -> Link:
        passed_on = self._server.bounds.passed_on
        return Link(
            self._server,
            self._note,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            log_level=wanted_level(),
            elicitation_callback=self._routing.elicit if "elicitation" in passed_on else None,
            sampling_callback=self._routing.sample if "sampling" in passed_on else None,
            list_roots_callback=self._routing.roots if "roots" in passed_on else None,
        )

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._routing.logged(params)
        await self._server_log(params)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.tools.note_change()
        elif isinstance(message, types.ResourceListChangedNotification | types.PromptListChangedNotification):
            self.resources.note_change()
        elif isinstance(message, types.ResourceUpdatedNotification):
            self.resources.note_update(message.params.uri)

    # ---- inside --------------------------------------------------------------------------------------

    async def _ask(self, request: RequestEntry, session: Session, call: Outstanding) -> Any:
        if not is_object(call.value):
            raise ToolCallError(
                f"The input of {call.name} is too large.",
                hint="Send less at a time.",
                certainty=Certainty.NOT_STARTED,
            )
        result = await (read_resource if request.by_script else ask)(session, call)
        if call.name == SUBSCRIBE.tool_name:
            self.resources.followed.add(call.value["uri"])
        return result

    @property
    def client(self) -> Session | None:
        """Gives the connection, if there is one."""
        return self._link.session if self.life.state is State.READY else None

    def _told(self) -> None:
        """Tells whoever waits for another state, or shows it."""
        if self.life.state in (State.WAITING, State.RESTING, State.CLOSED):
            self.tools.done()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        tell(self._on_change)

    def _note(self, text: str) -> None:
        """Tells once what was odd in what the server sent."""
        self._server.note(text)
        reason = f"{FIRST_TRY}{self._link.noise()}"
        if self.life.state is State.CONNECTING and reason not in (FIRST_TRY, self.life.reason):
            # Whoever waits for it is told at once.
            self.life.reason = reason
            self._told()
