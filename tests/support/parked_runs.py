"""Runs that wait for a person, in a daemon of a test."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cellblock import Broker, RunResponse
from support.http_daemon import TOOL, Daemon
from support.waits import within

LOOK_SECONDS = 0.1

WAITING = {"auth": {"keyring": "off"}, "pool": {"warm": 1}}
"""The sections of a daemon in which runs wait."""


async def parked(served: Daemon, code: str) -> str:
    """Runs a script whose calls wait to be allowed, and returns the run's id."""
    async with served.client() as client:
        result: Any = await within(client.call_tool(TOOL, {"code": code, "plan": True, "durable": True}), 60)
    response = result.structured_content
    assert [entry["code"] for entry in response["diagnostics"]] == ["RUN_PARKED"], response
    return response["usage"]["runId"]


async def waiting(served: Daemon, run_id: str, headers: dict[str, str] | None = None) -> Any:
    """What the dashboard lists of a run; None where it does not wait."""
    listed = await served.ask("GET", "/dashboard/parked", headers=headers or served.auth)
    assert listed.status == 200
    return next((run for run in json.loads(listed.body)["runs"] if run["id"] == run_id), None)


async def ended(served: Daemon, run_id: str) -> Any:
    """What the dashboard shows of a run that was parked, when it has ended."""

    async def look() -> Any:
        while True:
            answer = await served.ask("GET", f"/dashboard/runs/{run_id}", headers=served.auth)
            run = json.loads(answer.body)
            if answer.status == 200 and run["outcome"] not in ("parked", "running", "no end"):
                return run
            await asyncio.sleep(LOOK_SECONDS)

    return await within(look(), 60)


async def response_of(broker: Broker, run_id: str) -> RunResponse:
    """The response of a run of a program that was parked, when it has ended."""

    async def look() -> RunResponse:
        while True:
            status = await broker.parked_runs.status(run_id, "embedding")
            if status is not None and status.state == "ended":
                assert status.response is not None
                return status.response
            await asyncio.sleep(LOOK_SECONDS)

    return await within(look(), 60)


async def login(served: Daemon) -> tuple[str, str]:
    """A browser's cookie and key."""
    code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
    answer = await served.ask("GET", json.loads(code.body)["path"])
    path, _, key = answer.headers["location"].partition("#key=")
    assert (answer.status, path) == (303, "/dashboard")
    return answer.headers["set-cookie"].split(";")[0], key
