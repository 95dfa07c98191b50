"""Whether runs that wait for people lose anything, or do it twice, when their daemons are killed at random.

Clients run scripts whose calls must be allowed, and the server of one call asks its user something. Some come back with
the answers, as MCP 2026-07-28 has it; others leave a durable run behind; and `cellblock runs approve` allows and
answers what waits, whoever asked. Meanwhile the daemon is killed by SIGKILL, alone or with all below it, and so are its
host and its workers; the next daemon on the same state directory goes on. The last one is not killed: there, all comes
to its end. Exit code 1 where a run that was written down has no end, a call was made twice, a script or a client was
told what is not so, an answer has come to the server twice, or to another call, or anything is left.
"""

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
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness import parser, port_told_in, say
from benchmarks.hostile.stage import STOP_BOUND_SECONDS
from cellblock.app.config.load import parse_settings
from cellblock.base.questions import ParkedQuestion
from cellblock.base.store import LocalStore
from cellblock.record.journals import open_store
from cellblock.record.rows import WAITING, Head, RunState, parked_questions
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from soak.clients import ModernClients
from soak.run_books import APPROVE, RunBooks
from soak.watch import ORPHAN_SECONDS, Orphans, adopt_orphans, by_role, files_under, tracebacks
from soak.written import drained, heads_in, response_to
from support.entries import CELLBLOCK, SERVERS, ledger, plain_server, write_config
from support.http_daemon import Daemon

CLIENTS: Final = 3
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
DRAIN_SECONDS: Final = 900.0
"""Bounds the end: each run that is left has a few parks before it, and each is allowed by a command, which takes half a
second, and minutes on a machine that leaves it nothing."""

SHOWN_MOST: Final = 20

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

    async def die(self, who: str) -> None:
        """Kills; where the daemon was among those, the next one is started."""
        if who.startswith("daemon"):
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
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            for one in (own, *([] if alone else own.children(recursive=True))):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()

    async def stop(self) -> int:
        """Ends the last daemon as a service manager does; returns its exit code."""
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

    def served(self) -> Daemon:
        """Returns the daemon that serves now, or served last."""
        assert self._process is not None
        token = (self.state / "token").read_text("ascii").strip()
        return Daemon(self._process, self._port, self.state, token)

    def heads(self, state: RunState | None = None) -> list[Head]:
        """Returns what is written down of the runs."""
        if not LocalStore(self.state).exists(JOURNAL_TABLES):
            return []
        with self.store() as store:
            return heads_in(store, state)

    def questions(self, run_id: str) -> tuple[ParkedQuestion, ...]:
        """Returns what a run waits for."""
        with self.store() as store:
            read = store.read(run_id, kinds=WAITING)
        return () if read is None or read[0].state != "parked" else parked_questions(*read)

    @contextlib.contextmanager
    def store(self) -> Generator[JournalStore]:
        """Opens what is written down."""
        section = self.settings.cellblock
        with contextlib.closing(open_store(LocalStore(self.state), section.auth, section.journal)) as store:
            yield store

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


class Clients(ModernClients):
    """Begins no run where many wait: a command ends each of their parks."""

    asks = answers_again = True

    def __init__(self, behind: Callable[[], Daemon], books: RunBooks, chance: random.Random) -> None:
        super().__init__(behind, books, chance)
        self.has_room = asyncio.Event()
        self.has_room.set()

    async def _next(self) -> None:
        await self.has_room.wait()
        await self._modern_request()


class Kills:
    """Has runs begun and allowed, kills what answers, and holds what was told against what was done.

    Args:
        folder: As for `Daemons`.
        seed: Fixes who does what, not what it meets.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.daemons = Daemons(folder)
        self.books = RunBooks()
        self.wrong, self.counts = self.books.wrong, self.books.counts
        self._chance = random.Random(seed)
        self.clients = Clients(self.daemons.served, self.books, self._chance)
        self.deaths: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Goes on for so long, and then until nothing is left."""
        adopt_orphans()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CLIENTS + APPROVERS + 1))
        with asking(self.daemons.answers) as (server, url):
            self.daemons.orphans.kept.add(server)
            self.daemons.use(url)
            await self._course(seconds)
        await self._judge_rest()
        events = [event for file in (self.daemons.ledger, self.daemons.answers) for event in ledger(file)]
        with self.daemons.store() as store:
            self.books.settle(events, heads_in(store), lambda run_id: response_to(store, run_id))

    async def _course(self, seconds: float) -> None:
        await self.daemons.start()
        until = self.clients.until = time.monotonic() + seconds
        try:
            async with asyncio.TaskGroup() as group:
                approvers = [self._approve() for _ in range(APPROVERS)]
                others = [group.create_task(work) for work in (*approvers, self._watch())]
                await asyncio.gather(self._kill(until), *(self.clients.modern() for _ in range(CLIENTS)))
                said = f"{self.deaths.total()} deaths, {self.counts['requests']} requests"
                say(f"{said}; what is left comes to its end")
                self.wrong += await drained(self.daemons.heads, DRAIN_SECONDS)
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
            (self.clients.has_room.set if len(waiting) <= LEFT_MOST else self.clients.has_room.clear)()
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
