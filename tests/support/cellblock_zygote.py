"""`cellblock` for many commands in a row: one process that has imported it, and forks for each.

Python's start and Cellblock's imports are most of what a short command costs; a page of examples has dozens. The fork
runs `cellblock.cli.main` with the caller's arguments, folder, environment, input and output, as the console script
does.
With bubblewrap it has a network of its own, so that examples may use the ports that they name.

    python cellblock_zygote.py SOCKET      serves; says "ready" on stdout
    python -IS caller.py ARGUMENT...       is `cellblock` (`install` writes it); it passes SIGTERM and SIGINT on
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PRELOADED = (
    "cellblock.cli.main",
    "cellblock.cli.run",
    "cellblock.cli.serve_http",
    "cellblock.daemon.broker",
    "cellblock.cli.doctor",
    "cellblock.frontend.mcp.mcp_server",
    "cellblock.frontend.http.server",
    "cellblock.config.file.problems",
    "cellblock.catalog.typescript",
    "cellblock.execution.executor",
    "cellblock.execution.looks_apart",
    "cellblock.learning.outputs",
    "cellblock.typecheck.checker",
    "cellblock.upstream.auth.login",
    "cellblock.upstream.registry",
    "cellblock.workers.start",
)

CALLER = """#!{python} -IS
import array, json, os, signal, socket, sys
ends = socket.socket(socket.AF_UNIX)
ends.connect({path!r})
told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
ends.sendmsg([len(told).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
ends.sendall(told)
lines = ends.makefile("r")
pid = int(lines.readline())
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(one, lambda number, _: os.kill(pid, number))
sys.exit(int(lines.readline() or 70))
"""


def install(folder: Path, path: Path) -> None:
    """Writes the caller as `cellblock` into a folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cellblock"
    file.write_text(CALLER.format(python=sys.executable, path=str(path)), encoding="utf-8")
    file.chmod(0o755)


@contextlib.contextmanager
def zygote(path: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """Runs one; `before` are the words in front of the program, as bubblewrap's. Afterwards it is gone."""
    words = [*before, sys.executable, __file__, str(path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{words} does not start"
        yield process
    finally:
        # The end of its stdin is its end, so that it dies with the tests whatever happens.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def serve(path: str) -> None:
    """Forks for each connection until stdin ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(16)
    print("ready", flush=True)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        caller, _ = listening.accept()
        # Finished ones are reaped here: nobody waits for them by number.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listening.close()
            attend(caller)
        caller.close()


def attend(caller: socket.socket) -> None:
    """Runs the command of one caller in a child, and tells its process id and its exit code."""
    files = array.array("i")
    head, ancillary, _, _ = caller.recvmsg(4, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, data in ancillary:
        files.frombytes(data)
    told = b""
    while len(told) < int.from_bytes(head, "big"):
        told += caller.recv(65536)
    arguments, folder, environment = json.loads(told)
    child = os.fork()
    if child == 0:
        caller.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 64)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["cellblock", *arguments]
        code = 70
        try:
            from cellblock.cli.main import main

            code = main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for file in files:
        os.close(file)
    caller.sendall(b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    caller.sendall(b"%d\n" % (os.waitstatus_to_exitcode(status) % 256))
    os._exit(0)


if __name__ == "__main__":
    os.setpgid(0, 0)
    try:
        serve(sys.argv[1])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
