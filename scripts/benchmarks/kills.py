"""Whether runs that wait for people lose anything, or do it twice, when their daemons are killed at random.

Clients run scripts whose calls must be allowed, and the server of one call asks its user something. Some come back with
the answers, as MCP 2026-07-28 has it; others leave a durable run behind; and `cellblock runs approve` allows and
answers what waits, whoever asked. Meanwhile the daemon is killed by SIGKILL, alone or with all below it, and so are its
host and its workers; the next daemon on the same state directory goes on. The last one is not killed: there, all comes
to its end. Exit code 1 where a run that was written down has no end, a call was made twice, a script or a client was
told what is not so, an answer has come to the server twice, or to another call, or anything is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from benchmarks.client import META, TOOL, message_in, request_of, send
from benchmarks.harness import parser, port_told_in, say
from benchmarks.hostile.stage import STOP_BOUND_SECONDS
from cellblock.app.config.load import parse_settings
from cellblock.base.questions import ParkedQuestion
from cellblock.base.store import LocalStore
from cellblock.record.journals import open_store
from cellblock.record.place import Place
from cellblock.record.rows import WAITING, Head, RunState, parked_questions
from cellblock.record.store import JournalStore
from cellblock.record.views import response_in
from soak.run_books import APPROVE, ASKED, NO_RUN_WAITS, RunBooks, script
from soak.watch import ORPHAN_SECONDS, Orphans, adopt_orphans, by_role, files_under, tracebacks
from support.entries import CELLBLOCK, SERVERS, ledger, plain_server, write_config

CLIENTS: Final = 3
PAUSE_SECONDS: Final = 0.7
"""Passes before a client's next request, or its return with answers, on average."""

APPROVERS: Final = 2
APPROVE_SECONDS: Final = 0.3
"""Passes between two commands of one that allow what waits."""

LEFT_MOST: Final = 20
"""Bounds the runs that wait while clients begin others: a command ends each of their parks, in half a second."""

LIFE_SECONDS: Final = (1.0, 6.0)
"""Bounds the time from the start of a daemon, or the last death below it, to the next death."""

DEATHS: Final = {"daemon and all below it": 4, "daemon": 4, "host": 2, "worker": 2}
"""Says who dies, by how often."""

START_SECONDS: Final = 300.0
ANSWER_SECONDS: Final = 90.0
DRAIN_SECONDS: Final = 900.0
"""Bounds the end: each run that is left has a few parks before it, and each is allowed by a command, which takes half a
second, and minutes on a machine that leaves it nothing."""

SHOWN_MOST: Final = 20

FORMS: Final[Mapping[str, Any]] = {"elicitation": {"form": {}}}
SECTION: Final[Mapping[str, Any]] = {
    "policy": {"default": {"approve": APPROVE}},
    "auth": {"keyring": "off"},
    "typecheck": "off",
    "pool": {"warm": 1, "capacity": 4},
}


@contextlib.contextmanager
def asking(file: Path) -> Generator[tuple[int, str]]:
    """Serves what asks, over HTTP: each call has a session that says whose it is. Gives the process and the address."""
    words = [
        sys.executable,
        "-I",
        str(SERVERS / "asking_server.py"),
        "http",
        "--older",
        "--ledger",
        str(file),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline().split()[1])}/mcp"
        finally:
            # Sessions of killed daemons hold it.
            process.kill()


