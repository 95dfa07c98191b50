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
import base64
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import psutil
from mcp_types import INTERNAL_ERROR

from benchmarks.client import HEADERS, META, TOOL, message_in, run_of, send
from benchmarks.client import response_in as answer_in
from benchmarks.harness import BOUND_SECONDS, configured, daemon, parser, say
from benchmarks.kills import APPROVE_SECONDS, FORMS, SHOWN_MOST, Campaign
from cellblock.base.settings.auth import AuthSettings
from cellblock.base.settings.state import JournalSettings
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.record.journals import open_store
from cellblock.record.place import Place
from cellblock.record.rows import Head, RunState
from cellblock.record.tables import SHOWN
from cellblock.record.views import response_in
from soak.watch import ORPHAN_SECONDS, Orphans, adopt_orphans, tracebacks
from support.entries import CELLBLOCK, ledger, plain_server
from support.fleet.fleet import Fleet
from support.fleet.network import Loopback
from support.fleet.parts import Broker, Part
from support.http_daemon import INITIALIZE, MCP_HEADERS, Daemon

CLIENTS: Final = 3
SESSION_CLIENTS: Final = 2
PAUSE_SECONDS: Final = 0.5
"""Passes before the next request in a session, on average."""

ANSWER_SECONDS: Final = 90.0
AGAIN_SECONDS: Final = 1.0
"""Passes before a client asks again who was told that nothing of its request was begun."""

MOST_AGAIN: Final = 60
"""Bounds how often a client asks again; a part is replaced in seconds."""

LOOK_SECONDS: Final = 0.25
ENGINE_SECONDS: Final = 1.0
"""Passes before a host that has ended by itself is started again, as a service manager does."""

DRAIN_SECONDS: Final = 30
STEPS: Final = 8
"""Counts the pauses of one upgrade, between and around its steps."""

LATER: Final = frozenset({http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE})
OVER: Final = frozenset({http.client.NOT_FOUND, http.client.CONFLICT})
STOPPING: Final = b"The daemon is stopping. Call again"
"""Say that nothing of a request was begun, or that a run waits for nobody."""

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


