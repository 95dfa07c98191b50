"""What the kernel says of a live worker: namespaces, capabilities, seccomp, root, limits; and the three settings."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker, HostUnavailable
from cellblock.app.config.load import parse_settings
from cellblock_worker.confinement import bubblewrap, confinement, selftest, syscall_lists
from cellblock_worker.confinement.confinement import IsolationUnavailable
from cellblock_worker.confinement.selftest import Outcome
from cellblock_worker.launch import deno_process
from cellblock_worker.worker.run_limits import UseWatch
from support.processes import gone, workers_of
from support.waits import until
from support.worker_owner import booted, make_run, run_one, script

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")


def broker_with(folder: Path, isolation: str) -> Broker:
    section: dict[str, Any] = {"isolation": isolation, "pool": {"warm": 1}}
    return Broker(parse_settings({"cellblock": section}).with_state_dir(folder / "state"))


async def deno_of(broker: Broker) -> psutil.Process:
    """The one warm Deno of a broker's host, booted and under its limits."""
    found: list[psutil.Process] = []

    def one_that_is_booted() -> bool:
        found[:] = workers_of(broker.host_pid)
        try:
            return len(found) == 1 and found[0].rlimit(psutil.RLIMIT_NOFILE)[0] == confinement.MAX_OPEN_FILES
        except psutil.Error:
            return False

    await until(one_that_is_booted, "one worker, booted")
    return found[0]


def namespace_of(pid: int | str, namespace: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{namespace}").readlink())


def lines_of(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().splitlines()


@pytest.fixture(scope="module")
async def required(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that does not start without namespaces: this machine has them, or these tests must fail."""
    async with broker_with(tmp_path_factory.mktemp("required"), "required") as broker:
        first = await deno_of(broker)
        assert (await broker.run("globalThis.__codemode_result__ = 1")).result == 1
        await gone([first])
        yield broker


@pytest.fixture
def unchanged_choice() -> Iterator[None]:
    yield
    confinement.use_isolation("off")


@pytest.mark.parametrize("namespace", ["user", "pid", "net", "ipc", "uts", "mnt"])
async def test_a_worker_has_namespaces_of_its_own(required: Broker, namespace: str) -> None:
    others = (namespace_of("self", namespace), namespace_of(required.host_pid, namespace))
    assert namespace_of((await deno_of(required)).pid, namespace) not in others


async def test_a_worker_has_no_capability_no_new_privileges_and_a_filter(required: Broker) -> None:
    status = dict(
        line.split(":\t", 1) for line in lines_of((await deno_of(required)).pid, "status") if ":\t" in line
    )
    capabilities = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    wanted = {**dict.fromkeys(capabilities, "0" * 16), "NoNewPrivs": "1", "Seccomp": "2"}
    assert {name: status[name] for name in wanted} == wanted


async def test_the_root_of_a_worker_has_deno_and_its_libraries_and_cannot_be_written(
    required: Broker,
) -> None:
    worker = (await deno_of(required)).pid
    root = Path(f"/proc/{worker}/root")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}  # noqa: ASYNC240
    assert {name for name in files if not name.startswith(("lib", "worker/", "deno_dir/", "usr/lib"))} == {
        "deno"
    }
    mounts = lines_of(worker, "mounts")
    assert mounts and all("ro" in mount.split()[3].split(",") for mount in mounts), mounts


async def test_a_worker_has_no_network_interface_but_loopback(required: Broker) -> None:
    lines = lines_of((await deno_of(required)).pid, "net/dev")[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


async def test_the_limits_that_never_change_are_on_the_worker(required: Broker) -> None:
    limits = lines_of((await deno_of(required)).pid, "limits")
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
    async with broker_with(tmp_path, "off") as broker:
        # Before the run: its worker is killed after it, at a moment of the host's.
        worker = namespace_of((await deno_of(broker)).pid, "net")
        assert (await broker.run("globalThis.__codemode_result__ = 2")).result == 2
        assert worker == namespace_of(broker.host_pid, "net") == namespace_of("self", "net")
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
        async with broker_with(tmp_path, "required"):
            pass


@pytest.mark.usefixtures("without_namespaces")
async def test_auto_serves_on_a_machine_without_and_says_what_is_missing(tmp_path: Path) -> None:
    async with broker_with(tmp_path, "auto") as broker:
        assert (await broker.run("globalThis.__codemode_result__ = 3")).result == 3
        [hello] = broker.hosts
        assert any("No permissions" in text for text in hello.missing)


def test_required_names_the_reason(monkeypatch: pytest.MonkeyPatch, unchanged_choice: None) -> None:
    found = bubblewrap.Finding(None, "there is no bwrap", None)
    monkeypatch.setattr(bubblewrap, "try_out", lambda *_, **__: found)
    with pytest.raises(IsolationUnavailable, match="there is no bwrap"):
        confinement.use_isolation("required")


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
    open_launch = confinement.Launch([sys.executable, "-c", script])
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
