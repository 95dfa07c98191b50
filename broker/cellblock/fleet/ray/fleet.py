"""The actors on a Ray cluster, and the plan that says what their hosts are like: brokers with the same plan share them.
One actor starts hosts where Ray has room, and ends them, as the brokers of a plan report their runs; each of the others
keeps one worker host running on the node that Ray has chosen."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Final, TypedDict

from cellblock.pool.local_host import STABLE_SECONDS, restart_pause
from cellblock_worker.host.host_config import EXIT_REFUSED, REFUSED_PREFIX
from cellblock_worker.host.host_process import EXIT_USAGE
from cellblock_worker.launch.spawning import passed_environment
from cellblock_worker.wire.keys import KeyPair, line_of, pair_of

NAMESPACE: Final = "cellblock"
"""Names the actors' namespace in Ray."""

ORPHAN_SECONDS: Final = 60.0
"""Bounds how long actors stay that nobody asks any more. A broker that was killed has been started again by then, and
the fleet, whose node has died, is back on another one, which takes Ray some 15 s."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Holds what makes the hosts of a cluster: Ray keeps it, and gives it to an actor that it starts again.

    Attributes:
        arguments: Of `python -m cellblock_worker`, without the key; nothing secret.
        secret: The secret key of all hosts.
        least: The hosts that there are at least.
        most: The hosts that there are at most.
        capacity: Runs at the same time at one host.
        resources: What Ray keeps free for one host, by its names.
        runtime_env: Ray's, for the hosts.
        shrink_seconds: How long fewer hosts must have been enough before one goes.
    """

    arguments: tuple[str, ...]
    secret: bytes = field(repr=False)
    least: int
    most: int
    capacity: int
    resources: Mapping[str, float]
    runtime_env: Mapping[str, Any]
    shrink_seconds: float

    @property
    def key(self) -> KeyPair:
        """Returns the key pair of all hosts."""
        return pair_of(self.secret)

    @property
    def name(self) -> str:
        """Returns the name of what brokers with this plan, and this version of Cellblock, share; no secret is in it."""
        said = asdict(self) | {"secret": self.key.public, "version": version("cellblock")}
        return f"hosts-{hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]}"

    @property
    def environment(self) -> dict[str, Any]:
        """Returns the option of all actors that says in which environment they are."""
        return {"runtime_env": dict(self.runtime_env)} if self.runtime_env else {}

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of a host's actor."""
        rest = dict(self.resources)
        options: dict[str, Any] = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
        if "memory" in rest:
            options["memory"] = rest.pop("memory")
        return options | self.environment | {"resources": rest}


def the_ray() -> Any:
    """Returns the module `ray`, which few installations have. Raises ImportError."""
    return importlib.import_module("ray")


FULL_SHARE: Final = 0.75
"""Sets the share of a host's places that are in use when there are as many hosts as runs need: another takes
seconds."""

REPORT_SECONDS: Final = 10.0
"""Bounds how long a broker's last report counts; it reports every second."""

REFUSED_PAUSE_SECONDS: Final = 30.0
"""Sets the pause before a host is started again that will not serve: what it lacks may have come."""

WATCH_SECONDS: Final = 1.0

LINE_BYTES: Final = 16 * 1024
"""Caps a line of a host's log that is passed on."""

_HEAD: Final = re.compile(rf"^(?:\S+ \S+ cellblock\.\w+ [A-Z]+ |{re.escape(REFUSED_PREFIX)})")
"""Finds what a host's last words begin with, as they are told: the time would make each a new one."""


class Scale:
    """Says how many hosts there should be: more at once, and fewer when fewer were enough for a while.

    Args:
        least: The hosts that there are at least.
        most: The hosts that there are at most.
        capacity: Runs at the same time at one host.
        shrink_seconds: How long fewer must have been enough.
        have: The hosts that there are already: they count as needed until now.
        now: The time of a clock, as for the methods.
    """

    def __init__(
        self, *, least: int, most: int, capacity: int, shrink_seconds: float, have: int, now: float
    ) -> None:
        self._least, self._most = least, most
        self._full = FULL_SHARE * capacity
        self._shrink_seconds = shrink_seconds
        self._reports: dict[str, tuple[float, int]] = {}
        self._needs: deque[tuple[float, int]] = deque([(now, have)])

    def note(self, broker: str, load: int, now: float) -> None:
        """Takes a broker's report: how many of its runs have a place or wait for one."""
        self._reports[broker] = (now, load)

    def leave(self, broker: str) -> None:
        """Takes note that a broker stops."""
        self._reports.pop(broker, None)

    def brokers(self, now: float) -> int:
        """Returns how many brokers there are."""
        self._reports = {
            broker: (when, load)
            for broker, (when, load) in self._reports.items()
            if now - when <= REPORT_SECONDS
        }
        return len(self._reports)

    def wanted(self, now: float) -> int:
        """Returns how many hosts there should be."""
        self.brokers(now)
        load = sum(load for _, load in self._reports.values())
        need = min(self._most, max(self._least, math.ceil(load / self._full)))
        # What is as much or more is the answer as long as the earlier one would have been.
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while now - self._needs[0][0] > self._shrink_seconds:
            self._needs.popleft()
        return self._needs[0][1]


TEND_SECONDS: Final = 0.9
"""Sets the interval of looking at the hosts, however many brokers report every second."""

ANSWER_SECONDS: Final = 1.0
"""Bounds the wait for what hosts say; one whose node is gone says nothing."""

