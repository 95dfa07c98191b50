"""What the kernel says of a live worker: namespaces, capabilities, seccomp, root, limits; and the three settings.

And native attackers in Deno's place: what workers of one host share when they live in one jail, and what none of them
can do to another or to the host; memory that RLIMIT_DATA does not see, which its own cgroup ends and bills; and one
that means to outlive its host or to stop others' boots."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, HostUnavailable, Observer, RunResponse
from cellblock_worker.confinement import bubblewrap, confinement, selftest, syscall_lists
from cellblock_worker.confinement.bubblewrap import end_orphans
from cellblock_worker.confinement.cgroup_workers import MIB, RUN_ROOM_BYTES
from cellblock_worker.confinement.confinement import ADDRESS_ROOM_BYTES
from cellblock_worker.confinement.selftest import Outcome
from cellblock_worker.launch import deno_process
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from cellblock_worker.worker.run_limits import UseWatch
from security.native.harness import Native, attack, let_loose, steps
from support.brokers import host_of
from support.entries import settings
from support.params import mostly
from support.processes import alive, gone, launchers_of, parent_of, workers_of
from support.responses import error_of, succeeded
from support.waits import steady, until, warmed, within
from support.worker_owner import booted, make_run, run_one, script

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")


async def denos_of(broker: Broker, count: int = 1) -> list[psutil.Process]:
    """So many warm Denos of a broker's host, booted and under their limits."""
    found: list[psutil.Process] = []

    def are_booted() -> bool:
        found[:] = workers_of(broker.host_pid)
        try:
            limits = [one.rlimit(psutil.RLIMIT_NOFILE)[0] for one in found]
        except psutil.Error:
            return False
        return limits == [confinement.MAX_OPEN_FILES] * count

    await until(are_booted, f"{count} workers, booted")
    return found


