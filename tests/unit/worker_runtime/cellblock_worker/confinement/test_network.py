"""A process that leaves the network: with and without rights, not where it must not, and never half."""

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from cellblock_worker.confinement import bubblewrap, confinement

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")

BOUND = 60.0
NOBODY = 65534

PRELUDE = """
import ctypes, os, socket, sys, threading, time
from pathlib import Path
from cellblock_worker.base import lifetime
from cellblock_worker.confinement import network

def state():
    names = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "user")]
    return [*names, os.getuid(), os.getgid()]

def become_nobody():
    # As a program that nobody has started: what has changed its user belongs to root in /proc.
    os.setgroups([])
    os.setgid({nobody})
    os.setuid({nobody})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)

def reaches(port):
    with socket.socket() as made:
        made.settimeout(5)
        return made.connect_ex(("127.0.0.1", port)) == 0

before = state()
""".replace("{nobody}", str(NOBODY))


def say(program: str, *arguments: str) -> list[str]:
    """What a process says that runs this, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def possible() -> None:
    """Skips where bubblewrap cannot make such a namespace either."""
    found = bubblewrap.try_out(confinement.deno_binary(), str(confinement.BUNDLE_DIR))
    if found.prefix is None:
        pytest.skip(found.reason)


@pytest.mark.parametrize("become", ["pass", "become_nobody()"])
def test_it_reaches_nobody_afterwards_and_is_who_it_was(become: str, port: int, possible: None) -> None:
    if become != "pass" and os.getuid() != 0:
        pytest.skip("only root can become someone else")
    said = say(
        f"""
        {become}
        before = state()
        lifetime.die_with_parent()
        print(reaches({port}), network.leave("ipc:///tmp/x", lambda: not reaches({port})), reaches({port}))
        after = state()
        print(before[0] != after[0], before[2:] == after[2:], Path("/tmp").stat().st_mode != 0)
        signal = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)
        print(signal.value, [line.split(":")[0].strip() for line in open("/proc/self/net/dev")][2:])
        """
    )
    assert said == ["True", "True", "False", "True", "True", "True", "9", "['lo']"]


@pytest.mark.parametrize(
    ("endpoint", "works"),
    [
        ("tcp://127.0.0.1:1", "lambda: True"),
        ("ipc://relative", "lambda: True"),
        ("ipc:///tmp/x", "lambda: False"),
        ("ipc:///tmp/x", "lambda: 1 / 0"),
        ("ipc:///tmp/x", "lambda: os._exit(7)"),
        ("ipc:///tmp/x", "lambda: os.kill(os.getpid(), 9)"),
    ],
)
def test_nothing_has_changed_where_it_cannot_or_must_not(endpoint: str, works: str, port: int) -> None:
    program = f"print(network.leave({endpoint!r}, {works}), before == state(), reaches({port}))"
    assert say(program) == ["False", "True", "True"]


def test_a_process_with_threads_stays() -> None:
    said = say(
        """
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print(network.leave("ipc:///tmp/x", lambda: True), before == state())
        """
    )
    assert said == ["False", "True"]


def test_what_fails_after_the_trial_is_no_answer_but_an_error(possible: None) -> None:
    said = say(
        """
        unshare, parent = network._unshare, os.getpid()
        def fails_here():
            if os.getpid() == parent:
                raise OSError(28, "no namespace left")
            unshare()
        network._unshare = fails_here
        try:
            network.leave("ipc:///tmp/x", lambda: True)
        except OSError as error:
            print(error.errno)
        """
    )
    assert said == ["28"]


def test_a_trial_that_does_not_end_is_ended() -> None:
    said = say(
        """
        network.TRIAL_BOUND_SECONDS = 0.2
        started = time.monotonic()
        print(network.leave("ipc:///tmp/x", lambda: time.sleep(60)), before == state())
        print(time.monotonic() - started < 30)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("reaped")
        """
    )
    assert said == ["False", "True", "True", "reaped"]


def test_workers_can_be_started_from_there(possible: None) -> None:
    said = say(
        """
        from cellblock_worker.confinement import confinement
        print(network.leave("ipc:///tmp/x", confinement.works_without_network))
        confinement.use_isolation("required", has_network=False)
        launch = confinement.launch(64)
        print("--unshare-net" in launch.command, "--unshare-pid" in launch.command, launch.wrapped)
        print(any(layer.startswith("network: ") for layer in confinement.layers_in_force()))
        """
    )
    assert said == ["True", "False", "True", "True", "True"]
