"""Checks beside runs hold no response for longer than they may, lose nothing that is found late, and keep within
bounds, also in the definitions of servers that they hold."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Coroutine, Iterator
from typing import Any, cast

import pytest

from cellblock.base.settings.settings import CellblockSettings
from cellblock.run.plan import make_plan
from cellblock.run.request import read_request
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.run.side_checks import MAX_LATE_SCRIPTS, MAX_TOLD_LATE, MAX_TOOLS, Kept, SideCheck, SideChecks
from cellblock.run.type_errors import TypeErrors
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import ModuleUrls
from cellblock.types.check.ambient import Declarations
from cellblock.types.check.checker import Checked, TypeChecker
from cellblock.types.check.faults import TypeFault
from support.virtual_time import VirtualTimeLoop

HOLD_SECONDS = 0.03
SERVER = ServerEntry("x", "X", "x", tools=(ToolEntry("list", "list"), ToolEntry("rows", "rows")))
CATALOG = Catalog(1, {"x": SERVER})
SUCCEEDED = RunResponse(logs=[], diagnostics=[], result=1)
FAILED = RunResponse(
    logs=[],
    diagnostics=[Diagnostic(severity="error", code="UNCAUGHT_EXCEPTION", message="m", path="script.js:1:1")],
)


class Compiler:
    """One at a time, as the real one does it: each check takes `seconds` of virtual time, and finds one fault."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.declarations = Declarations()
        self.unavailable = None
        self.got: list[set[tuple[str, str]]] = []
        self._turn = asyncio.Lock()

    async def check(self, code: str, *, got: Any, **_more: Any) -> Checked:
        async with self._turn:
            self.got.append(set(got))
            await asyncio.sleep(self.seconds)
        said = "JSON text" if got else "wrong"
        return Checked((TypeFault(f"{said} in {code.splitlines()[-1]}", None, 2, 1, is_text=bool(got)),))