SHARED: Final = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
"""Has Ray keep an actor by its name, whoever has made it."""


@dataclass(slots=True)
class _Host:
    handle: Any
    state: HostState | None = None
    asked: Any = None
    is_draining: bool = False


def the_fleet(plan: Plan) -> Any:
    """Returns the handle of the actor of a plan, which is started where there is none."""
    ray = the_ray()
    options = {"name": plan.name, "num_cpus": 0, "max_restarts": -1, **SHARED, **plan.environment}
    return ray.remote(Fleet).options(**options).remote(plan)


class Fleet:
    """Owns the hosts of a plan: no other starts or ends one.

    It remembers nothing: when its node is killed, Ray starts it again elsewhere, and it finds the hosts by their names.
    """

    def __init__(self, plan: Plan) -> None:
        ray = the_ray()
        self._ray = ray
        self._plan = plan
        self._me: Any = ray.get_runtime_context().current_actor
        self._heard = self._tended = time.monotonic()
        self._hosts: dict[int, _Host] = {}
        for name in ray.util.list_named_actors():
            fleet, _, number = name.rpartition("/")
            if fleet == plan.name:
                self._hosts[int(number)] = _Host(ray.get_actor(name))
        self._requested = -1
        self._said = ""
        self._scale = Scale(
            least=plan.least,
            most=plan.most,
            capacity=plan.capacity,
            shrink_seconds=plan.shrink_seconds,
            have=len(self._hosts),
            now=time.monotonic(),
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def report(self, broker: str, load: int) -> str:
        """Takes a broker's report, and says how the hosts are."""
        now = self._heard = time.monotonic()
        self._scale.note(broker, load, now)
        if now - self._tended >= TEND_SECONDS or not self._said:
            self._tended = now
            self._tend(now)
        return self._said

    def states(self) -> list[HostState]:
        """Returns the state of each host that has answered."""
        return [host.state for host in self._hosts.values() if host.state is not None]

    def leave(self, broker: str) -> None:
        """Takes note that a broker stops; with the last one all hosts end."""
        self._scale.leave(broker)
        if not self._scale.brokers(time.monotonic()):
            self._end()
            self._ray.actor.exit_actor()

    def _tend(self, now: float) -> None:
        wanted = self._scale.wanted(now)
        self._look()
        serving = [number for number, host in self._hosts.items() if not host.is_draining]
        for _ in range(wanted - len(serving)):
            self._start()
        # Those that wait for room go first, then the youngest.
        serving.sort(key=lambda number: (self._hosts[number].state is None, -number))
        for number in serving[: max(0, len(serving) - wanted)]:
            self._drain(number)
        self._request(wanted)
        self._said = self._described(wanted)

    def _start(self) -> None:
        number = min(set(range(len(self._hosts) + 1)) - self._hosts.keys())
        made = self._ray.remote(HostActor).options(
            name=f"{self._plan.name}/{number}",
            scheduling_strategy="SPREAD",
            # An answer comes while the host is told to end.
            max_concurrency=2,
            **self._plan.options,
            **SHARED,
        )
        self._hosts[number] = _Host(made.remote(self._plan))

    def _drain(self, number: int) -> None:
        host = self._hosts[number]
        if host.state is None:
            self._ray.kill(self._hosts.pop(number).handle)
            return
        host.is_draining = True
        host.handle.drain.remote()

    def _look(self) -> None:
        """Asks each host for its state. One question at a time: a host that waits for room answers when it has
        some."""
        for host in self._hosts.values():
            host.asked = host.asked or host.handle.tend.remote()
        asked = [host.asked for host in self._hosts.values()]
        if not asked:
            return
        answered, _ = self._ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS)
        for number, host in list(self._hosts.items()):
            if host.asked not in answered:
                continue
            question, host.asked = host.asked, None
            try:
                state: HostState = self._ray.get(question)
            except self._ray.exceptions.ActorDiedError:
                # It was drained, or its node is gone, or something has killed it.
                del self._hosts[number]
            except self._ray.exceptions.ActorUnavailableError:
                continue
            else:
                host.state, host.is_draining = state, host.is_draining or state["is_draining"]

    def _request(self, wanted: int) -> None:
        """Tells Ray's autoscaler for how many hosts there must be room."""
        if wanted == self._requested:
            return
        sdk: Any = importlib.import_module("ray.autoscaler.sdk")
        sdk.request_resources(bundles=[dict(self._plan.resources)] * wanted)
        self._requested = wanted

    def _described(self, wanted: int) -> str:
        hosts = list(self._hosts.values())
        states = [host.state for host in hosts if host.state is not None and not host.is_draining]
        failed = [state for state in states if state["why"]]
        without, ending = sum(host.state is None for host in hosts), sum(host.is_draining for host in hosts)
        said = f"{wanted} wanted, {len(states) - len(failed)} there"
        said += f", {without} without a node yet" if without else ""
        said += f", {ending} ending" if ending else ""
        return f"{said}; on {failed[0]['node']}: {failed[0]['why']}" if failed else said

    def _end(self) -> None:
        for host in self._hosts.values():
            self._ray.kill(host.handle)
        self._request(0)

    def _watch(self) -> None:
        while time.monotonic() - self._heard < ORPHAN_SECONDS:
            time.sleep(TEND_SECONDS)
        # The hosts end by themselves: if Ray has started this actor elsewhere meanwhile, they are that one's.
        self._request(0)
        self._ray.kill(self._me, no_restart=True)


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
