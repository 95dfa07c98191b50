"""A machine that fails around a running broker: each run still has one response, each call is made at most once, and
capacity comes back by itself."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import deno
import psutil
import pytest

from cellblock import Broker
from cellblock_worker.confinement import confinement
from cellblock_worker.confinement.cgroup import HOST_PREFIX
from support.brokers import host_of, ready
from support.entries import CELLBLOCK, plain_server, recorded, settings
from support.processes import gone, workers_of
from support.responses import error_of, succeeded
from support.waits import until, warmed, within

pytestmark = [
    pytest.mark.real_host,
    pytest.mark.thorough,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the faults are made with Linux's means"),
]

TWENTY_CALLS = """
    import { echo } from "@codemode/servers/plain";
    for (let number = 0; number < 20; number++) {
        await echo({ number });
        // So that its host can be stopped in their midst.
        await new Promise((done) => setTimeout(done, 50));
    }
    globalThis.__codemode_result__ = "all";
"""
IN_A_CALL = """
    import { echo, never } from "@codemode/servers/plain";
    await echo({});
    await never({});
"""
RECOVERY_BOUND_SECONDS = 120.0
"""Recovery takes under a second on a quiet machine; here it is only asked whether it comes."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = settings(
        tmp_path,
        {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")},
        pool={"warm": 1},
    )
    async with ready(config) as started:
        yield started


async def works(broker: Broker) -> None:
    code = "globalThis.__codemode_result__ = 6 * 7;"
    assert succeeded(await within(broker.run(code), RECOVERY_BOUND_SECONDS)) == 42


async def works_again(broker: Broker) -> None:
    """A script runs, at the latest after some that were told that no worker could be had."""

    async def tries() -> None:
        while (response := await broker.run("globalThis.__codemode_result__ = 42;")).result != 42:
            assert response.diagnostics[0].code == "WORKER_UNAVAILABLE", response.as_json()
            await asyncio.sleep(0.1)

    await within(tries(), RECOVERY_BOUND_SECONDS)


# ---- the host, and the wire to it -------------------------------------------------------------------------


async def test_a_host_that_is_stopped_for_a_while_loses_and_repeats_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    host = host_of(broker)
    run = asyncio.create_task(broker.run(TWENTY_CALLS))
    await until(lambda: recorded(tmp_path / "ledger.jsonl", tool="echo") >= 3, "some calls")
    host.suspend()
    await asyncio.sleep(1.0)
    assert not run.done()
    host.resume()
    assert succeeded(await within(run)) == "all"
    assert recorded(tmp_path / "ledger.jsonl", tool="echo") == 20
    assert broker.host_pid == host.pid


def wires() -> list[socket.socket]:
    """Copies of this process's accepted connections from worker hosts; the caller closes them."""
    found: list[socket.socket] = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # the descriptor of this very listing
        try:
            copy.getpeername()
            ours = copy.family == socket.AF_UNIX and str(copy.getsockname()).endswith("hosts.sock")
        except OSError:
            ours = False  # it only listens
        if ours:
            found.append(copy)
        else:
            copy.close()
    return found


async def test_a_cut_connection_ends_its_runs_once_and_a_new_host_serves(
    broker: Broker, tmp_path: Path
) -> None:
    host = host_of(broker)
    run = asyncio.create_task(broker.run(IN_A_CALL))
    await until(lambda: recorded(tmp_path / "ledger.jsonl", tool="never") == 1, "a call in flight")
    processes = [host, *workers_of(host.pid)]
    cut = wires()
    assert cut
    for wire in cut:
        wire.shutdown(socket.SHUT_RDWR)
        wire.close()
    found = error_of(await within(run), "HOST_LOST")
    assert "1 completed, 1 in flight (may have run), 0 not started" in found.message
    await gone(processes)
    await works(broker)
    assert broker.host_pid != host.pid
    assert (
        recorded(tmp_path / "ledger.jsonl", tool="echo"),
        recorded(tmp_path / "ledger.jsonl", tool="never"),
    ) == (1, 1)


async def test_a_socket_file_that_is_removed_is_made_anew_for_the_next_host(broker: Broker) -> None:
    """As cleaners of temporary directories do."""
    connected = wires()
    folder = Path(connected[0].getsockname()).parent
    for wire in connected:
        wire.close()
    shutil.rmtree(folder)
    await works(broker)  # what is connected stays connected
    host_of(broker).kill()
    await until(lambda: not broker.hosts, "the death is noticed")
    await works(broker)
    assert folder.stat().st_mode & 0o777 == 0o700


