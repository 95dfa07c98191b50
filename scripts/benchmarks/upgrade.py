"""Whether anything is lost when another version is upgraded to this one.

First a daemon of the version before serves with a configuration that names every setting of that version, and parks a
run; one of this version must start on the same state directory and configuration, take the same token, and go on with
the run. Then two brokers of the version before share a PostgreSQL behind a balancer, and two worker hosts dial both.
Clients of protocol 2026-07-28 run scripts whose calls must be allowed, and come back with the answers or leave durable
runs, which are allowed beside them; clients of 2025-06-18 run scripts in sessions. Meanwhile each part is ended by
SIGTERM and followed by one of this version, in one order, and then, with a new fleet, in the other. Exit code 1 where a
request has not one answer, a call was made twice or may have been lost, a parked run was lost, a client was told
what is not so, no broker was ready for a moment, or anything is left.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil

from benchmarks.client import message_in, response_in as answer_in, run_of, send
from benchmarks.harness import BOUND_SECONDS, configured, daemon, parser, say
from cellblock.record.rows import Head
from cellblock.record.store import SHOWN
from soak.fleet.campaign import LEFT
from soak.fleet.clients import LATER, Clients
from soak.run_books import RunBooks
from soak.watch import ORPHAN_SECONDS, Orphans, adopt_orphans, tracebacks
from soak.written import drained, response_to, store_of
from support.entries import CELLBLOCK, ledger, plain_server
from support.fleet.fleet import Broker, Fleet, Part
from support.fleet.network import Loopback
from support.http_daemon import INITIALIZE, MCP_HEADERS, TOOL
from support.modern_client import message
from support.processes import left_after

CLIENTS: Final = 3
SESSION_CLIENTS: Final = 2
APPROVE_SECONDS: Final = 0.3
"""Passes between two looks of the person who approves."""

DRAINED_SECONDS: Final = 900.0
"""Bounds the end: each run that is left has a few parks before it."""

SHOWN_MOST: Final = 20
AGAIN_SECONDS: Final = 1.0
"""Passes before a client asks again who was told that nothing of its request was begun."""

MOST_AGAIN: Final = 60
"""Bounds how often a client asks again; a part is replaced in seconds."""

POLL_SECONDS: Final = 0.25
ENGINE_SECONDS: Final = 1.0
"""Passes before a host that has ended by itself is started again, as a service manager does."""

DRAIN_SECONDS: Final = 30
STEPS: Final = 8
"""Counts the pauses of one upgrade, between and around its steps."""

STOPPING: Final = b"The daemon is stopping. Call again"
"""Says that nothing of a request was begun."""

ORDERS: Final = ("hosts first", "brokers first")

SETTINGS: Final[Mapping[str, Any]] = {
    "policy": {"default": {"approve": ["ledger.give"]}},
    "typecheck": "off",
}
IN_SESSION: Final = """import { echo, wait } from "@codemode/servers/ledger";
const told = {};
const call = async (tool, n, more) => {
    try {
        await tool({ id: "RUN/" + n, ...more });
        told[n] = "made";
    } catch (error) {
        told[n] = error.certainty;
    }
};
await call(echo, 0);
await call(wait, 1, { ms: 400 });
await call(echo, 2);
globalThis.__codemode_result__ = { run: RUN, told };
"""


ELSEWHERE: Final = ("state", "replicas", "hosts")
"""Names the sections that mean nothing to one daemon alone."""

PARKS: Final = """import { echo, give } from "@codemode/servers/ledger";
await echo({ id: "1/0" });
globalThis.__codemode_result__ = await give({ id: "1/1" });
"""


class UpgradeClients(Clients):
    """Says how often clients were told to ask again."""

    async def legacy(self) -> None:
        """Asks in sessions of 2025-06-18, and begins a new one when its own has ended."""
        headers: dict[str, str] = {}
        while time.monotonic() < self.until:
            await self._pause()
            self._counts["requests_in_sessions"] += 1
            number = self._next_number()
            arguments = {"code": IN_SESSION.replace("RUN", str(number))}
            status, data = int(http.client.NOT_FOUND), b""
            while status == http.client.NOT_FOUND:
                if not headers:
                    headers = await self._opened()
                status, _, data = await self._asked(
                    "tools/call", {"name": TOOL, "arguments": arguments}, headers
                )
                if status == http.client.NOT_FOUND:
                    self._counts["sessions_ended"] += 1
                    headers = {}
            if status == http.client.OK:
                self._books.take(message_in(data))
            elif status == 0:
                self._counts["cut_off"] += 1
            else:
                self._books.wrong.append(
                    f"request {number} in a session was answered {status}: {data[:500]!r}"
                )

    def answered_again(self, first: Any, again: Any) -> None:
        """Takes what is kept of the same run, and how a run goes on that a broker has parked as it drained."""
        if "error" in first:
            # The word came too late for one broker: it was not good there, and so is not good twice.
            self._counts["told_too_late_by_one_broker"] += 1
            return
        self._counts["answered_the_same_again"] += 1
        before, after = (one.get("result", {}).get("structuredContent", {}) for one in (first, again))
        is_parked = any(entry["code"] == "RUN_PARKED" for entry in before.get("diagnostics", []))
        if not is_parked and (before.get("result") is None or before["result"] != after.get("result")):
            super().answered_again(first, again)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _next(self) -> None:
        await self._modern_request()

    async def _opened(self) -> dict[str, str]:
        status, session, data = await self._asked("initialize", INITIALIZE["params"], MCP_HEADERS)
        if status != http.client.OK:
            self._books.wrong.append(f"a session was not opened: {status} {data[:500]!r}")
            return {}
        self._counts["sessions"] += 1
        version = INITIALIZE["params"]["protocolVersion"]
        headers = {**MCP_HEADERS, "Mcp-Session-Id": session, "MCP-Protocol-Version": version}
        await self._asked("notifications/initialized", {}, headers, None)
        return headers

    async def _asked(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str], request_id: int | None = 1
    ) -> tuple[int, str, bytes]:
        """Makes a request until it is begun; returns the status, the id of its session, and the body. The status is 0
        where there is no answer."""
        served, found = self._behind(), (0, "", b"")
        for _ in range(MOST_AGAIN):
            try:
                async with self._http(served) as client:
                    answer = await client.post(
                        served.url,
                        content=message(method, request_id, **params),
                        headers={**headers, **served.auth},
                    )
            except httpx2.HTTPError as error:
                return 0, "", repr(error).encode()
            found = answer.status_code, answer.headers.get("Mcp-Session-Id", ""), answer.content
            if answer.status_code not in LATER and STOPPING not in answer.content:
                break
            self._counts["told_to_ask_again"] += 1
            await asyncio.sleep(AGAIN_SECONDS)
        return found


class Upgrade:
    """Replaces the parts of a fleet under load, in one order.

    Args:
        fleet: It, started, of the version before.
        programs: Those of the version to come.
        order: One of `ORDERS`.
        seed: As for `Campaign`.
    """

    def __init__(self, fleet: Fleet, programs: Path, order: str, seed: int) -> None:
        self.books = RunBooks()
        self.wrong, self.counts = self.books.wrong, self.books.counts
        self.clients = UpgradeClients(fleet, self.books, random.Random(seed))
        self.order = order
        self._fleet, self._programs = fleet, programs
        self._supposed = set[Part](fleet.hosts)
        """Holds the hosts that run, or are started again."""
        self._step = 0.0

    async def run(self, seconds: float) -> None:
        """Upgrades in about so long, and goes on until nothing is left; then all but the database has ended."""
        self._step = seconds / STEPS
        orphans = Orphans()
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(work) for work in (self._approve(), self._tend_hosts(), self._look(orphans))
            ]
            clients = [group.create_task(self.clients.modern()) for _ in range(CLIENTS)]
            clients += [group.create_task(self.clients.legacy()) for _ in range(SESSION_CLIENTS)]
            await self._upgrade()
            self.clients.until = time.monotonic()
            await asyncio.gather(*clients)
            say(f"{self.order}: {self.counts['requests']} requests; what is left comes to its end")
            self.wrong += await drained(self._heads, DRAINED_SECONDS)
            for task in beside:
                task.cancel()
        self._supposed.clear()
        for part in (*self._fleet.hosts, *self._fleet.brokers):
            await self._stop(part)
        rows = self._fleet.database.rows
        self.wrong += [f"{what} is left: {row}" for what, said in LEFT.items() for row in rows(said)]
        with store_of(self._fleet) as store:
            self.books.settle(self._fleet.ledger(), self._heads(), lambda run_id: response_to(store, run_id))
        self._judge_certainty()
        for part in self._fleet.parts:
            self.wrong += [f"a process of {part.name} is left: {one}" for one in part.left()]
            self.wrong += [f"in the log of {part.name}: {entry[:1500]}" for entry in tracebacks(part.said())]

    # ---- inside: the operator ------------------------------------------------------------------------

    async def _upgrade(self) -> None:
        brokers, hosts = list(self._fleet.brokers), list(self._fleet.hosts)
        await asyncio.sleep(self._step)
        if self.order == "hosts first":
            # Beside the others: each version has its hosts until the last broker of the one before has gone.
            for _ in hosts:
                await self._begin(self._fleet.add_host())
            await asyncio.sleep(self._step)
            for broker in brokers:
                await self._replace(broker)
                await self._is_ready(broker)
            for host in hosts:
                self._supposed.discard(host)
                await self._stop(host)
        else:
            # In their places: at each moment a broker has a host of its version.
            for broker, host in zip(brokers, hosts, strict=True):
                await self._replace(broker)
                await self._replace(host)
                await self._is_ready(broker)
        await asyncio.sleep(self._step)

    async def _replace(self, part: Part) -> None:
        self._supposed.discard(part)
        await self._stop(part)
        await self._begin(part)
        await asyncio.sleep(self._step)

    async def _begin(self, part: Part) -> None:
        be(part, self._programs)
        self._fleet.nameless.discard(part.folder.parent)
        part.start()
        if part in self._fleet.hosts:
            self._supposed.add(part)
        say(f"{self.order}: {part.name} is started anew")

    async def _is_ready(self, broker: Broker) -> None:
        await asyncio.to_thread(broker.wait)
        # A balancer looks now and then: before it has seen this one, the next one is not to go.
        balancer = self._fleet.balancer
        await asyncio.to_thread(balancer.wait, ready=lambda: balancer.up() == len(self._fleet.brokers))
        said = broker.page("/readyz")
        say(f"{self.order}: {broker.name} is ready: {said[1].decode().strip()}")

    async def _stop(self, part: Part) -> None:
        began = time.monotonic()
        code = await asyncio.to_thread(part.stop)
        say(f"{self.order}: {part.name} has ended with {code} in {time.monotonic() - began:.1f} s")
        if code != 0:
            self.wrong.append(f"{part.name} ended with {code}: {part.said()[-1500:]}")

    async def _tend_hosts(self) -> None:
        """Starts hosts again that have ended by themselves."""
        while True:
            await asyncio.sleep(ENGINE_SECONDS)
            for host in list(self._supposed):
                if not host.is_running:
                    self.counts["hosts_started_again"] += 1
                    host.start()

    async def _look(self, orphans: Orphans) -> None:
        """Looks whether the balancer has a broker at each moment."""
        while True:
            if not await asyncio.to_thread(self._fleet.balancer.up):
                self.counts["looks_without_a_ready_broker"] += 1
            await asyncio.sleep(POLL_SECONDS)

    async def _approve(self) -> None:
        while True:
            await asyncio.sleep(APPROVE_SECONDS)
            if waiting := [one for one in await asyncio.to_thread(self._heads) if one.state == "parked"]:
                await self.clients.approve(waiting)

    def _heads(self) -> list[Head]:
        """Returns what is written down of the runs, by whichever version."""
        rows = self._fleet.database.rows(f"SELECT {SHOWN} FROM cellblock.runs")
        return [Head(**dict(zip(SHOWN.split(", "), row, strict=True))) for row in rows]

    def _judge_certainty(self) -> None:
        """Nobody was killed here: so nothing may be unsure, and nothing cut off."""
        for name, why in {
            "may_have_run": "calls are not known to be made",
            "died_too_often": "runs have lost their processes",
            "cut_off": "requests have no answer",
            "looks_without_a_ready_broker": "looks at the balancer found no broker",
        }.items():
            if self.counts[name]:
                self.wrong.append(f"{self.counts[name]} {why}")


def be(part: Part, programs: Path) -> None:
    """Has a part be of another version from its next start on."""
    part.environment["PATH"] = part.environment["PATH"].replace(str(part.programs), str(programs))
    part.programs = programs


async def measure(
    before: Path, programs: Path, order: str, seconds: float, seed: int, logs: Path | None = None
) -> Upgrade:
    """Upgrades a fleet in one order.

    Args:
        before: The programs of the version before.
        programs: Those of the version to come.
        order: One of `ORDERS`.
        seconds: About how long it takes.
        seed: As for `Campaign`.
        logs: Where the logs of the parts go when something is wrong.
    """
    adopt_orphans()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CLIENTS + SESSION_CLIENTS + 6))
    # Short, so that sockets fit under it.
    with tempfile.TemporaryDirectory(prefix="upgrade-") as name, Loopback(relays=False) as network:
        folder = Path(name)
        servers = {"ledger": plain_server("--ledger", folder / "ledger.jsonl")}
        options = ("--drain", DRAIN_SECONDS)
        with Fleet(
            folder, network, hosts=2, servers=servers, settings=SETTINGS, host_options=options
        ) as fleet:
            for part in (*fleet.brokers, *fleet.hosts):
                be(part, before)
            if "broker" not in schema_of(before)["$defs"]["StateSettings"]["properties"]:
                fleet.nameless = {broker.folder.parent for broker in fleet.brokers}
            await asyncio.to_thread(fleet.start)
            upgrade = Upgrade(fleet, programs, order, seed)
            try:
                await upgrade.run(seconds)
            finally:
                if logs is not None and (upgrade.wrong or sys.exc_info()[0] is not None):
                    for part in fleet.parts:
                        (logs / f"{order} {part.name}.log").write_text(part.said(), "utf-8")
        left = psutil.Process().children(recursive=True)
        upgrade.wrong += [f"a process is left: {one}" for one in left_after(left, ORPHAN_SECONDS)]
        return upgrade


def schema_of(programs: Path) -> dict[str, Any]:
    """Returns the schema of the configuration of a version, by the folder of its programs."""
    return json.loads((programs.parents[1] / "docs" / "config.schema.json").read_text("utf-8"))


def settings_in(schema: dict[str, Any], of: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields each setting of a section with its default, as the schema of a version has them."""
    for name, setting in of.get("properties", {}).items():
        refs = [one["$ref"] for one in (setting, *setting.get("allOf", ())) if "$ref" in one]
        if refs:
            found = dict(settings_in(schema, schema["$defs"][refs[0].rpartition("/")[2]]))
            if found and name not in ELSEWHERE:
                yield name, found
        elif setting.get("default") not in (None, [], {}):
            yield name, setting["default"]


