"""Approval, progress and logs with the SDK's real client: over stdio, over HTTP and through `cellblock connect`, in
both generations of the protocol."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from support.asking_client import Asked, always, asking, connect, over_http, stdio
from support.entries import plain_server, recorded, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.params import mostly
from support.waits import until, within

SECTION: dict[str, Any] = {
    "policy": {"default": {"approve": ["plain.give"]}},
    "pool": {"warm": 2},
}

FRONTS = mostly(
    ["stdio-legacy", "http-auto", "connect-legacy"],
    [f"{front}-{mode}" for front in ("stdio", "http", "connect") for mode in ("auto", "legacy")],
)

GIVE = """
import { give, echo } from "@codemode/servers/plain";
import { ToolCallError } from "@codemode/errors";
let got;
try { got = await give({ path: "a" }); }
catch (error) {
  const { code, fault, certainty, hint } = error;
  got = { code, fault, certainty, hint, known: error instanceof ToolCallError };
}
globalThis.__codemode_result__ = got;
"""


@dataclass
class Fronts:
    """Where clients connect to."""

    running: Daemon
    config: Path
    folder: Path

    @asynccontextmanager
    async def client(self, front: str, mode: str, **options: Any) -> AsyncGenerator[Asked]:
        transports: dict[str, Callable[[], Any]] = {
            "http": lambda: over_http(self.running),
            "connect": lambda: nullcontext(connect(self.running)),
            "stdio": lambda: nullcontext(stdio(self.config, self.folder / f"s-{mode}")),
        }
        async with transports[front]() as transport, asking(transport, mode, **options) as asked:
            yield asked

    def recorded(self, front: str, **wanted: Any) -> int:
        return recorded(self.folder / "stdio.jsonl" if front == "stdio" else self.running.ledger, **wanted)


@pytest.fixture(scope="module")
async def fronts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronts]:
    folder = tmp_path_factory.mktemp("fronts")
    (folder / "daemon").mkdir()
    config = write_config(folder, {"plain": plain_server("--ledger", folder / "stdio.jsonl")}, **SECTION)
    constants = {"cellblock.run.policy.rules.APPROVAL_SECONDS": 5.0}
    async with daemon(folder / "daemon", constants=constants, **SECTION) as running:
        yield Fronts(running, config, folder)


@pytest.fixture(scope="module", params=FRONTS)
async def connection(request: pytest.FixtureRequest, fronts: Fronts) -> AsyncIterator[tuple[str, Asked]]:
    """One client of each kind, and where it is connected."""
    front, mode = request.param.split("-")
    async with fronts.client(front, mode, level="warning") as asked:
        yield front, asked


async def test_what_the_user_says_is_done(fronts: Fronts, connection: tuple[str, Asked]) -> None:
    front, asked = connection
    asked.answer = always("accept")
    before = fronts.recorded(front, tool="give")
    response = await asked.run(GIVE)
    assert response["result"] == {"path": "a"}, response
    assert response["usage"]["approvalWaitMs"] >= 0
    assert fronts.recorded(front, tool="give") == before + 1
    (question,) = asked.questions
    assert "plain.give" in question and '{"path":"a"}' in question
    for action, code, said in (
        ("decline", "APPROVAL_DECLINED", "refused by a person"),
        ("cancel", "APPROVAL_CANCELLED", "the user has not chosen"),
    ):
        asked.answer = always(action)
        response = await asked.run(GIVE)
        denied = response["result"]
        assert denied.pop("hint")
        assert denied == {"code": code, "fault": "caller", "certainty": "not_started", "known": True}
        assert response["toolTrace"][0]["error"] == said
    assert (fronts.recorded(front, tool="give"), len(asked.questions)) == (before + 1, 3)


@pytest.mark.parametrize(("front", "mode"), [("stdio", "legacy"), ("http", "auto")])
async def test_the_clock_stands_still_while_the_user_thinks(fronts: Fronts, front: str, mode: str) -> None:
    """The run has one second, the user takes longer; calls that need no approval go on meanwhile."""
    async with fronts.client(front, mode) as asked:
        echoes = fronts.recorded(front, tool="echo")

        async def think(_: str) -> str:
            await until(
                lambda: fronts.recorded(front, tool="echo") > echoes, "the other call is made meanwhile"
            )
            await asyncio.sleep(1.5)
            return "accept"

        asked.answer = think
        response = await asked.run(
            """
            import { give, echo } from "@codemode/servers/plain";
            globalThis.__codemode_result__ = await Promise.all([give({ a: 1 }), echo({ b: 2 })]);
        """,
            limits={"timeoutMs": 1000},
        )
        assert response["result"] == [{"a": 1}, '{"b": 2}'], response
        # Where the client goes away with the question, the run is parked meanwhile.
        assert mode == "auto" or response["usage"]["approvalWaitMs"] >= 1500


@pytest.mark.parametrize(("front", "mode"), [("connect", "legacy"), ("http", "auto")])
async def test_a_user_who_is_not_there(fronts: Fronts, front: str, mode: str) -> None:
    """Without elicitation at once, with it after the named time; in both cases the call was not made."""
    before = fronts.recorded(front, tool="give")
    async with fronts.client(front, mode, elicits=False) as asked:
        denied = (await asked.run(GIVE))["result"]
        assert (denied["code"], denied["certainty"]) == ("APPROVAL_UNAVAILABLE", "not_started")
        assert all(way in denied["hint"] for way in ("--durable", "runs approve", "elicitation"))
    if mode == "auto":
        async with fronts.client(front, mode) as asked:

            async def late(_: str) -> str:
                await asyncio.sleep(6.5)
                return "accept"

            asked.answer = late
            # The run waits without a process, and so without that bound.
            response = await asked.run(GIVE, limits={"timeoutMs": 2_000})
            assert response["result"] == {"path": "a"}, response
    assert fronts.recorded(front, tool="give") == before + (mode == "auto")


@pytest.mark.parametrize(
    ("front", "mode"),
    mostly(
        [("http", "legacy"), ("connect", "auto")],
        [(front, mode) for front in ("http", "connect") for mode in ("auto", "legacy")],
    ),
)
async def test_a_client_that_leaves_while_its_user_is_asked(fronts: Fronts, front: str, mode: str) -> None:
    """The call is not made, and its run does not stay: where the client would come back, until that time is over."""
    before = fronts.recorded(front, tool="give")
    async with fronts.client(front, mode) as asked:
        asked.answer = never
        call = asyncio.create_task(asked.client.call_tool(TOOL, {"code": GIVE}))
        await asked.until(lambda: asked.questions)
        # One whose client is to come back has no process.
        await fronts.running.until_live(1 if mode == "legacy" else 0)
        call.cancel()
        await asyncio.wait([call])
    await fronts.running.until_live(0)
    assert fronts.recorded(front, tool="give") == before


async def never(_: str) -> str:
    """A user who does not answer."""
    await asyncio.Event().wait()
    return "accept"


async def test_a_client_that_refuses_to_ask(fronts: Fronts) -> None:
    async with fronts.client("stdio", "legacy") as asked:

        async def refuse(_: str) -> types.ErrorData:
            return types.ErrorData(code=types.INVALID_REQUEST, message="no")

        asked.answer = refuse
        assert (await asked.run(GIVE))["result"]["code"] == "APPROVAL_UNAVAILABLE"


async def test_progress_and_logs_while_it_runs_and_a_cancel_ends_it(
    fronts: Fronts, connection: tuple[str, Asked]
) -> None:
    front, asked = connection
    code = """
        import { echo, never } from "@codemode/servers/plain";
        console.log("too low");
        console.warn("first\\u0007\\nline", "\\u202e" + "x".repeat(500));
        console.error("second");
        await echo({});
        console.log("now waiting");
        await never({});
    """
    before, cancels = fronts.recorded(front, tool="never"), fronts.recorded(front, event="cancelled")
    call = asyncio.ensure_future(asked.run(code, told=True))
    await asked.until(lambda: len(asked.progress) >= 3 and "1 tool call;" in asked.progress[-1][1])
    await asked.until(lambda: len(asked.logs) == 2)
    await until(lambda: fronts.recorded(front, tool="never") == before + 1, "the script is in its call")
    assert asked.logs == [("warning", asked.logs[0][1]), ("error", "second")]
    elapsed = [progress for progress, _ in asked.progress]
    assert elapsed == sorted(set(elapsed)) and elapsed[0] > 0
    assert asked.progress[-1][1].endswith("last log: now waiting")
    assert all(len(message) < 250 and message.isprintable() for _, message in asked.progress)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(call)
    await until(lambda: fronts.recorded(front, event="cancelled") > cancels, "the call is cancelled upstream")
    # Who did not ask is not told.
    told = len(asked.progress)
    await asked.run("await new Promise((done) => setTimeout(done, 400));")
    assert len(asked.progress) == told


async def test_without_a_level_no_log_is_sent(fronts: Fronts) -> None:
    for mode in ("auto", "legacy"):
        async with fronts.client("http", mode) as asked:
            assert (await asked.run("console.error('quiet');", told=True))["logs"][0]["message"] == "quiet"
            assert asked.logs == []


@pytest.mark.parametrize(("front", "mode"), [("http", "auto"), ("stdio", "legacy")])
async def test_progress_and_logs_go_on_after_a_question(fronts: Fronts, front: str, mode: str) -> None:
    """Where the client comes back in a request of its own, too."""
    async with fronts.client(front, mode, level="info") as asked:
        asked.answer = always("accept")
        await asked.run(
            """
            import { give, echo, wait } from "@codemode/servers/plain";
            await echo({}); console.log("before");
            await give({}); console.log("after");
            await wait({ ms: 1000 });
        """,
            told=True,
        )
        assert [data for _, data in asked.logs] == ["before", "after"]
        # The last report may come before the last call's end, or after it.
        assert re.search(r"[123] tool calls?; last log: after", asked.progress[-1][1])


async def test_progress_keeps_a_client_from_giving_up_while_the_user_thinks(fronts: Fronts) -> None:
    async with fronts.client("stdio", "legacy") as asked:

        async def think(_: str) -> str:
            told = len(asked.progress)
            await asked.until(lambda: len(asked.progress) > told + 2)
            return "accept"

        asked.answer = think
        assert (await asked.run(GIVE, told=True))["result"] == {"path": "a"}
