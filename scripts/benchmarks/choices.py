"""Measures the choices that docs/decisions/ records, each against its alternative in the same run, interleaved.

Prints medians and the ratio of the medians; machines are noisy, so quote ratios.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq
import zmq.asyncio

from benchmarks.harness import in_turns, parser, ratios
from cellblock_worker.base import lifetime
from cellblock_worker.confinement import confinement
from cellblock_worker.confinement.cgroup import cgroup
from cellblock_worker.confinement.once import run_once
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire.loop_socket import LoopSocket
from cellblock_worker.worker.rehearsal import READY_FRAME

MESSAGES = 2_000
IMPORT_TWICE = """
const url = (type, text) => `data:${type};base64,${btoa(text)}`;
const started = performance.now();
await import(url(Deno.args[0], "export const a = 1;"));
Deno.stdout.writeSync(new TextEncoder().encode(String(performance.now() - started)));
"""


def spawn_seconds(argv: list[str], preexec: Callable[[], None] | None = None) -> float:
    """Wall seconds of one process from spawn to exit."""
    started = time.perf_counter()
    subprocess.run(
        argv,
        env=confinement.WORKER_ENVIRONMENT,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=preexec,
        check=True,
    )
    return time.perf_counter() - started


def compare(name: str, rounds: int, ways: dict[str, Callable[[], float]], unit: str = "ms") -> None:
    """Runs the ways in turn and prints each median and its ratio to the first."""
    ratios(name, in_turns(ways, rounds), unit)


def spawning(rounds: int) -> None:
    """How PDEATHSIG and no_new_privs get onto a worker."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.js"
        script.write_text("")
        bare = [confinement.deno_binary(), *confinement.DENO_FLAGS, str(script)]
        setpriv = ["setpriv", "--pdeathsig", "KILL", "--no-new-privs", *bare]
        guarded = lifetime.dying_with_this(bare, no_new_privs=True, empty_environment=True)
        compare(
            "spawn to exit of an empty script",
            rounds,
            {
                "no launcher": lambda: spawn_seconds(bare),
                "setpriv": lambda: spawn_seconds(setpriv),
                "setpriv, and sh asks for the parent": lambda: spawn_seconds(guarded),
                "preexec_fn (fork instead of vfork)": lambda: spawn_seconds(bare, lambda: None),
            },
        )


def isolation(rounds: int) -> None:
    """What bubblewrap, with its seccomp filter, costs a spawn."""

    def spawn(kind: confinement.Isolation) -> float:
        confinement.use_isolation(kind)
        launch = confinement.launch(256)
        started = time.perf_counter()
        try:
            subprocess.run(
                launch.command,
                env=confinement.WORKER_ENVIRONMENT,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                pass_fds=launch.fds,
                check=True,
            )
        finally:
            launch.close()
        return time.perf_counter() - started

    compare(
        "boot script, stdin closed, spawn to exit",
        rounds,
        {"isolation off": lambda: spawn("off"), "bubblewrap and seccomp": lambda: spawn("required")},
    )


async def rooms(rounds: int) -> None:
    """CPU of a worker's whole life without a script: alone, each in a bubblewrap of its own, all in one room."""
    launchers: dict[str, Launcher] = {}
    found: dict[str, list[float]] = {}
    try:
        for name in ("isolation off", "a bubblewrap for each", "one room for all"):
            confinement.use_isolation("off" if name == "isolation off" else "required")
            room = confinement.room() if name == "one room for all" else None
            launcher = launchers[name] = Launcher(room=room)
            launcher.open()
            if room is not None and launcher.room is None:
                print("rooms: none can be entered here")
                return
            found[name] = []
        for _ in range(rounds):
            for name, launcher in launchers.items():
                confinement.use_isolation("off" if name == "isolation off" else "required")
                launch = (
                    confinement.launch_in(launcher.room, 256) if launcher.room else confinement.launch(256)
                )
                before = _cpu_of_children(launcher)
                done = await run_once(launch, 60.0, READY_FRAME, launcher)
                assert done.returncode == 0, done.stderr_text
                found[name].append(_cpu_of_children(launcher) - before)
    finally:
        for launcher in launchers.values():
            launcher.close()
    ratios("boot script, stdin closed, spawn to exit: CPU, the launcher's included", found)