def lines_of(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().splitlines()


@pytest.fixture(scope="module")
async def required(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that does not start without namespaces: this machine has them, or these tests must fail."""
    folder = tmp_path_factory.mktemp("required")
    pool = {"warm": 1, "reuse": "never"}
    async with Broker(settings(folder, isolation="required", pool=pool)) as broker:
        [first] = await denos_of(broker)
        assert (await broker.run("globalThis.__codemode_result__ = 1")).result == 1
        await gone([first])
        yield broker


@pytest.fixture
def unchanged_choice() -> Iterator[None]:
    yield
    confinement.use_isolation("off")


@pytest.mark.parametrize("namespace", ["user", "pid", "net", "ipc", "uts", "mnt"])
async def test_a_worker_has_namespaces_of_its_own(required: Broker, namespace: str) -> None:
    worker = namespaces((await denos_of(required))[0].pid, (namespace,))
    assert worker not in [namespaces(pid, (namespace,)) for pid in (os.getpid(), required.host_pid)]


async def test_a_worker_has_no_capability_no_new_privileges_and_a_filter(required: Broker) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in lines_of((await denos_of(required))[0].pid, "status")
        if ":\t" in line
    )
    capabilities = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    wanted = {**dict.fromkeys(capabilities, "0" * 16), "NoNewPrivs": "1", "Seccomp": "2"}
    assert {name: status[name] for name in wanted} == wanted


async def test_the_root_of_a_worker_has_deno_and_its_libraries_and_cannot_be_written(
    required: Broker,
) -> None:
    worker = (await denos_of(required))[0].pid
    root = Path(f"/proc/{worker}/root")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}  # noqa: ASYNC240
    assert {name for name in files if not name.startswith(("lib", "worker/", "usr/lib"))} == {"deno"}
    mounts = lines_of(worker, "mounts")
    assert mounts and all("ro" in mount.split()[3].split(",") for mount in mounts), mounts


async def test_a_worker_has_no_network_interface_but_loopback(required: Broker) -> None:
    lines = lines_of((await denos_of(required))[0].pid, "net/dev")[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


async def test_the_limits_that_never_change_are_on_the_worker(required: Broker) -> None:
    limits = lines_of((await denos_of(required))[0].pid, "limits")
    for name, value in (("core file size", 0), ("file size", 0), ("open files", confinement.MAX_OPEN_FILES)):
        [line] = [line for line in limits if line.startswith(f"Max {name}")]
        assert line.split()[-3:-1] == [str(value)] * 2


async def test_the_host_says_which_layers_are_in_force(required: Broker) -> None:
    [hello] = required.hosts
    assert any(layer.startswith("namespaces: ") for layer in hello.layers)
    assert any(layer.startswith("seccomp: no sockets") for layer in hello.layers)
    # A cgroup is not to be had everywhere, and not demanded.
    assert [text for text in hello.missing if not text.startswith("cgroup")] == []


async def test_off_runs_without_and_says_so(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path / "state", isolation="off", pool={"warm": 1})) as broker:
        # Before the run: its worker is killed after it, at a moment of the host's.
        worker = namespaces((await denos_of(broker))[0].pid, ("net",))
        assert (await broker.run("globalThis.__codemode_result__ = 2")).result == 2
        assert worker == namespaces(broker.host_pid, ("net",)) == namespaces(os.getpid(), ("net",))
        [hello] = broker.hosts
        assert any("switched off" in text for text in hello.missing)


@pytest.fixture
def without_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine makes none."""
    file = tmp_path / "bwrap"
    file.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2; exit 1\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("without_namespaces")
async def test_required_does_not_serve_on_a_machine_without(tmp_path: Path) -> None:
    with pytest.raises(HostUnavailable, match="No permissions to create a new namespace"):
        async with Broker(settings(tmp_path, isolation="required", pool={"warm": 1})):
            pass


@pytest.mark.usefixtures("without_namespaces")
async def test_auto_serves_on_a_machine_without_and_says_what_is_missing(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path / "state", isolation="auto", pool={"warm": 1})) as broker:
        assert (await broker.run("globalThis.__codemode_result__ = 3")).result == 3
        [hello] = broker.hosts
        assert any("No permissions" in text for text in hello.missing)


@pytest.mark.parametrize("isolation", ["off", "required"])
async def test_every_way_out_is_refused(isolation: Any, unchanged_choice: None) -> None:
    confinement.use_isolation(isolation)
    outcomes = await selftest.run_selftest(256)
    assert len(outcomes) >= selftest.MIN_ATTEMPTS
    assert all(outcome.startswith("refused: ") for outcome in outcomes.values())
    for family in ("network", "files", "environment", "subprocess", "foreign functions", "import", "storage"):
        assert any(name.startswith(family) for name in outcomes), family


async def test_a_worker_that_gets_out_stops_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import json; tried = {f'way {n}': 'refused: x' for n in range(25)};"
        "tried['network: connect'] = 'ALLOWED'; print(json.dumps(tried))"
    )
    open_launch = SpawnRequest([sys.executable, "-c", script], {}, guarded=True)
    monkeypatch.setattr(confinement, "launch", lambda *_, **__: open_launch)
    with pytest.raises(selftest.SelfTestFailed, match="network: connect"):
        await selftest.run_selftest(256)


@pytest.mark.parametrize("output", [b"", b"[]", b"{}", b"no json", b'{"one": "refused: x"}'])
def test_a_self_test_that_did_not_run_is_a_failure(output: bytes) -> None:
    with pytest.raises(selftest.SelfTestFailed):
        selftest.judge(Outcome(0, output, b""))


TRY_CALLS = """
import ctypes, errno, fcntl, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)

def told(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "allowed"

def returned(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")

made = socket.socketpair()
own = open(__import__("sys").executable, "rb")
for call in (
    lambda: socket.socket(socket.AF_INET),
    lambda: socket.socket(socket.AF_UNIX),
    lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM),
    lambda: returned(libc.unshare(0x10000000)),
    lambda: returned(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) if os.uname().machine == "x86_64" else -1),
    lambda: returned(libc.ptrace(0, 0, 0, 0)),
    lambda: returned(libc.prctl(1, 0)),
    lambda: fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK),
    lambda: returned(libc.inotify_init1(0)),
    lambda: mmap.mmap(-1, 4096),
    lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
    os.fork,
):
    print(told(call))
"""


