"""The Tasks extension: a run that was parked is a task, for its principal, over other connections and other daemons.

Tasks of MCP 2025-11-25 are not offered, because the SDK's server has none (docs/clients.md).
"""

import asyncio
import base64
import importlib.util
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, Request, Result
from pydantic import TypeAdapter

from support.asking_client import stdio
from support.cellblock_zygote import with_constants
from support.commands import command, piped
from support.entries import plain_server, write_config
from support.http_daemon import MCP_HEADERS, TOOL, Daemon, daemon, first_message, next_message, streaming
from support.modern_client import (
    FORMS,
    PAUSE_SECONDS,
    PREFIX,
    TASKS,
    VERSION,
    ModernClient,
    request,
)
from support.waits import until, until_found, within

pytestmark = pytest.mark.timeout(180)

EXTENSION = f"{PREFIX}tasks"

GIVES = """
import { give, echo } from "@codemode/servers/plain";
await echo({ text: "before" });
const given = await Promise.all(["a", "b"].map((path) => give({ path }).catch((error) => error.code)));
globalThis.__codemode_result__ = given.map((one) => typeof one);
"""

FAILS = """
import { give } from "@codemode/servers/plain";
await give({ path: "a" });
throw new Error("on purpose");
"""

UNKNOWN = (-32602, "There is no task of this id, or it has expired.")

SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "typecheck": "off",
    "policy": {"default": {"approve": ["plain.give"]}},
}


@dataclass
class Caller(ModernClient):
    """One who says what is to become of the calls of a task."""

    able: Mapping[str, Any] = field(default_factory=lambda: TASKS)

    async def says(self, task: str, **answers: str) -> None:
        responses = {key.replace("_", "-"): {"action": said} for key, said in answers.items()}
        assert (await self.told(task, "update", inputResponses=responses)).keys() == {"resultType", "_meta"}

    async def error(self, task: str, what: str) -> tuple[int, str, Any]:
        params = {"inputResponses": {}} if what == "update" else {}
        found = (await self.about(task, what, **params))["error"]
        return found["code"], found["message"], found.get("data")


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """One for the tests that leave it as it was, but for runs."""
    async with daemon(tmp_path_factory.mktemp("tasks"), **SECTION) as running:
        yield running


def without(shown: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: shown[key] for key in shown.keys() - keys}


async def kill(served: Daemon) -> None:
    served.process.kill()
    await within(served.process.wait())