def kept(before: Path) -> list[str]:
    """Opens what a daemon of the version before has kept; returns what is wrong."""
    schema = schema_of(before)
    sections = dict(settings_in(schema, schema["$defs"]["CellblockSettings"]))
    sections |= {"policy": {"default": {"approve": ["ledger.give"]}}}
    sections["auth"] = {**sections.get("auth", {}), "keyring": "off"}
    say(f"a configuration with the sections {', '.join(sections)}")
    with tempfile.TemporaryDirectory(prefix="upgrade-", dir="/tmp") as name:
        folder = Path(name)
        calls, state = folder / "ledger.jsonl", folder / "s"
        config = configured(folder, {"ledger": plain_server("--ledger", calls)}, **sections)

        def run(at: Any, code: str) -> Any:
            return answer_in(
                send(at.port, at.token, run_of(code, durable=True), address="127.0.0.1", bound=BOUND_SECONDS)[
                    1
                ]
            )

        def command(*words: str) -> str:
            files = ("--config", str(config), "--state-dir", str(state))
            argv = [str(CELLBLOCK), *words, *files]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_SECONDS, check=True)
            return done.stdout

        with daemon(config, state, program=[str(before / "cellblock")]) as old:
            parked = run(old, PARKS)["usage"]["runId"]
        with daemon(config, state) as new:
            waiting = [one["id"] for one in json.loads(command("runs", "list", "--parked", "--json"))]
            command("runs", "approve", parked)
            until = time.monotonic() + BOUND_SECONDS
            while time.monotonic() < until and "parked" in command("runs", "list", "--json"):
                time.sleep(POLL_SECONDS)
            again = run(new, "globalThis.__codemode_result__ = 7;")
        made = Counter(one["arguments"]["id"] for one in ledger(calls) if one["event"] == "call")
    found = {
        "the parked run is not listed": parked in waiting,
        f"its calls were made so often: {dict(made)}": made == {"1/0": 1, "1/1": 1},
        "the token of before is not taken": new.token == old.token and again["result"] == 7,
    }
    return [what for what, holds in found.items() if not holds]


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    options = parser("upgrade", __doc__)
    options.add_argument(
        "--before", type=Path, default=CELLBLOCK.parent, help="programs of the version before"
    )
    options.add_argument(
        "--minutes", type=float, default=3.0, help="of upgrading, in both orders (default 3)"
    )
    options.add_argument("--order", choices=ORDERS, help="one alone (default: both)")
    options.add_argument("--seed", type=int, default=1, help="fixes who does what, not what it meets")
    options.add_argument(
        "--logs", type=Path, help="a folder for the logs of the parts, if something is wrong"
    )
    options.add_argument("--json", type=Path, help="write the figures there, too")
    found = options.parse_args(arguments)
    orders = [found.order] if found.order else ORDERS
    figures: dict[str, Any] = {}
    if left := kept(found.before):
        figures["kept"] = {"wrong": left}
    print("\n".join(left) or "a state directory and a configuration of before: all is there")
    for order in orders:
        seconds = found.minutes * 60 / len(orders)
        done = asyncio.run(measure(found.before, CELLBLOCK.parent, order, seconds, found.seed, found.logs))
        figures[order] = {**done.counts, "wrong": done.wrong}
        print(f"{order}: " + ", ".join(f"{name} {count}" for name, count in sorted(done.counts.items())))
        print("\n".join(done.wrong[:SHOWN_MOST]) or "nothing was lost")
    if found.json is not None:
        found.json.write_text(json.dumps(figures), "utf-8")
    return 1 if any(one["wrong"] for one in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
