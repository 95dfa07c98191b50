"""Runs that wait for a person, in a daemon of a test."""

import json
from typing import Any

import psutil

from cellblock import Broker, RunResponse
from support.http_daemon import TOOL, Daemon
from support.processes import command_line, workers_of
from support.waits import until, until_found, within

WAITING = {"auth": {"keyring": "off"}}
"""The sections of a daemon in which runs wait."""


async def parked(served: Daemon, code: str) -> str:
    """Runs a script whose calls wait to be allowed, and returns the run's id."""
    async with served.client() as client:
        result: Any = await within(client.call_tool(TOOL, {"code": code, "plan": True, "durable": True}))
    response = result.structured_content
    assert [entry["code"] for entry in response["diagnostics"]] == ["RUN_PARKED"], response
    return response["usage"]["runId"]


async def all_waiting(served: Daemon) -> list[Any]:
    """What the dashboard lists of the runs that wait."""
    listed = await served.ask("GET", "/dashboard/parked", headers=served.auth)
    assert listed.status == 200
    return json.loads(listed.body)["runs"]


async def until_parked(served: Daemon, count: int = 1) -> list[str]:
    """The ids of so many runs, when they wait."""

    async def look() -> list[str] | None:
        runs = await all_waiting(served)
        return [run["id"] for run in runs] if len(runs) == count else None

    return await until_found(look, f"{count} runs wait")


async def no_process(served: Daemon) -> None:
    """Waits until no run has a process."""
    family = psutil.Process(served.process.pid).children()
    hosts = [one.pid for one in family if "cellblock_worker" in " ".join(command_line(one))]
    await until(lambda: not any(map(workers_of, hosts)), "no worker is left")


async def waiting(served: Daemon, run_id: str) -> Any:
    """What the dashboard lists of a run; None where it does not wait."""
    return next((run for run in await all_waiting(served) if run["id"] == run_id), None)


async def ended(served: Daemon, run_id: str) -> Any:
    """What the dashboard shows of a run that was parked, when it has ended."""

    async def look() -> Any:
        answer = await served.ask("GET", f"/dashboard/runs/{run_id}", headers=served.auth)
        run = json.loads(answer.body)
        return run if answer.status == 200 and run["outcome"] not in ("parked", "running", "no end") else None

    return await until_found(look, "it has ended")


async def response_of(broker: Broker, run_id: str, principal: str = "embedding") -> RunResponse:
    """The response of a run of a program that was parked, when it has ended."""

    async def look() -> RunResponse | None:
        status = await broker.parked_runs.status(run_id, principal)
        return status.response if status is not None and status.state == "ended" else None

    return await until_found(look, "it has ended")


async def login(served: Daemon) -> tuple[str, str]:
    """A browser's cookie and key."""
    code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
    answer = await served.ask("GET", json.loads(code.body)["path"])
    path, _, key = answer.headers["refresh"].partition("#key=")
    assert (answer.status, path) == (200, "0; url=/dashboard")
    return answer.headers["set-cookie"].split(";")[0], key