async def test_a_task_outlives_its_connection_and_its_daemon(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        ann = Caller(served)
        assert (await ann.ask("server/discover"))["result"]["capabilities"]["extensions"][EXTENSION] == {}
        # A client without tasks is not given one, however long it is away.
        _, questions = await Caller(served, FORMS).asked(GIVES)
        assert questions.keys() == {"question-2", "question-3"}
        task = await ann.task(GIVES)
        assert task["status"] == "input_required" and not task.keys() & {"inputRequests", "result", "task"}
        name = task["taskId"]
        await kill(served)
    async with daemon(tmp_path, **SECTION) as served:
        ann = Caller(served)
        waits = await ann.told(name)
        of_each = {"resultType", "_meta", "ttlMs"}
        assert without(waits, of_each | {"inputRequests"}) == without(task, of_each)
        form = waits["inputRequests"]["question-2"]
        assert form["method"] == "elicitation/create" and '"path":"a"' in form["params"]["message"]
        created, updated = (datetime.fromisoformat(waits[key]) for key in ("createdAt", "lastUpdatedAt"))
        assert created <= updated
        assert waits["ttlMs"] > 6 * 24 * 3_600_000 and waits["pollIntervalMs"] > 0
        # A client without forms is asked nothing that it cannot ask.
        formless = await Caller(served, {"extensions": {EXTENSION: {}}}).told(name)
        assert formless["status"] == "working" and "inputRequests" not in formless
        await ann.says(name, question_2="accept", question_77="accept", other="accept")
        await ann.says(name, question_2="decline")
        assert (await ann.told(name))["inputRequests"].keys() == {"question-3"}
        assert served.recorded(tool="give") == 0
        await kill(served)
    async with daemon(tmp_path, **SECTION) as served:
        ann = Caller(served)
        await ann.says(name, question_3="accept")
        done = await ann.until_status(name, "completed")
        response = done["result"]["structuredContent"]
        assert response["result"] == ["object", "object"], done
        assert done["result"]["isError"] is False and "inputRequests" not in done
        assert name.startswith(response["usage"]["runId"])
        assert served.recorded(tool="give") == 2
        # What comes late is no answer, and undoes nothing.
        await ann.says(name, question_3="decline")
        assert (await ann.told(name, "cancel")).keys() == {"resultType", "_meta"}
        assert (await ann.told(name))["status"] == "completed"
        await kill(served)
    async with daemon(tmp_path, **SECTION) as served:
        kept = (await Caller(served).told(name))["result"]["structuredContent"]
        # Declarations come of servers that are connected.
        assert without(kept, {"declarations"}) == without(response, {"declarations"})
        assert served.recorded(tool="give") == 2


async def test_who_may_not_know_of_a_task(served: Daemon) -> None:
    """One sentence for all that is no task of this principal; another error for who has no tasks at all."""
    before = served.recorded(tool="give")
    token = (await command(served.folder, "token", "create", "eve")).strip()
    ann, eve = Caller(served), Caller(replace(served, token=token))
    name = (await ann.task(GIVES))["taskId"]
    run, _, tag = name.partition(".")
    hers = (await eve.task(GIVES))["taskId"]
    forged = (
        run,
        f"{run}.",
        f"{run}.{'A' * len(tag)}",
        f"{run}.{hers.partition('.')[2]}",
        f"{name} ",
        "é",
    )
    refused: set[tuple[int, str]] = set()
    for what in ("get", "update", "cancel"):
        for caller, task in ((eve, name), (ann, hers), *((ann, one) for one in forged)):
            header = f"=?base64?{base64.b64encode(task.encode()).decode()}?="
            more = {"inputResponses": {"question-2": {"action": "accept"}}} if what == "update" else {}
            found = await caller.ask(f"tasks/{what}", header, taskId=task, **more)
            refused.add((found["error"]["code"], found["error"]["message"]))
        code, _, data = await Caller(served, FORMS).error(name, what)
        assert (code, data) == (-32021, {"requiredCapabilities": {"extensions": {EXTENSION: {}}}})
        for header in (None, hers):
            wrong = await ann.ask(f"tasks/{what}", header, taskId=name, inputResponses={})
            assert wrong["error"]["code"] == -32020, wrong
    assert refused == {UNKNOWN}
    assert (await ann.told(name))["inputRequests"].keys() == {"question-2", "question-3"}
    assert served.recorded(tool="give") == before


async def test_a_task_that_nobody_answers_is_no_task_any_more(tmp_path: Path) -> None:
    section: dict[str, Any] = {**SECTION, "journal": {"expire_ms": 4_000}}
    async with daemon(tmp_path, **section) as served:
        ann = Caller(served)
        name = (await ann.task(GIVES))["taskId"]

        async def is_gone() -> Any:
            found = await ann.ask("tasks/get", name, taskId=name)
            assert "error" in found or found["result"]["status"] == "input_required", found
            return found if "error" in found else None

        found = await until_found(is_gone, "it has expired")
        assert (found["error"]["code"], found["error"]["message"]) == UNKNOWN
        assert (await ann.error(name, "update"))[:2] == (await ann.error(name, "cancel"))[:2] == UNKNOWN
        assert served.recorded(tool="give") == 0


async def test_a_script_that_fails_is_completed_and_a_cancelled_task_calls_nothing(served: Daemon) -> None:
    before = served.recorded(tool="give")
    ann = Caller(served)
    # Where nothing is waited for, the first answer is the task.
    failing, cancelled = await ann.task(FAILS), await ann.task(GIVES)
    stop = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    headers = {**MCP_HEADERS, **served.auth, "MCP-Protocol-Version": VERSION}
    assert (await served.ask(headers=headers, body=json.dumps(stop).encode())).status == 202
    await ann.says(failing["taskId"], question_1="accept")
    done = await ann.until_status(failing["taskId"], "completed")
    assert "error" not in done
    assert "on purpose" in done["result"]["structuredContent"]["diagnostics"][0]["message"]
    assert (await ann.told(cancelled["taskId"]))["status"] == "input_required"
    await ann.told(cancelled["taskId"], "cancel")
    assert (await ann.told(cancelled["taskId"]))["status"] == "cancelled"
    await ann.says(cancelled["taskId"], question_2="accept", question_3="accept")
    assert (await ann.told(cancelled["taskId"]))["status"] == "cancelled"
    assert served.recorded(tool="give") == before + 1


EARLY: dict[str, Any] = {"cellblock.serve.mcp.run_tool.LONG_SECONDS": 0.5}
AT_WORK: dict[str, Any] = {**SECTION, "policy": {}}


def holding(*files: Path) -> str:
    """A script that gives something and waits for a file, in turns."""
    return f"""
import {{ give, hold }} from "@codemode/servers/plain";
const found = [];
for (const path of {json.dumps([str(file) for file in files])}) {{
    found.push(typeof await give({{ path }}), await hold({{ path }}).catch((error) => error.certainty));
}}
globalThis.__codemode_result__ = found;
"""


async def test_a_run_that_takes_long_is_a_task_and_outlives_its_daemon(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with daemon(tmp_path, constants=EARLY, **AT_WORK) as served:
        ann = Caller(served)
        task = await ann.task(holding(first, second))
        name = task["taskId"]
        assert task["status"] == (await ann.told(name))["status"] == "working"
        await until(lambda: served.recorded(tool="hold") == 1, "it holds")
        first.touch()
        await until(lambda: served.recorded(tool="hold") == 2, "it goes on")
        await kill(served)
    async with daemon(tmp_path, constants=EARLY, **AT_WORK) as served:
        ann = Caller(served)
        done = (await ann.until_status(name, "completed"))["result"]["structuredContent"]
        assert done["result"] == ["object", "held", "object", "may_have_run"], done
        assert served.recorded(tool="give") == 2


async def test_a_run_that_takes_long_is_cancelled_where_it_is_a_task_or_its_client_has_gone(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    async with daemon(tmp_path, constants=EARLY, **AT_WORK) as served:
        ann = Caller(served)
        name = (await ann.task(holding(file)))["taskId"]
        await until(lambda: served.recorded(tool="hold") == 1, "it holds")
        await ann.told(name, "cancel")
        assert (await ann.until_status(name, "cancelled"))["taskId"] == name
        await until(lambda: served.recorded(event="cancelled") == 1, "the call of the task is cancelled")
        # Who has no tasks waits for the answer.
        waiting = asyncio.create_task(Caller(served, FORMS).run(holding(file)))
        await until(lambda: served.recorded(tool="give") == 2, "it is at work")
        assert (await ann.task(holding(file)))["status"] == "working"
        assert not waiting.done()
        file.touch()
        assert (await within(waiting, 60))["result"]["structuredContent"]["result"] == ["object", "held"]


class SdkTasks(ClientExtension):
    """Waits for tasks, as a client of the SDK is to."""

    identifier = EXTENSION

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: list[str] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=SdkTask, resolve=self.resolve)]

    async def resolve(self, task: "SdkTask", context: ClaimContext) -> CallToolResult:
        now, about = task.model_dump(by_alias=True), GetTask(params={"taskId": task.task_id})
        while now["status"] != "completed":
            self.seen.append(now["status"])
            self.file.touch()
            now = await context.session.send_request(about, TypeAdapter(dict[str, Any]))
            await asyncio.sleep(PAUSE_SECONDS)
        return CallToolResult.model_validate(now["result"], by_name=False)


class SdkTask(Result):
    result_type: Literal["task"]
    task_id: str
    status: str


class GetTask(Request[dict[str, Any], Literal["tasks/get"]]):
    name_param = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: dict[str, Any]


async def test_a_client_of_the_sdk_waits_for_a_run_that_takes_long(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()}, **AT_WORK)
    extension = SdkTasks(tmp_path / "file")
    server = stdio(config, tmp_path / "s", env=with_constants(EARLY))
    async with Client(server, extensions=[extension]) as client:
        for code, wanted in (
            ("globalThis.__codemode_result__ = 7;", 7),
            (holding(extension.file), ["object", "held"]),
        ):
            # The first is over too soon for a task.
            assert not extension.seen
            result: Any = await within(client.call_tool(TOOL, {"code": code}), 120)
            assert result.structured_content["result"] == wanted
        assert set(extension.seen) == {"working"}