def _cpu_of_children(launcher: Launcher) -> float:
    """CPU seconds of this process's reaped children, and of a launcher."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    on_core = Path(f"/proc/{launcher.pid}/schedstat").read_text().split()[0]
    return used.ru_utime + used.ru_stime + int(on_core) / 1e9


def groups(rounds: int) -> None:
    """A cgroup that workers are born in, against one more for each worker: made, entered, removed."""
    caps = cgroup.Caps(2 << 30, 1000)
    membership = cgroup.enter(caps)
    moves: list[float] = []
    try:
        if not membership.paths:
            print(f"cgroups: none can be made here ({membership.missing[0]})")
            return
        argv = ["sleep", "60"]

        def spawn(own_groups: bool) -> float:
            started = time.perf_counter()
            paths = [path / "worker" for path in membership.paths] if own_groups else []
            for path in paths:
                path.mkdir()
            with subprocess.Popen(argv) as process:
                moving = time.perf_counter()
                for path in paths:
                    (path / "cgroup.procs").write_text(str(process.pid))
                moves.append(time.perf_counter() - moving)
                process.kill()
                process.wait()
            for path in paths:
                path.rmdir()
            return time.perf_counter() - started

        compare(
            f"spawn to reaped of `sleep`, in {len(membership.paths)} cgroup(s)",
            rounds * 5,
            {"born in the host's group": lambda: spawn(False), "a group of its own": lambda: spawn(True)},
        )
        print(f"  {'longest that a move held the host':46} {max(moves) * 1000:9.2f} ms")
    finally:
        membership.leave()


def first_import(rounds: int) -> None:
    """What the first import costs a worker whose DENO_DIR cannot exist, by media type."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "import.js"
        script.write_text(IMPORT_TWICE)
        argv = [confinement.deno_binary(), *confinement.DENO_FLAGS, str(script)]

        def measure(media_type: str) -> float:
            done = subprocess.run(
                [*argv, media_type], env=confinement.WORKER_ENVIRONMENT, capture_output=True, check=True
            )
            return float(done.stdout) / 1000

        compare(
            "first import of a data: module",
            rounds,
            {
                "application/javascript": lambda: measure("application/javascript"),
                "application/typescript": lambda: measure("application/typescript"),
            },
        )


def boot(rounds: int) -> None:
    """A worker's boot, to its end, against an empty script."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.js"
        script.write_text("")
        argv = confinement.plain_argv(256)
        compare(
            "spawn to exit",
            rounds,
            {
                "empty script": lambda: spawn_seconds([*argv[:-1], str(script)]),
                "boot script, stdin closed": lambda: spawn_seconds(argv),
            },
        )


async def _round_trips_loop(endpoint: str) -> float:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    done = asyncio.Event()
    left = MESSAGES

    def at_dealer(parts: list[bytes]) -> None:
        nonlocal left
        left -= 1
        if left:
            dealer.send([b"ping"])
        else:
            done.set()

    router = LoopSocket(
        context.socket(zmq.ROUTER), max_message_bytes=1024, on_message=lambda parts: router.send(parts)
    )
    dealer = LoopSocket(context.socket(zmq.DEALER), max_message_bytes=1024, on_message=at_dealer)
    router.bind(endpoint)
    dealer.connect(endpoint)
    started = time.perf_counter()
    dealer.send([b"ping"])
    await done.wait()
    taken = time.perf_counter() - started
    router.close()
    dealer.close()
    context.destroy(linger=0)
    return taken / MESSAGES


async def _round_trips_futures(endpoint: str) -> float:
    context = zmq.asyncio.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(endpoint)
    dealer.connect(endpoint)

    async def echo() -> None:
        while True:
            parts = await router.recv_multipart()
            await router.send_multipart(parts)  # pyright: ignore[reportUnknownMemberType]

    echoing = asyncio.create_task(echo())
    started = time.perf_counter()
    for _ in range(MESSAGES):
        await dealer.send_multipart([b"ping"])  # pyright: ignore[reportUnknownMemberType]
        await dealer.recv_multipart()
    taken = time.perf_counter() - started
    echoing.cancel()
    await asyncio.gather(echoing, return_exceptions=True)
    context.destroy(linger=0)
    return taken / MESSAGES


def sockets(rounds: int) -> None:
    """ROUTER and DEALER over ipc in one loop: callbacks against futures."""
    with tempfile.TemporaryDirectory() as folder:

        def run(way: Callable[[str], object], name: str) -> float:
            endpoint = f"ipc://{folder}/{name}-{os.urandom(4).hex()}"
            return asyncio.run(way(endpoint))  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

        compare(
            f"round trip, {MESSAGES} in sequence",
            max(3, rounds // 4),
            {
                "LoopSocket": lambda: run(_round_trips_loop, "loop"),
                "zmq.asyncio": lambda: run(_round_trips_futures, "futures"),
            },
            unit="µs",
        )


def main(arguments: Sequence[str]) -> int:
    """Runs every comparison. Returns the exit code."""
    arguing = parser("choices", __doc__)
    arguing.add_argument("--rounds", type=int, default=20, help="counted runs of each way (default 20)")
    rounds = arguing.parse_args(arguments).rounds
    spawning(rounds)
    boot(rounds)
    isolation(rounds)
    asyncio.run(rooms(2 * rounds))
    groups(rounds)
    first_import(max(5, rounds // 3))
    sockets(rounds)
    return 0