class World:
    """Runs scripts of which nothing but the check takes time."""

    def __init__(self, seconds: float) -> None:
        settings = CellblockSettings()
        self.compiler = Compiler(seconds)
        checker = cast("TypeChecker", self.compiler)
        self.checks = SideChecks(checker)
        self.errors = TypeErrors(settings, checker)
        self.settings = settings

    def started(self, code: str, client: str = "one") -> SideCheck:
        plan = make_plan(f'import * as x from "@codemode/servers/x";\n{code}', CATALOG, ModuleUrls())
        side = SideCheck(self.checks, plan, CATALOG, client, self.errors.check_seconds)
        self.errors.beside(side)
        return side

    async def ended(self, side: SideCheck, response: RunResponse) -> tuple[list[str], float]:
        """What the response says of types, and how long it was held."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        late = side.late()
        told = await self.errors.after(response, read_request({"code": "1"}, self.settings), side)
        said = [found.message for found in [*told.diagnostics, *late] if found.code == "TYPE_ERROR"]
        return said, loop.time() - began


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    made = VirtualTimeLoop()
    yield made
    made.close()


def run(loop: VirtualTimeLoop, work: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(work)


@pytest.mark.parametrize("response", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
@pytest.mark.parametrize(
    ("check", "ran", "held", "is_told"),
    [
        (0.02, 0.0, 0.02, True),
        (10.0, 0.0, HOLD_SECONDS, False),
        (10.0, 9.99, 0.01, True),
        (0.4, 0.1, HOLD_SECONDS, False),
        (0.02, 5.0, 0.0, True),
    ],
)
def test_no_response_is_held_longer_than_it_may_be(
    loop: VirtualTimeLoop, response: RunResponse, check: float, ran: float, held: float, is_told: bool
) -> None:
    """`ran` is how long the script was at work: the check is beside it."""

    async def work() -> None:
        world = World(check)
        side = world.started("x.list({});")
        await asyncio.sleep(ran)
        said, took = await world.ended(side, response)
        assert took == pytest.approx(held, abs=1e-6) and bool(said) == is_told
        await asyncio.sleep(check)
        later, took = await world.ended(world.started("1;"), SUCCEEDED)
        earlier = [message for message in later if message.startswith("In an earlier script of yours")]
        assert (len(earlier), took <= HOLD_SECONDS + 1e-6) == (0 if is_told else 1, True)
        await world.checks.close()

    run(loop, work())


def test_of_several_late_scripts_none_is_lost(loop: VirtualTimeLoop) -> None:
    async def work() -> None:
        world = World(0.1)
        scripts = ["x.list(1);", "x.list(2);", "x.list(3);"]
        for code in scripts:
            response = FAILED if code == scripts[1] else SUCCEEDED
            assert (await world.ended(world.started(code), response))[0] == []
        await asyncio.sleep(1)
        assert (await world.ended(world.started("x.list(9);", client="other"), SUCCEEDED))[0] == []
        said, _ = await world.ended(world.started("x.list(4);"), SUCCEEDED)
        assert [message.partition(" in ")[2] for message in said] == scripts
        await asyncio.sleep(1)
        said, _ = await world.ended(world.started("x.list(4);"), SUCCEEDED)
        assert said == ["wrong in x.list(4);"], "of the script itself, no longer of one before it"
        await world.checks.close()

    run(loop, work())


def test_what_waits_for_a_client_is_bounded_and_comes_in_order(loop: VirtualTimeLoop) -> None:
    async def work() -> None:
        world = World(0.01)
        for number in range(MAX_LATE_SCRIPTS + 5):
            found = Diagnostic(severity="warning", code="TYPE_ERROR", message=f"m{number}")
            world.checks.tell_later("one", b"%d" % number, [found, found])
        told: list[str] = []
        while True:
            said, _ = await world.ended(world.started("1;"), SUCCEEDED)
            said = [message for message in said if message.startswith("m")]
            assert len(said) <= MAX_TOLD_LATE
            told += said
            if not said:
                break
        assert told == [f"m{number}" for number in range(MAX_LATE_SCRIPTS) for _ in range(2)]
        await world.checks.close()

    run(loop, work())


def test_a_text_that_nobody_expected_is_checked_while_the_script_still_runs(loop: VirtualTimeLoop) -> None:
    async def work() -> None:
        world = World(0.05)
        side = world.started("x.rows({});")
        side.answers.add("x", "rows", "text", b'"[1]"')
        side.answers.add("x", "rows", "text", b'"[2]"')
        await asyncio.sleep(0.11)
        assert world.compiler.got == [set(), {("x", "rows")}], "before the script has ended"
        said, took = await world.ended(side, FAILED)
        assert (said, took) == (["JSON text in x.rows({});"], 0.0)
        await world.checks.close()

    run(loop, work())


def test_a_text_that_was_a_value_after_all_is_not_told(loop: VirtualTimeLoop) -> None:
    async def work() -> None:
        world = World(0.0)
        side = world.started("x.rows({});")
        side.answers.add("x", "rows", "text", b'"[1]"')
        await asyncio.sleep(0.01)
        side.answers.add("x", "rows", "value", b"[1]")
        assert (await world.ended(side, SUCCEEDED))[0] == ["wrong in x.rows({});"]
        assert not side.answers.may_be_text(("x", "rows")) and side.answers.may_be_text(("x", "list"))
        await world.checks.close()

    run(loop, work())


class Entry(ServerEntry):
    """One that can be watched."""


def test_a_server_that_changes_for_every_run_is_not_held_a_thousand_times() -> None:
    checks = SideChecks(None)
    watched: list[weakref.ref[Entry]] = []
    each = MAX_TOOLS // 20

    def keep(number: int) -> None:
        tools = tuple(ToolEntry(f"t{tool}", f"t{tool}", None, None, {}, None) for tool in range(each))
        server = Entry("changes", "changes", "changes", version=str(number), tools=tools)
        watched.append(weakref.ref(server))
        key = (b"%d" % number, (id(server),), frozenset[tuple[str, str]]())
        checks.keep(key, Kept((server,), [], 0, Checked(())))
        # Again is no second one.
        checks.keep(key, Kept((server,), [], 0, Checked(())))

    for number in range(60):
        keep(number)
    gc.collect()
    alive = [number for number, one in enumerate(watched) if one() is not None]
    assert alive == list(range(40, 60))


def test_sessions_that_share_their_definitions_count_once() -> None:
    checks = SideChecks(None)
    tools = tuple(ToolEntry(f"t{tool}", f"t{tool}", None, None, {}, None) for tool in range(MAX_TOOLS))
    servers = [Entry("same", "same", "same", tools=tools, session=number) for number in range(30)]
    keys = [
        (b"%d" % number, (id(server),), frozenset[tuple[str, str]]()) for number, server in enumerate(servers)
    ]
    for key, server in zip(keys, servers, strict=True):
        checks.keep(key, Kept((server,), [], 0, Checked(())))
    assert list(checks._kept) == keys