async def test_a_stream_is_told_of_its_tasks(served: Daemon) -> None:
    ann = Caller(served)
    name = (await ann.task(GIVES))["taskId"]
    wanted: dict[str, Any] = {"notifications": {"taskIds": [name, "unknown"], "toolsListChanged": True}}
    assert (await Caller(served, FORMS).ask("subscriptions/listen", **wanted))["error"]["code"] == -32021
    headers, body = request(served, "subscriptions/listen", None, TASKS, **wanted)
    async with streaming(served, "POST", headers, body) as stream:
        _, first = await first_message(stream)
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["notifications"] == {"taskIds": [name], "toolsListChanged": True}
        told = await next_message(stream)
        assert told["method"] == "notifications/tasks"
        assert told["params"].pop("_meta") == {f"{PREFIX}subscriptionId": 1}
        assert told["params"] == without(await ann.told(name), {"resultType", "_meta"})
        await ann.says(name, question_2="accept", question_3="decline")
        while (told := (await next_message(stream))["params"])["status"] != "completed":
            assert told["status"] in ("working", "input_required")
        assert told["result"]["structuredContent"]["result"] == ["object", "string"]


async def test_over_a_pipe_what_cancels_a_request_cancels_no_task(served: Daemon) -> None:
    """Through `connect`, which gives the daemon the headers that its client need not know."""
    words = ("connect", "--url", served.url, "--state-dir", served.folder / "s")
    async with piped(*words, "--config", served.folder / "cellblock.json") as relay:

        async def ask(method: str, **params: Any) -> dict[str, Any]:
            relay.send(request(served, method, None, TASKS, **params)[1] + b"\n")
            answer = await relay.answer()
            assert "result" in answer, answer
            return answer["result"]

        task = await ask("tools/call", name=TOOL, arguments={"code": GIVES})
        assert task["resultType"] == "task"
        relay.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        name = task["taskId"]
        assert (await ask("tasks/get", taskId=name))["status"] == "input_required"
        await ask("tasks/update", taskId=name, inputResponses={"question-2": {"action": "decline"}})
        assert (await ask("tasks/get", taskId=name))["inputRequests"].keys() == {"question-3"}
        await ask("tasks/cancel", taskId=name)
        assert (await ask("tasks/get", taskId=name))["status"] == "cancelled"