def test_the_filter_for_a_deno_that_was_not_traced_refuses_what_no_worker_needs() -> None:
    filter_fd = bubblewrap.open_filter(syscall_lists.filter_program("deno", None))
    jailed = [bubblewrap.find_binary(), "--ro-bind", "/", "/", "--dev", "/dev", "--seccomp", str(filter_fd)]
    try:
        done = subprocess.run(
            [*jailed, sys.executable, "-IS", "-c", TRY_CALLS],
            capture_output=True,
            text=True,
            pass_fds=[filter_fd],
            timeout=30,
        )
    finally:
        os.close(filter_fd)
    assert done.stdout.split() == ["EPERM"] * 13, done.stderr
    # The same calls are fine outside, so it is the filter that refuses.
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close()


@pytest.fixture
def wrapped(unchanged_choice: None) -> None:
    """Workers of this very process are in bubblewrap."""
    confinement.use_isolation("required")


@pytest.mark.thorough
@pytest.mark.usefixtures("wrapped")
async def test_the_kernels_cpu_limit_is_told_as_that_in_a_namespace_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(UseWatch, "_look", lambda _: None)
    ended, _ = await run_one("for(;;){}", cpu_ms=100, timeout_ms=60_000)
    assert ended.reason == "cpu"


@pytest.mark.usefixtures("wrapped")
async def test_a_python_without_pidfd_runs_and_kills_workers_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deno_process, "HAS_PIDFD", False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)
    ended, _ = await run_one("globalThis.__codemode_result__ = 1;")
    assert ended.reason == "finished"
    made, owner = await booted()
    process = psutil.Process(made.pid)
    assert process.name() == "deno"
    made.lease(b"token", make_run(), script("for (;;);"))
    made.kill("cancelled")
    assert (await owner.end()).reason == "cancelled"
    await gone([process])


OWN = ("pid", "ipc", "uts")
SHARED = ("user", "mnt", "net")
SECRET = 0x5EC12E7
"""Key of a System V object that one worker makes, and another looks for."""


@pytest.fixture
async def beset(tmp_path: Path, native_hosts: Native) -> AsyncIterator[Broker]:
    async with Broker(settings(tmp_path, isolation="required", pool={"warm": 2, "capacity": 6})) as broker:
        yield broker


def namespaces(pid: int, names: tuple[str, ...]) -> list[str]:
    return [str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in names]


async def test_each_worker_has_its_own_pid_ipc_and_uts_namespace_and_no_more(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path, isolation="required", pool={"warm": 2})) as broker:
        first, second = await denos_of(broker, 2)
        host = broker.host_pid
        for name, one, other in zip(
            OWN, namespaces(first.pid, OWN), namespaces(second.pid, OWN), strict=True
        ):
            assert len({one, other, *namespaces(host, (name,))}) == 3, name
        assert namespaces(first.pid, SHARED) == namespaces(second.pid, SHARED)
        for name in ("user", "mnt"):
            assert namespaces(first.pid, (name,)) != namespaces(host, (name,))
        assert first.ppid() == second.ppid() == host
        # No program that is started in the jail can have a capability, whatever its child was before.
        status = Path(f"/proc/{launchers_of(host)[0].pid}/status").read_text()  # noqa: ASYNC240 - the kernel's
        assert "CapBnd:\t0000000000000000" in status
        [hello] = broker.hosts
        assert any("are each worker's own" in layer for layer in hello.layers)


async def test_who_signals_everybody_reaches_nobody(beset: Broker, native_hosts: Native) -> None:
    """kill(-1, SIGKILL) and every pid by number, beside a run that goes on."""
    native_hosts.takes(100)
    held = asyncio.Event()
    waits = steps("say here", ("sleep", 3_000), ("getpid",))
    beside = asyncio.create_task(beset.run(waits, observer=Observer(on_log=lambda _: held.set())))
    await within(held.wait())
    launchers = launchers_of(beset.host_pid)
    shots = [("kill", -1, signal.SIGKILL), *[("kill", pid, 0) for pid in range(2, 40)]]
    shots += [("kill", launcher.pid, signal.SIGKILL) for launcher in launchers]
    shots += [("kill", beset.host_pid, signal.SIGKILL)]
    fired = succeeded(await within(beset.run(steps(*shots))))
    assert isinstance(fired, list) and all(said < 0 for said in fired), fired
    assert succeeded(await within(beside))[-1] == 1
    assert all(map(alive, launchers))


