"""Proves at a host's start that a process made like a worker is refused every way out.

`sandbox/selftest.ts` tries them; nothing of the sandbox's hygiene is in force there. A host whose worker gets out does
not serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from typing import Any, Final, NamedTuple, cast

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.deno_process import DenoProcess
from cellblock_worker.launch.launching import Launcher, SpawnRequest
from cellblock_worker.launch.spawning import REAP_BOUND_SECONDS

BOUND_SECONDS: Final = 20.0
"""Bounds the whole test, which takes about 0.2 s; each attempt has 2 s of its own."""

MIN_ATTEMPTS: Final = 20
"""Bounds the number of outcomes from below: fewer mean that the test itself did not run."""

ALLOWED: Final = "ALLOWED"

NO_ROOM: Final = ", as `ulimit -v` leaves Deno too little address space (set it to unlimited)"


class SelfTestFailed(RuntimeError):
    """Tells that a way out is open, or that the test gave no outcome; the text says which."""


class SelfTestNotMade(RuntimeError):
    """Tells that the test has not been made: the machine is too busy for it, or lacks something now. Another start may
    make it."""


class Outcome(NamedTuple):
    """An outcome tells how the process ended, what it wrote to stdout, and the last that it wrote to stderr."""

    returncode: int
    output: bytes
    complaints: bytes

    @property
    def stderr_text(self) -> str:
        """Returns the beginning of what the process wrote to its stderr, for a message."""
        return self.complaints.decode("utf-8", "replace").strip("# \n")[:300]


class _Ending:
    """Collects what a process writes until it has ended (ProcessEvents)."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.returncode: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_output(self, data: bytes) -> None:
        self.output += data

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        if not self.returncode.done():
            self.returncode.set_result(returncode)


async def run_once(order: SpawnRequest, bound: float, launcher: Launcher | None = None) -> Outcome:
    """Starts a process whose standard input is empty, and waits for its end.

    Args:
        order: Closed here.
        bound: Longest time in seconds; past it, or when the caller is cancelled, the process is killed.
        launcher: Starts it, one that is in the jail where the order is for one; None: it is started from this process.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It was killed.
    """
    ending = _Ending()
    try:
        process = DenoProcess(launcher or Launcher(alone=True), order, ending, max_unsent_bytes=0)
    finally:
        order.close()
    process.close_input()
    try:
        async with asyncio.timeout(bound):
            returncode = await asyncio.shield(ending.returncode)
    except (TimeoutError, asyncio.CancelledError):
        process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_BOUND_SECONDS):
                await asyncio.shield(ending.returncode)
        raise
    if process.trouble is not None:
        raise process.trouble
    return Outcome(returncode, bytes(ending.output), process.stderr_tail)


async def run_selftest(max_old_space_mb: int, launcher: Launcher | None = None) -> dict[str, str]:
    """Runs the self-test in a process made like a worker. Returns what was tried and how each was refused.

    Args:
        max_old_space_mb: As for `confinement.launch`.
        launcher: Starts workers; in its jail, where it has one, the test is made too. None: in a bubblewrap of its own.

    Raises:
        SelfTestFailed: The host must not serve.
        SelfTestNotMade: The host cannot serve now.
    """
    try:
        launcher = launcher or Launcher(alone=True)
        launcher.open()
        order = confinement.launch(max_old_space_mb, confinement.SELFTEST_SCRIPT, jail=launcher.jail)
        done = await run_once(order, BOUND_SECONDS, launcher=launcher)
    except TimeoutError:
        raise SelfTestNotMade(f"the self-test did not end within {BOUND_SECONDS:g} s") from None
    except (FileNotFoundError, PermissionError) as error:
        # What is not there at one start is not there at the next.
        raise SelfTestFailed(f"the self-test cannot be started: {error}") from None
    except OSError as error:
        raise SelfTestNotMade(f"the self-test cannot be started: {error}") from None
    return judge(done)


def judge(done: Outcome) -> dict[str, str]:
    """Returns the outcomes, if all attempts were made and every one was refused. Raises SelfTestFailed."""
    try:
        outcomes: object = json.loads(done.output)
    except ValueError:
        outcomes = None
    if not isinstance(outcomes, dict):
        bounded = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        why = f"the self-test gave no outcome{NO_ROOM if bounded else ''}"
        raise SelfTestFailed(f"{why}: {done.stderr_text or 'it said nothing'}")
    found = {str(name): str(outcome) for name, outcome in cast("dict[Any, Any]", outcomes).items()}
    if len(found) < MIN_ATTEMPTS:
        raise SelfTestFailed(f"the self-test made only {len(found)} attempts")
    if open_ways := [name for name, outcome in found.items() if outcome == ALLOWED]:
        raise SelfTestFailed(f"a worker is not confined: {', '.join(open_ways)}")
    return found