async def test_a_plan_of_a_client_without_forms_is_a_task_that_others_answer(served: Daemon) -> None:
    before = served.recorded(tool="give")
    ann, formless = Caller(served), Caller(served, {"extensions": {EXTENSION: {}}})
    answer = await formless.ask("tools/call", TOOL, name=TOOL, arguments={"code": GIVES, "plan": True})
    task = answer["result"]
    assert (task["resultType"], task.get("status")) == ("task", "working"), json.dumps(task)
    while (found := await formless.told(task["taskId"]))["status"] != "completed":
        # Each call that is not known to be read-only is asked about.
        more = (await ann.told(task["taskId"])).get("inputRequests", {})
        if more:
            await ann.says(task["taskId"], **{key.replace("-", "_"): "accept" for key in more})
        await asyncio.sleep(PAUSE_SECONDS)
    assert found["result"]["structuredContent"]["result"] == ["object", "object"]
    assert served.recorded(tool="give") == before + 2


def test_the_sdk_still_has_no_tasks() -> None:
    """When this fails, offer them."""
    assert not any(
        importlib.util.find_spec(f"mcp.server.{name}") for name in ("tasks", "experimental", "lowlevel.tasks")
    )
    assert not [name for name in dir(Server) if "task" in name.lower()]


@pytest.mark.timeout(60)
async def test_a_client_that_asks_for_a_task_gets_its_answer(served: Daemon) -> None:
    headers = {**MCP_HEADERS, **served.auth}

    async def asked(method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as http:
            answer = await http.post(served.url, headers=headers, json=body)
        assert answer.status_code == 200, answer.text
        headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        (data,) = [line.removeprefix("data: ") for line in answer.text.splitlines() if "jsonrpc" in line]
        return json.loads(data)

    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tasks": {"list": {}, "cancel": {}}},
        "clientInfo": {"name": "test", "version": "1"},
    }
    opened = (await asked("initialize", hello))["result"]
    assert opened["protocolVersion"] == "2025-11-25" and "tasks" not in opened["capabilities"]
    call = {
        "name": TOOL,
        "arguments": {"code": "globalThis.__codemode_result__ = 42;"},
        "task": {"ttl": 60_000},
    }
    assert (await asked("tools/call", call))["result"]["structuredContent"]["result"] == 42
    assert (await asked("tasks/list", {}))["error"]["code"] == -32601