class Daemons:
    """Serves one state directory by one daemon after the other. Owns their processes.

    Args:
        folder: An empty one with a short path.
    """

    def __init__(self, folder: Path) -> None:
        self.state, self.ledger, self.answers = (
            folder / "s",
            folder / "ledger.jsonl",
            folder / "answers.jsonl",
        )
        self._folder = folder
        self.use("http://127.0.0.1:9/mcp")
        self.log = folder / "daemon.log"
        self.private = [folder / name for name in ("tmp", "home")]
        self.orphans = Orphans()
        self.up = asyncio.Event()
        self._port = 0
        self._process: Process | None = None
        for one in self.private:
            one.mkdir()

    def use(self, url: str) -> None:
        """Takes the address of the server that asks."""
        servers = {"ledger": plain_server("--ledger", self.ledger), "asking": {"url": url}}
        self.config = write_config(self._folder, servers, **SECTION)
        self.settings = parse_settings(json.loads(self.config.read_text("utf-8")))

    async def start(self) -> None:
        """Starts the next daemon. Raises RuntimeError: It does not serve."""
        log = self.log.with_name("start.log")
        with log.open("wb") as file:
            self._process = await self._spawned("serve", "--http", "127.0.0.1:0", stdout=DEVNULL, stderr=file)
        self._port = await asyncio.to_thread(port_told_in, log, START_SECONDS)
        self.up.set()

    async def die(self, who: str) -> None:
        """Kills; where the daemon was among those, the next one is started."""
        assert self._process is not None
        if who.startswith("daemon"):
            self.up.clear()
            self.kill(alone=who == "daemon")
            await self._process.wait()
            self._keep_log()
            await self.start()
        else:
            for victim in by_role(psutil.Process(self._process.pid)).get(who, []):
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()

    def kill(self, *, alone: bool = False) -> None:
        """Kills the daemon, and all below it."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            for one in (own, *([] if alone else own.children(recursive=True))):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()

    async def stop(self) -> int:
        """Ends the last daemon as a service manager does; returns its exit code."""
        assert self._process is not None
        self.up.clear()
        self._process.terminate()
        async with asyncio.timeout(STOP_BOUND_SECONDS):
            code = await self._process.wait()
        self._keep_log()
        return code

    async def command(self, *words: str) -> tuple[int | None, str]:
        """Returns the exit code of a command, and what it has said of errors."""
        process = await self._spawned(*words, stdout=DEVNULL, stderr=PIPE)
        _, errors = await process.communicate()
        return process.returncode, errors.decode()

    async def said(self, arguments: Mapping[str, Any], *, forms: bool, **more: Any) -> Any:
        """Makes one request on a connection of its own; returns its answer, or None where there is none."""
        await self.up.wait()
        meta: dict[str, Any] = {**META, "io.modelcontextprotocol/clientCapabilities": FORMS if forms else {}}
        body = request_of(TOOL, arguments, meta=meta, **more)
        try:
            token = (self.state / "token").read_text("ascii").strip()
            _, data = await asyncio.to_thread(
                send, self._port, token, body, address="127.0.0.1", bound=ANSWER_SECONDS
            )
            return message_in(data)
        except (OSError, HTTPException, ValueError):
            return None

    def heads(self, state: RunState | None = None) -> list[Head]:
        """Returns what is written down of the runs."""
        found = list[Head]()
        if not self._place.exists():
            return found
        with contextlib.closing(self._store()) as store:
            while page := store.heads(state=state, before=found[-1].began if found else None):
                found += page
        return found

    def questions(self, run_id: str) -> tuple[ParkedQuestion, ...]:
        """Returns what a run waits for."""
        with contextlib.closing(self._store()) as store:
            read = store.read(run_id, kinds=WAITING)
        return () if read is None or read[0].state != "parked" else parked_questions(*read)

    def response(self, run_id: str) -> Any:
        """Returns the response of a run that has ended; None where none is written down."""
        with contextlib.closing(self._store()) as store:
            read = store.read(run_id)
        found = None if read is None else response_in(read[1])
        return None if found is None else found.decoded().as_json()

    @property
    def _place(self) -> Place:
        return Place(LocalStore(self.state), self.settings.cellblock.auth)

    def _store(self) -> JournalStore:
        return open_store(self._place, self.settings.cellblock.journal)

    def _keep_log(self) -> None:
        with self.log.open("ab") as file:
            file.write(self.log.with_name("start.log").read_bytes())

    async def _spawned(self, *words: str, **streams: Any) -> Process:
        tmp, home = map(str, self.private)
        process = await asyncio.create_subprocess_exec(
            *(str(CELLBLOCK), *words, "--config", str(self.config), "--state-dir", str(self.state)),
            stdin=DEVNULL,
            env={"PATH": os.environ["PATH"], "TMPDIR": tmp, "HOME": home},
            **streams,
        )
        self.orphans.kept.add(process.pid)
        return process


class Served(Protocol):
    """Answers the clients of a campaign, and shows what is written down."""

    ledger: Path

    async def said(self, arguments: Mapping[str, Any], *, forms: bool, **more: Any) -> Any:
        """Makes one request on a connection of its own; returns its answer, or None where there is none."""
        ...

    def heads(self, state: RunState | None = None) -> list[Head]:
        """Returns what is written down of the runs."""
        ...

    def response(self, run_id: str) -> Any:
        """Returns the response of a run that has ended; None where none is written down."""
        ...


class Campaign:
    """Has runs begun and allowed, and holds what was told against what was done.

    Args:
        served: Who answers.
        seed: Fixes who does what, not what it meets.
        asks: Whether the scripts call a server that asks, too.
    """

    def __init__(self, served: Served, seed: int, *, asks: bool = False) -> None:
        self.served = served
        self.books = RunBooks()
        self.wrong: list[str] = self.books.wrong
        self.counts: Counter[str] = self.books.counts
        self._chance = random.Random(seed)
        self._asks = asks

    def answered_again(self, first: Any, again: Any) -> None:
        """Takes the answer to a word that was answered already."""
        self.wrong.append(f"a word is good twice: {again}, behind {first}")

    # ---- inside: who acts ----------------------------------------------------------------------------

    async def _client(self, until: float) -> None:
        while time.monotonic() < until:
            await self._pause()
            await self._request()

    async def _request(self) -> None:
        """One request of a client to its one answer."""
        self.counts["requests"] += 1
        forms = self._chance.random() < 0.7
        durable = not forms or self._chance.random() < 0.5
        run = self.counts["requests"]
        arguments = {"code": script(run, asks=self._asks), "durable": durable}
        message = await self.served.said(arguments, forms=forms)
        word, back = None, dict[str, Any]()
        while message is None or message.get("result", {}).get("resultType") == "input_required":
            if message is None and word is None:
                # Sent again, it is another request: nobody knows that it was this one.
                self.counts["cut_off"] += 1
                return
            if message is not None:
                word, asked = message["result"]["requestState"], message["result"].get("inputRequests", {})
                answers = {key: self._accepted(one, f"{run}/{ASKED}") for key, one in asked.items()}
                back = {"requestState": word, "inputResponses": answers}
                await self._pause()
            message = await self.served.said(arguments, forms=forms, **back)
        self.books.take(message)
        if word is not None and self._chance.random() < 0.2:
            again = await self.served.said(arguments, forms=forms, **back)
            if again is not None and NO_RUN_WAITS not in again.get("error", {}).get("message", ""):
                self.answered_again(message, again)

    def _accepted(self, asked: Mapping[str, Any], call: str) -> dict[str, Any]:
        """The answer to one question: yes, and where a server asks a name that nobody else is given."""
        is_form = "name" in asked["params"]["requestedSchema"]["properties"]
        return {"action": "accept", "content": {"name": self.books.name(call)} if is_form else {}}

    async def _drained(self) -> None:
        until = time.monotonic() + DRAIN_SECONDS
        while left := [head for head in await asyncio.to_thread(self.served.heads) if head.ended is None]:
            if time.monotonic() > until:
                self.wrong += [f"run {head.id} is left: {head}" for head in left]
                return
            await asyncio.sleep(0.5)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / PAUSE_SECONDS))

    def _settle(self, *more: Path) -> None:
        """Judges all, at the end, by the servers' ledgers."""
        events = [event for file in (self.served.ledger, *more) for event in ledger(file)]
        self.books.settle(events, self.served.heads(), self.served.response)