@pytest.mark.parametrize("filtered", [True, False], ids=["with the filter", "without it"])
async def test_two_workers_of_a_room_find_nothing_of_each_other(
    filtered: bool, native_workers: Native
) -> None:
    """System V objects, tracing, mounts, the host's name: kept apart by the namespaces alone, too."""
    jail = confinement.jail()
    with closing(Launcher(jail=jail if filtered else jail._replace(filter=b""))) as launcher:
        maker, made = await let_loose(
            ("shmget", SECRET, 4096, 0o1666),
            ("semget", SECRET, 1, 0o1666),
            "say made",
            ("sleep", 600_000),
            launcher=launcher,
        )
        await within(made.until("says"))
        found = await attack(
            ("shmget", SECRET, 4096, 0o666),
            ("semget", SECRET, 1, 0o666),
            ("ptrace", 16, 2),
            ("mount", b"none\0", b"/\0", b"tmpfs\0", 0, 0),
            ("setns", 0, 0),
            ("chroot", b"/worker\0"),
            ("sethostname", b"x", 1),
            ("mkdir", b"/mine\0", 0o777),
            ("kill", -1, signal.SIGKILL),
            launcher=launcher,
        )
        assert all(value < 0 for value in found), found
        assert launcher.jail is not None and "ended" not in made.events
        maker.kill("cancelled")
        await made.end()


async def test_an_order_for_a_room_is_refused_where_there_is_none() -> None:
    answered: asyncio.Future[Started | OSError] = asyncio.get_running_loop().create_future()
    with closing(Launcher()) as launcher, open(os.devnull, "r+b") as nothing:  # noqa: ASYNC230, PTH123
        order = SpawnRequest(["/bin/true"], {}, in_jail=True)
        launcher.start(order, (nothing.fileno(),) * 3, answered.set_result)
        assert isinstance(await within(answered), OSError)


async def test_where_no_room_can_be_made_each_worker_gets_a_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bubblewrap is one that does not hold still, as an older one or another security module may have it."""
    real = bubblewrap.find_binary()
    assert real is not None
    stand_in = tmp_path / "bin" / "bwrap"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\ncase " $* " in *" --block-fd "*) exit 1;; esac\nexec {real} "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")
    async with Broker(settings(tmp_path / "state", isolation="required", pool={"warm": 1})) as broker:
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1"))) == 1
        [hello] = broker.hosts
        assert not any("are each worker's own" in layer for layer in hello.layers)
        assert any(layer.startswith("namespaces: user, pid") for layer in hello.layers)


BUDGET_MIB = 64
WANTED_MIB = 400
TOTAL_BYTES = 700 * MIB
"""For all workers together: four attackers that got what they want would have the kernel kill the others."""

NEIGHBOUR = """
    const held = [];
    for (let piece = 0; piece < 24; piece++) held.push(new Uint8Array(1 << 20).fill(7));
    console.log("held");
    for (;;) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        if (held.some((piece) => piece[99] !== 7)) break;
    }