class Upgraded:
    """Serves clients by a fleet whose parts are replaced; a `Served`.

    Args:
        fleet: It, started.
        counts: Takes how often clients were told to ask again, and why.
    """

    def __init__(self, fleet: Fleet, counts: Counter[str]) -> None:
        self.fleet = fleet
        self.ledger = fleet.ledger_file
        self._counts = counts

    async def approved(self, run_id: str) -> bool:
        """Allows what a run waits for, by the page of a broker; says whether that was taken."""
        for broker in self.fleet.brokers:
            status, _, data = await asyncio.to_thread(
                self._post, b"{}", {}, f"/dashboard/parked/{run_id}/approve", broker.served
            )
            if status == http.client.OK:
                return True
            if status not in (0, *LATER, *OVER):
                raise AssertionError(f"{broker.name} answers {status} to an approval: {data!r}")
        return False

    async def said(self, arguments: Mapping[str, Any], *, forms: bool, **more: Any) -> Any:
        """Makes one request without a session. See `Served`."""
        meta: dict[str, Any] = {**META, "io.modelcontextprotocol/clientCapabilities": FORMS if forms else {}}
        params = {"name": TOOL, "arguments": arguments, "_meta": meta, **more}
        tries = 0
        while True:
            status, _, data = await self.asked("tools/call", params, {**HEADERS, "Mcp-Name": TOOL})
            message = message_in(data) if status in (http.client.OK, http.client.BAD_REQUEST) else None
            tries += 1
            is_left = not more or message is None or message.get("error", {}).get("code") != INTERNAL_ERROR
            if is_left or tries > MOST_AGAIN:
                return message
            # The run is parked, and whom the word came to cannot read what the other version has written of it.
            self._counts["came_back_again"] += 1
            await asyncio.sleep(AGAIN_SECONDS)

    async def asked(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str], request_id: int | None = 1
    ) -> tuple[int, str, bytes]:
        """Makes a request until it is begun; returns the status, the id of its session, and the body. The status is 0
        where there is no answer."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        body = json.dumps(message if request_id is None else {**message, "id": request_id}).encode()
        tries = 0
        while True:
            status, session, data = await asyncio.to_thread(
                self._post, body, headers, "/mcp", self.fleet.behind()
            )
            tries += 1
            if (status not in LATER and STOPPING not in data) or tries > MOST_AGAIN:
                return status, session, data
            self._counts["told_to_ask_again"] += 1
            await asyncio.sleep(AGAIN_SECONDS)

    def heads(self, state: RunState | None = None) -> list[Head]:
        """Returns what is written down of the runs. See `Served`."""
        where = "" if state is None else f" WHERE state = '{state}'"
        names = SHOWN.split(", ")
        rows = self.fleet.database.rows(f"SELECT {SHOWN} FROM cellblock.runs{where}")
        return [Head(**dict(zip(names, row, strict=True))) for row in rows]

    def response(self, run_id: str) -> Any:
        """Returns the response of a run that has ended. See `Served`."""
        key = base64.b64decode(self.fleet.brokers[0].environment["FLEET_STATE_KEY"])
        shared = SharedState(PostgresServer(self.fleet.database.url), (key,))
        with (
            contextlib.closing(shared),
            contextlib.closing(
                open_store(Place(shared, AuthSettings(keyring="off")), JournalSettings())
            ) as store,
        ):
            read = store.read(run_id)
        found = None if read is None else response_in(read[1])
        return None if found is None else found.decoded().as_json()

    def _post(self, body: bytes, headers: Mapping[str, str], path: str, to: Daemon) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(to.host, to.port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            try:
                connection.request("POST", path, body, {**headers, **to.auth, "Connection": "close"})
                answer = connection.getresponse()
                return answer.status, answer.headers.get("Mcp-Session-Id", ""), answer.read()
            except (OSError, HTTPException) as error:
                return 0, "", repr(error).encode()


class Upgrade(Campaign):
    """Replaces the parts of a fleet under load, in one order.

    Args:
        fleet: It, started, of the version before.
        programs: Those of the version to come.
        order: One of `ORDERS`.
        seed: As for `Campaign`.
    """

    def __init__(self, fleet: Fleet, programs: Path, order: str, seed: int) -> None:
        counts = Counter[str]()
        self.upgraded = Upgraded(fleet, counts)
        super().__init__(self.upgraded, seed)
        self.books.counts = self.counts = counts
        self.order = order
        self._fleet, self._programs = fleet, programs
        self._supposed = set[Part](fleet.hosts)
        """Holds the hosts that run, or are started again."""
        self._over = asyncio.Event()
        self._step = 0.0

    async def run(self, seconds: float) -> None:
        """Upgrades in about so long, and goes on until nothing is left; then all but the database has ended."""
        self._step = seconds / STEPS
        orphans = Orphans()
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(work) for work in (self._approve(), self._tend_hosts(), self._look(orphans))
            ]
            clients = [group.create_task(self._requests()) for _ in range(CLIENTS)]
            clients += [group.create_task(self._session()) for _ in range(SESSION_CLIENTS)]
            await self._upgrade()
            self._over.set()
            await asyncio.gather(*clients)
            say(f"{self.order}: {self.counts['requests']} requests; what is left comes to its end")
            await self._drained()
            for task in beside:
                task.cancel()
        self._supposed.clear()
        for part in (*self._fleet.hosts, *self._fleet.brokers):
            await self._stop(part)
        self._judge_rows()
        await asyncio.to_thread(self._settle)
        self._judge_certainty()
        for part in self._fleet.parts:
            self.wrong += [f"a process of {part.name} is left: {one}" for one in part.left()]
            self.wrong += [f"in the log of {part.name}: {entry[:1500]}" for entry in tracebacks(part.said())]

    def answered_again(self, first: Any, again: Any) -> None:
        """Takes what is kept of the same run, and how a run goes on that a broker has parked as it drained."""
        self.counts["answered_the_same_again"] += 1
        before, after = (one.get("result", {}).get("structuredContent", {}) for one in (first, again))
        is_parked = any(entry["code"] == "RUN_PARKED" for entry in before.get("diagnostics", []))
        if not is_parked and (before.get("result") is None or before["result"] != after.get("result")):
            super().answered_again(first, again)

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
            await asyncio.sleep(LOOK_SECONDS)

    async def _approve(self) -> None:
        while True:
            await asyncio.sleep(APPROVE_SECONDS)
            if waiting := await asyncio.to_thread(self.upgraded.heads, "parked"):
                run_id = self._chance.choice(waiting).id
                if await self.upgraded.approved(run_id):
                    # Only now: one whose client comes back in time is parked for a moment, and then is not.
                    self.books.written.add(run_id)
                    self.counts["approved"] += 1

    # ---- inside: who asks ----------------------------------------------------------------------------

    async def _requests(self) -> None:
        while not self._over.is_set():
            await self._pause()
            await self._request()

    async def _session(self) -> None:
        """Asks in sessions, and begins a new one when its own has ended."""
        headers: dict[str, str] = {}
        while not self._over.is_set():
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_SECONDS))
            self.counts["requests"] += 1
            self.counts["requests_in_sessions"] += 1
            number = self.counts["requests"]
            arguments = {"code": IN_SESSION.replace("RUN", str(number))}
            status, data = int(http.client.NOT_FOUND), b""
            while status == http.client.NOT_FOUND:
                if not headers:
                    headers = await self._opened()
                status, _, data = await self.upgraded.asked(
                    "tools/call", {"name": TOOL, "arguments": arguments}, headers
                )
                if status == http.client.NOT_FOUND:
                    self.counts["sessions_ended"] += 1
                    headers = {}
            if status == http.client.OK:
                self.books.take(message_in(data))
            elif status == 0:
                self.counts["cut_off"] += 1
            else:
                self.wrong.append(f"request {number} in a session was answered {status}: {data[:500]!r}")

    async def _opened(self) -> dict[str, str]:
        status, session, data = await self.upgraded.asked("initialize", INITIALIZE["params"], MCP_HEADERS)
        if status != http.client.OK:
            self.wrong.append(f"a session was not opened: {status} {data[:500]!r}")
            return {}
        self.counts["sessions"] += 1
        version = INITIALIZE["params"]["protocolVersion"]
        headers = {**MCP_HEADERS, "Mcp-Session-Id": session, "MCP-Protocol-Version": version}
        await self.upgraded.asked("notifications/initialized", {}, headers, None)
        return headers

    # ---- inside: what is judged ----------------------------------------------------------------------

    def _judge_rows(self) -> None:
        rows = self._fleet.database.rows
        for what, statement in {
            "a run that is not over": "SELECT id, state, owner FROM cellblock.runs WHERE state != 'ended'",
            "a lock": "SELECT * FROM pg_locks WHERE locktype = 'advisory'",
            "a session": "SELECT query FROM pg_stat_activity WHERE application_name = 'cellblock'",
        }.items():
            self.wrong += [f"{what} is left: {row}" for row in rows(statement)]

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
            await asyncio.to_thread(fleet.start)
            upgrade = Upgrade(fleet, programs, order, seed)
            try:
                await upgrade.run(seconds)
            finally:
                if logs is not None and (upgrade.wrong or sys.exc_info()[0] is not None):
                    for part in fleet.parts:
                        (logs / f"{order} {part.name}.log").write_text(part.said(), "utf-8")
        left = psutil.Process().children(recursive=True)
        upgrade.wrong += [f"a process is left: {one}" for one in psutil.wait_procs(left, ORPHAN_SECONDS)[1]]
        return upgrade


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
    schema = json.loads((before.parents[1] / "docs" / "config.schema.json").read_text("utf-8"))
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
                time.sleep(LOOK_SECONDS)
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