class Kills(Campaign):
    """Kills what answers its clients.

    Args:
        folder: As for `Daemons`.
        seed: As for `Campaign`.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.daemons = Daemons(folder)
        super().__init__(self.daemons, seed, asks=True)
        self.deaths: Counter[str] = Counter()
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def run(self, seconds: float) -> None:
        """Goes on for so long, and then until nothing is left."""
        adopt_orphans()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CLIENTS + APPROVERS + 1))
        with asking(self.daemons.answers) as (server, url):
            self.daemons.orphans.kept.add(server)
            self.daemons.use(url)
            await self._course(seconds)
        await self._judge_rest()
        self._settle(self.daemons.answers)

    async def _course(self, seconds: float) -> None:
        await self.daemons.start()
        until = time.monotonic() + seconds
        try:
            async with asyncio.TaskGroup() as group:
                approvers = [self._approve() for _ in range(APPROVERS)]
                others = [group.create_task(work) for work in (*approvers, self._watch())]
                await asyncio.gather(self._kill(until), *(self._client(until) for _ in range(CLIENTS)))
                said = f"{self.deaths.total()} deaths, {self.counts['requests']} requests"
                say(f"{said}; what is left comes to its end")
                await self._drained()
                for task in others:
                    task.cancel()
        except BaseException:
            self.daemons.kill()
            raise
        if code := await self.daemons.stop():
            self.wrong.append(f"the last daemon ended with code {code}")

    def figures(self) -> dict[str, Any]:
        """Gives what a report needs."""
        return {"deaths": dict(self.deaths), **self.counts, "wrong": self.wrong}

    # ---- inside: who acts ----------------------------------------------------------------------------

    async def _request(self) -> None:
        await self._has_room.wait()
        await super()._request()

    async def _kill(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self._chance.uniform(*LIFE_SECONDS))
            who = self._chance.choices(list(DEATHS), list(DEATHS.values()))[0]
            self.deaths[who] += 1
            await self.daemons.die(who)

    async def _approve(self) -> None:
        """Allows and answers what waits, one run after the other."""
        while True:
            await asyncio.sleep(APPROVE_SECONDS)
            waiting = await asyncio.to_thread(self.daemons.heads, "parked")
            (self._has_room.set if len(waiting) <= LEFT_MOST else self._has_room.clear)()
            if waiting:
                self.books.written |= {head.id for head in waiting}
                run_id, words = self._chance.choice(waiting).id, list[str]()
                for question in await asyncio.to_thread(self.daemons.questions, run_id):
                    if question.is_of_server:
                        form = {"name": self.books.name(json.loads(question.input)["id"])}
                        words = ["--call", str(question.number), "--answer", json.dumps(form)]
                code, errors = await self.daemons.command("runs", "approve", run_id, *words)
                self.counts["answered_by_command" if words else "approved_by_command"] += code == 0
                # Somebody else may have been faster.
                if code not in (0, 2) or "Traceback" in errors:
                    self.wrong.append(f"`runs approve` ended with {code}: {errors}")

    async def _watch(self) -> None:
        while True:
            self.daemons.orphans.reap()
            await asyncio.sleep(1.0)

    async def _judge_rest(self) -> None:
        until = time.monotonic() + ORPHAN_SECONDS
        me = psutil.Process()
        while (left := me.children(recursive=True)) and time.monotonic() < until:
            self.daemons.orphans.reap()
            await asyncio.sleep(0.1)
        self.wrong += [f"a process is left: {one}" for one in (*left, *self.daemons.orphans.leaked.values())]
        files = files_under(*self.daemons.private, self.daemons.state / "run")
        self.wrong += [f"a file is left: {file}" for file in sorted(files)]
        self.wrong += [
            f"in the log: {entry[:1500]}" for entry in tracebacks(self.daemons.log.read_text("utf-8"))
        ]


async def measure(seconds: float, seed: int) -> dict[str, Any]:
    """Returns the figures; `wrong` says what is."""
    # Short, so that the daemon's socket fits under it.
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        campaign = Kills(Path(name), seed)
        await campaign.run(seconds)
        return campaign.figures()


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    options = parser("kills", __doc__)
    options.add_argument("--seconds", type=float, default=120, help="of deaths (default 120)")
    options.add_argument("--seed", type=int, default=1, help="fixes who does what, not what it meets")
    options.add_argument("--json", type=Path, help="write the figures there, too")
    found = options.parse_args(arguments)
    figures = asyncio.run(measure(found.seconds, found.seed))
    wrong = figures.pop("wrong")
    print("\n".join([f"{name}: {value}" for name, value in figures.items()] + wrong[:SHOWN_MOST]))
    if found.json is not None:
        found.json.write_text(json.dumps({**figures, "wrong": wrong}), "utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