"""
MAP_SHARED_ANONYMOUS = 0x21
READ_ONLY = 0
"""Private pages, which are made read-only when they are filled."""
IPC_CREAT_ALL = 0o1777

ATTACKS = {
    "shared pages": [("fill", WANTED_MIB, MAP_SHARED_ANONYMOUS)],
    "pages made read-only": [("fill", WANTED_MIB, READ_ONLY)],
    "a System V segment": [
        ("shmget", 0, WANTED_MIB * MIB, IPC_CREAT_ALL),
        ("shmat", "$0", 0, 0),
        ("touch", "$1", WANTED_MIB * MIB),
    ],
    "page tables": [("tables", WANTED_MIB)],
}


@pytest.fixture
async def capped(tmp_path: Path, native_hosts: Native) -> AsyncIterator[Broker]:
    pool = {"warm": 2, "capacity": 12, "total_memory_bytes": TOTAL_BYTES}
    async with Broker(settings(tmp_path, isolation="required", pool=pool)) as started:
        [hello] = started.hosts
        if not any("each worker has one of its own" in text and "memory" in text for text in hello.layers):
            pytest.skip(f"no memory cgroup can be made here: {hello.missing}")
        yield started


async def attacked(
    broker: Broker, attack: list[tuple[object, ...]], budget_mib: int = BUDGET_MIB
) -> RunResponse:
    """The response of a run that an attacker had; a Deno that was warm before gives only its word."""
    while True:
        response = await within(broker.run(steps(*attack), limits={"maxMemoryBytes": budget_mib * MIB}))
        if response.result != "deno":
            return response


def got(response: RunResponse) -> int | None:
    """Bytes that the attacker says it has; None when it was killed."""
    return response.result[-1] if isinstance(response.result, list) else None


async def test_four_attackers_at_once_die_and_no_neighbour_does(capped: Broker, native_hosts: Native) -> None:
    native_hosts.takes(0)
    # Those that are warm by now would be attackers.
    while succeeded(await within(capped.run(steps("getpid")))) != "deno":
        pass
    held = [asyncio.Event() for _ in range(3)]
    neighbours: list[asyncio.Task[RunResponse]] = []
    for event in held:
        observer = Observer(on_log=lambda _, event=event: event.set())
        neighbours.append(asyncio.create_task(capped.run(NEIGHBOUR, observer=observer)))
    await within(asyncio.gather(*(event.wait() for event in held)))
    native_hosts.takes(100)
    responses = await asyncio.gather(*(attacked(capped, attack) for attack in ATTACKS.values()))
    assert not any(neighbour.done() for neighbour in neighbours)
    for name, response in zip(ATTACKS, responses, strict=True):
        if (had := got(response)) is not None:
            # The filter refused it, at the first step or at some other.
            assert had < BUDGET_MIB * MIB, (name, response)
            continue
        assert "used up its memory" in error_of(response, "SANDBOX_LIMIT").message, name
        most = (BUDGET_MIB * MIB + RUN_ROOM_BYTES) + 64 * MIB
        assert BUDGET_MIB * MIB <= response.usage.peak_memory_bytes <= most, (name, response.usage)
    # Nothing refuses a process to look at its own pages.
    error_of(responses[list(ATTACKS).index("page tables")], "SANDBOX_LIMIT")
    for neighbour in neighbours:
        neighbour.cancel()
    await asyncio.gather(*neighbours, return_exceptions=True)


async def test_a_group_that_is_used_again_bills_only_its_run(capped: Broker, native_hosts: Native) -> None:
    small = await attacked(capped, [("fill", 8, READ_ONLY)])
    assert 8 * MIB <= (got(small) or 0) <= small.usage.peak_memory_bytes
    over = await attacked(capped, [("fill", 60, READ_ONLY)], budget_mib=32)
    assert "used up its memory" in error_of(over, "SANDBOX_LIMIT").message
    # What the kernel keeps in pipes would count, too; the filter refuses to make any.
    assert (got(await attacked(capped, [("pipes", 8)])) or 0) < 0
    for _ in range(4):
        again = await attacked(capped, [("getpid",)])
        assert again.usage.peak_memory_bytes < 32 * MIB, again.usage


@pytest.mark.parametrize("name", ["shared pages", "pages made read-only"])
async def test_without_a_group_its_address_space_ends_it(name: str, native_workers: Native) -> None:
    """This very process is in no group of Cellblock's."""
    [had] = await attack(*ATTACKS[name], memory_bytes=BUDGET_MIB * MIB)
    assert had <= BUDGET_MIB * MIB + ADDRESS_ROOM_BYTES


F_SETLEASE, F_WRLCK = 1024, 1

ATTEMPTS = 5
"""A host that another test starts may end the orphan first."""


