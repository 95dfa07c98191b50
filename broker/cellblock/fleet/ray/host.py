"""An actor keeps one worker host running on the node that Ray has chosen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Final, TypedDict

from cellblock.fleet.ray.plan import ORPHAN_SECONDS, Plan, the_ray
from cellblock.pool.local_host import STABLE_SECONDS, restart_pause
from cellblock_worker.host.host_config import EXIT_REFUSED, REFUSED_PREFIX
from cellblock_worker.host.host_process import EXIT_USAGE
from cellblock_worker.launch.spawning import passed_environment
from cellblock_worker.wire.keys import line_of

REFUSED_PAUSE_SECONDS: Final = 30.0
"""Sets the pause before a host is started again that will not serve: what it lacks may have come."""

WATCH_SECONDS: Final = 1.0

LINE_BYTES: Final = 16 * 1024
"""Caps a line of a host's log that is passed on."""

_HEAD: Final = re.compile(rf"^(?:\S+ \S+ cellblock\.\w+ [A-Z]+ |{re.escape(REFUSED_PREFIX)})")
"""Finds what a host's last words begin with, as they are told: the time would make each a new one."""


class HostState(TypedDict):
    """Says what has become of a host; `why` it does not serve, if it did not last."""

    node: str
    pid: int
    why: str
    is_draining: bool


class HostActor:
    """Starts the host, and starts it again when it ends; ends itself, with the host, when nobody asks any more.

    The host gets its key by a pipe, which is also its lifeline: when this process is killed, the host ends. This actor
    has one life: Ray does not start it again, so that none can end another in its place. The fleet makes a new one.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._node: str = the_ray().util.get_node_ip_address()
        self._child: subprocess.Popen[bytes] | None = None
        self._why = ""
        self._heard = self._began = time.monotonic()
        self._draining = threading.Event()
        self._starting = threading.Lock()
        for work in (self._keep_running, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def tend(self) -> HostState:
        """Says in which state the host is, and takes note that the fleet asks."""
        self._heard = time.monotonic()
        child = self._child
        runs = child is not None and child.poll() is None
        if runs and self._heard - self._began > STABLE_SECONDS:
            self._why = ""
        return {
            "node": self._node,
            "pid": child.pid if child is not None and runs else 0,
            "why": self._why,
            "is_draining": self._draining.is_set(),
        }

    def drain(self) -> None:
        """Has the host take no more runs, and end with the last one, and this process then."""
        with self._starting:
            if not self._draining.is_set() and self._child is not None and self._child.poll() is None:
                self._child.send_signal(signal.SIGTERM)
            self._draining.set()

    def _keep_running(self) -> None:
        failures = 0
        while not self._draining.is_set():
            self._began = time.monotonic()
            try:
                code = self._run_once()
            except OSError as error:
                code, self._why = EXIT_USAGE, f"it cannot be started: {error}"
            failures = 0 if time.monotonic() - self._began > STABLE_SECONDS else failures + 2
            refused = code in (EXIT_USAGE, EXIT_REFUSED)
            self._draining.wait(REFUSED_PAUSE_SECONDS if refused else restart_pause(failures))
        os._exit(0)

    def _run_once(self) -> int:
        with self._starting:
            if self._draining.is_set():
                return 0
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "cellblock_worker", *self._plan.arguments, "--key", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Nothing of the job's environment: a credential may be among it.
                env=passed_environment(),
                cwd="/",
                start_new_session=True,
            )
        assert child.stdin is not None and child.stderr is not None
        last = ""
        with child.stdin, child.stderr:
            try:
                child.stdin.write(line_of(self._plan.key))
                child.stdin.flush()
            except BrokenPipeError:
                pass  # it has ended, and says why
            while line := child.stderr.readline(LINE_BYTES):
                last = line.decode(errors="replace").strip()
                print(last, file=sys.stderr, flush=True)
        code = child.wait()
        if code:
            self._why = f"it ended with code {code}: {_HEAD.sub('', last)}"
        return code

    def _watch(self) -> None:
        while time.monotonic() - self._heard < ORPHAN_SECONDS:
            time.sleep(WATCH_SECONDS)
        print("nobody asks for this host any more: it ends", file=sys.stderr, flush=True)
        os._exit(0)