# ---- no descriptor, no process, no space ------------------------------------------------------------------


@contextmanager
def no_descriptors(host: psutil.Process) -> Generator[None]:
    """The warm worker may still be given limits, or not: a run has its result or is not started."""
    limits = host.rlimit(psutil.RLIMIT_NOFILE)
    host.rlimit(psutil.RLIMIT_NOFILE, (host.num_fds(), limits[1]))
    try:
        yield
    finally:
        host.rlimit(psutil.RLIMIT_NOFILE, limits)


@contextmanager
def no_processes(host: psutil.Process) -> Generator[None]:
    """RLIMIT_NPROC does not bind root, so it is the host's own cgroup that refuses."""
    folders = (Path("/sys/fs/cgroup", root) for root in ("pids", "unified", ""))
    caps = [file for folder in folders for file in folder.rglob(f"{HOST_PREFIX}*/pids.max")]
    own = [file for file in caps if str(host.pid) in file.with_name("cgroup.procs").read_text().split()]
    if not own:
        pytest.skip("no pids cgroup can be made here")
    usual = own[0].read_text()
    own[0].write_text("1")
    try:
        yield
    finally:
        own[0].write_text(usual)


@pytest.mark.parametrize(
    ("lacking", "said"),
    [(no_descriptors, "Too many open files"), (no_processes, "cannot spawn a worker")],
    ids=["no descriptors", "no processes"],
)
async def test_a_host_that_lacks_something_says_so_and_serves_again_when_it_has_it(
    broker: Broker, lacking: Callable[[psutil.Process], AbstractContextManager[None]], said: str
) -> None:
    await warmed(broker)
    host = host_of(broker)
    with lacking(host):
        responses = [await within(broker.run("globalThis.__codemode_result__ = 1;"))]
        while responses[-1].ok:
            assert len(responses) < 10
            responses.append(await within(broker.run("globalThis.__codemode_result__ = 1;")))
        found = error_of(responses[-1], "WORKER_UNAVAILABLE")
        assert said in found.message and "not started" in found.message
        assert host.is_running() and broker.host_pid == host.pid
    await works_again(broker)
    assert broker.host_pid == host.pid
    await until(lambda: len(workers_of(host.pid)) == 1, "nothing but the warm worker is left")


def ran(command: Sequence[object], code: int | None = 0, **more: object) -> subprocess.CompletedProcess[str]:
    """A command that ends with this code, if one is given, and says no traceback."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=90, **more)
    assert code in (None, done.returncode) and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done


def ran_script(*prefix: object, state: Path, code: int | None) -> subprocess.CompletedProcess[str]:
    """`cellblock run -` with a state directory, started through another command."""
    words = [*prefix, CELLBLOCK, "run", "-", "--state-dir", state]
    return ran(words, code, input="globalThis.__codemode_result__ = 42;")


OUT_OF_DESCRIPTORS = """
import asyncio, json, os, resource, signal, sys
from pathlib import Path
from cellblock import Broker
from cellblock.app.config.load import parse_settings

async def main():
    config = {"cellblock": {"state_dir": sys.argv[1], "pool": {"warm": 1}}}
    async with Broker(parse_settings(config)) as broker:
        run = lambda: broker.run("globalThis.__codemode_result__ = 42")
        said = [(await run()).result]
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, usual[1]))
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        # What is there goes on without any descriptor.
        said.append((await run()).result)
        os.kill(broker.host_pid, signal.SIGKILL)
        while broker.hosts:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(run())
        await asyncio.sleep(1)
        said.append(waiting.done())
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        said.append((await waiting).result)
        print(json.dumps(said))

asyncio.run(main())
"""


async def test_a_broker_without_descriptors_serves_on_and_starts_a_host_when_it_has_some(
    tmp_path: Path,
) -> None:
    done = await asyncio.to_thread(ran, [sys.executable, "-c", OUT_OF_DESCRIPTORS, tmp_path])
    assert json.loads(done.stdout) == [42, 42, False, 42]


def test_a_broker_that_has_too_few_descriptors_to_start_says_what_to_do(tmp_path: Path) -> None:
    said = ran_script("prlimit", "--nofile=20:20", state=tmp_path, code=3).stderr
    assert "Too many open files" in said and "ulimit -n" in said


FEW_THREADS = """
import resource, sys, threading
from cellblock.app.cli.main import main

threading.stack_size(int(sys.argv[1]) << 20)
with open("/proc/self/statm") as sizes:
    there = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (there + (1 << 30), resource.RLIM_INFINITY))