@contextmanager
def lone_host(native: Native, kind: str) -> Generator[tuple[psutil.Process, psutil.Process, psutil.Process]]:
    """A process that is a host as far as its worker sees, its launcher, and the worker, which means to stay."""
    # The last words are a host's: while it has no launcher, hosts of other tests would take its worker for an orphan.
    argv = [
        sys.executable,
        "-m",
        "security.native.lone_host",
        str(native.folder),
        kind,
        "-m",
        "cellblock_worker",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as started:
        try:
            worker, launcher = map(int, started.stdout.readline().split())
            yield psutil.Process(started.pid), psutil.Process(launcher), psutil.Process(worker)
        finally:
            started.kill()


def has_lost(worker: psutil.Process, parent: int) -> bool:
    return parent_of(worker) != parent


def holds_pidfd(holder: int, pid: int) -> bool:
    with suppress(OSError):
        return any(f"Pid:\t{pid}\n" in info.read_text() for info in Path(f"/proc/{holder}/fdinfo").iterdir())
    return False


@pytest.mark.parametrize("replaced", [False, True], ids=["its own launcher", "one in its place"])
@pytest.mark.parametrize("kind", mostly(["jail"], ["jail", "bubblewrap"]))
async def test_the_launcher_ends_one_that_takes_back_pdeathsig_when_its_host_is_killed(
    kind: str, replaced: bool, native: Native
) -> None:
    with lone_host(native, kind) as (host, launcher, worker):
        if replaced:
            launcher.kill()
            await until(
                lambda: any(holds_pidfd(other.pid, worker.pid) for other in launchers_of(host.pid)),
                "another one that has been told of it",
            )
            assert alive(worker)
        host.kill()
        await until(lambda: not alive(worker), "the worker's end")


@pytest.mark.parametrize("kind", ["jail", "bubblewrap"])
async def test_the_next_host_finds_one_whose_host_and_launcher_were_killed(kind: str, native: Native) -> None:
    for _ in range(ATTEMPTS):
        with lone_host(native, kind) as (host, launcher, worker):
            assert worker.pid not in end_orphans()
            # It could make another launcher.
            host.suspend()
            launcher.kill()
            is_orphaned = partial(has_lost, worker, worker.ppid())
            host.kill()
            await until(is_orphaned, "its parent's end", pause=0.001)
            found = worker.pid in end_orphans()
            await until(lambda: not alive(worker), "its end")
            if found:
                return
    pytest.fail("it has always ended before it was looked for")


async def test_a_host_whose_launcher_was_killed_keeps_its_workers(native: Native, tmp_path: Path) -> None:
    """While the host cannot yet have noticed, and at any time after."""
    async with Broker(settings(tmp_path, isolation="required", pool={"warm": 2, "capacity": 2})) as broker:
        await warmed(broker)
        host = host_of(broker)
        workers = await steady(lambda: workers_of(host.pid), "warm workers")
        assert workers
        killed = launchers_of(host.pid)
        host.suspend()
        for launcher in killed:
            launcher.kill()
        await until(lambda: not launchers_of(host.pid), "the end of its launchers")
        assert not {worker.pid for worker in workers} & set(end_orphans())
        host.resume()
        await until(lambda: launchers_of(host.pid), "another one, though nothing is ordered")
        assert all(map(alive, workers))


async def test_no_file_that_others_boot_from_can_be_leased(native_workers: Native) -> None:
    prefix = confinement.launch(64).command
    inside = [prefix[at + 2] for at, word in enumerate(prefix) if word == "--ro-bind"]
    files = [path for path in inside if path not in (bubblewrap.BUNDLE_INSIDE, "/native")]
    files += [
        f"{bubblewrap.BUNDLE_INSIDE}/{name}" for name in (confinement.BOOT_SCRIPT, confinement.IMPORT_MAP)
    ]
    assert len(files) >= 5
    lines: list[tuple[object, ...]] = []
    for number, file in enumerate(files):
        lines.append(("openat", -100, file.encode(), os.O_RDONLY))
        lines.append(("fcntl", f"${2 * number}", F_SETLEASE, F_WRLCK))
    said = await attack(*lines)
    for file, opened, leased in zip(files, said[::2], said[1::2], strict=True):
        assert opened > 2, file
        assert leased < 0, f"{file} was leased"
    # It has all of them open still, and another one boots.
    assert await attack("getpid") == [1]
