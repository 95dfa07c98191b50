"""What a daemon's environment lacks is told by every command that speaks with the daemon, and shown on its pages."""

import json
from collections.abc import AsyncIterator

import httpx2
import pytest

from support.commands import Said, cellblock
from support.entries import CELLBLOCK, plain_server
from support.http_daemon import INITIALIZE, Daemon, daemon

pytestmark = pytest.mark.thorough

LACKING = {**plain_server(), "env": {"TOKEN": "${env:NOT_SET_FOR_THE_DAEMON}"}}
TOLD = "the daemon does not start the server lacking: the environment variable NOT_SET_FOR_THE_DAEMON is not set."


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    servers = {"plain": plain_server(), "lacking": LACKING}
    light = {"pool": {"warm": 0}, "typecheck": "off"}
    async with daemon(tmp_path_factory.mktemp("lacking"), servers=servers, **light) as running:
        yield running


async def said(served: Daemon, *words: str, given: bytes | None = None) -> Said:
    options = ("--state-dir", served.folder / "s", "--url", served.url)
    return await cellblock(*words, *options, given=given, program=CELLBLOCK)


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["dashboard", "--no-open"], 1),
        (["logs", "plain"], 0),
        (["restart", "plain"], 0),
    ],
)
async def test_who_asks_a_daemon_is_told_it_unless_of_another_server(
    served: Daemon, words: list[str], times: int
) -> None:
    code, _, err = await said(served, *words)
    assert code == 0, err
    assert err.count(TOLD) == times


async def test_a_relay_tells_it_behind_its_first_answer(served: Daemon) -> None:
    code, out, err = await said(
        served, "connect", "--no-start", given=json.dumps(INITIALIZE).encode() + b"\n"
    )
    assert code == 0 and "serverInfo" in out, err
    assert err.count(TOLD) == 1


async def test_it_cannot_be_restarted_and_is_shown_with_the_others(served: Daemon) -> None:
    code, _, err = await said(served, "restart", "lacking")
    assert code == 2 and TOLD in err
    options = ("--config", served.folder / "cellblock.json", "--state-dir", served.folder / "s")
    code, out, err = await cellblock("status", "lacking", *options, program=CELLBLOCK)
    assert code == 1 and "NOT_SET_FOR_THE_DAEMON" in out and "again:" not in out, err
    async with httpx2.AsyncClient(headers=served.auth, trust_env=False, verify=False) as http:
        state = (await http.get(served.url.replace("/mcp", "/dashboard/state"))).json()
        metrics = (await http.get(served.url.replace("/mcp", "/metrics"))).text
    row = next(one for one in state["upstreams"] if one["name"] == "lacking")
    assert (row["state"], row["reason"]) == ("not started", TOLD.split(": ", 1)[1].removesuffix("."))
    assert 'cellblock_upstream_up{server="lacking"} 0' in metrics