if sys.argv[2] == "doctor":
    # As where RLIMIT_NPROC refuses them.
    known = resource.getrlimit
    resource.getrlimit = lambda one: (-1, -1) if one == resource.RLIMIT_AS else known(one)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("megabytes", "words", "code", "told"),
    [
        (
            100,
            ["run", "-"],
            3,
            "`ulimit -v` leaves too little for its threads (it needs 26 more). Set `ulimit -v`",
        ),
        (100, ["doctor"], 1, "no more threads are allowed (it needs 26 more). Raise `ulimit -u`"),
        (2000, ["connect"], 3, "The command was given up: no more threads are allowed. Raise `ulimit -u`"),
    ],
)
def test_too_few_threads_are_told(
    tmp_path: Path, megabytes: int, words: list[str], code: int, told: str
) -> None:
    """RLIMIT_NPROC does not bind root: it is the room for their stacks that refuses them."""
    command = [sys.executable, "-c", FEW_THREADS, megabytes, *words, "--state-dir", tmp_path / "state"]
    done = ran(command, code, stdin=subprocess.DEVNULL)
    assert told in done.stdout + done.stderr


def test_a_worker_host_whose_broker_has_ended_before_its_first_word_says_nothing() -> None:
    done = ran([sys.executable, "-I", "-m", "cellblock_worker"], 2, input="")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("megabytes", [300, 2000])
def test_an_address_space_that_is_too_small_is_told(tmp_path: Path, megabytes: int) -> None:
    done = ran_script("prlimit", f"--as={megabytes * 1_000_000}", state=tmp_path, code=3)
    assert (done.stdout, done.stderr.count("`ulimit -v`")) == ("", 1 + (megabytes == 300))
    assert ".." not in done.stderr and "no more threads" not in done.stderr


def test_another_python_runs_scripts_on_relative_folders(tmp_path: Path) -> None:
    """As in overlays (`uv run --with`): neither Deno nor the packages are in the environment of this Python."""
    root = Path(__file__).resolve().parents[2]
    folders = [root / "broker", root / "worker_runtime", Path(deno.__file__).parents[1]]
    path = os.pathsep.join(os.path.relpath(folder, tmp_path) for folder in folders)
    python = str(getattr(sys, "_base_executable", sys.executable))
    done = ran(
        [python, "-m", "cellblock", "run", "-", "--state-dir", tmp_path / "state"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONPATH": path, "HOME": str(tmp_path)},
        input="globalThis.__codemode_result__ = 42;",
    )
    assert json.loads(done.stdout)["result"] == 42


def test_a_deno_that_is_nowhere_is_told_with_the_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, found = confinement.deno_binary.__wrapped__, confinement.deno_binary()
    package, program = tmp_path / "lib/python3/site-packages/deno/__init__.py", tmp_path / "path/deno"

    def nowhere() -> str:
        raise FileNotFoundError("in no scripts")

    monkeypatch.setattr(deno, "find_deno_bin", nowhere)
    monkeypatch.setattr(deno, "__file__", str(package))
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(FileNotFoundError) as caught:
        find()
    assert all(str(place) in str(caught.value) for place in (sys.prefix, tmp_path / "bin", program.parent))
    program.parent.mkdir()
    program.symlink_to(found)
    assert find() == str(program)


FULL_DISK = """
mount -t tmpfs -o mode=700,size=64k,nr_inodes="$1" none "$2" || exit 77
mkdir -m 700 "$2/logs" "$2/run" && : > "$2/logs/host.log"
echo "Cellblock keeps its state here." > "$2/.cellblock"
dd if=/dev/zero of="$2/logs/host.log" bs=4096 2> /dev/null
shift 2
exec "$@"
"""


@pytest.mark.parametrize(("inodes", "serves"), [("100", True), ("5", False)], ids=["no block", "no inode"])
def test_a_full_disk(inodes: str, serves: bool) -> None:
    """Logs are what can be done without; a socket is not, and then it is said."""
    private = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--mount"]
    # A mount that only the command sees and that ends with it; short enough for a socket inside it.
    with tempfile.TemporaryDirectory(prefix="cellblock-test-", dir="/tmp") as state:
        command = (*private, "sh", "-c", FULL_DISK, "sh", inodes, state)
        done = ran_script(*command, state=Path(state), code=None)
    if done.returncode in (1, 77) and not done.stdout:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    if serves:
        assert json.loads(done.stdout)["result"] == 42, done.stderr
    else:
        assert done.returncode == 3 and "No space left on device" in done.stderr, done.stderr
        assert "Free space" in done.stderr
