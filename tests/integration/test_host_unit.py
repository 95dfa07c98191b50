"""The systemd template of worker hosts: its commands, run as systemd would run them, against a real broker."""

import asyncio
import re
import shlex
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from pathlib import Path

import pytest

from cellblock import Broker
from cellblock_worker.wire.keys import make_key_file
from support.documents import ROOT
from support.entries import settings
from support.responses import succeeded
from support.waits import until, within

UNIT = ROOT / "deploy" / "systemd" / "cellblock-host@.service"
START_BOUND = 120.0


def command(name: str, variables: dict[str, str]) -> list[str]:
    """A command line of the unit: `${NAME}` is one word, `$NAME` as many as it has (systemd.service(5))."""
    text = UNIT.read_text("utf-8").replace("\\\n", " ")
    (line,) = re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)
    words: list[str] = []
    for word in shlex.split(line):
        if whole := re.fullmatch(r"\$(\w+)", word):
            words += variables[whole[1]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word))
    return words


async def test_the_units_commands_start_a_host_that_drains(tmp_path: Path) -> None:
    credentials, runtime = tmp_path / "credentials", tmp_path / "runtime"
    credentials.mkdir()
    runtime.mkdir()
    broker_key, host_key = make_key_file(tmp_path / "broker.key"), make_key_file(credentials / "host.key")
    (credentials / "host.key").chmod(0o440)
    hosts = {
        "local": False,
        "listen": "tcp://127.0.0.1:*",
        "key": str(tmp_path / "broker.key"),
        "allowed_keys": {"unit": host_key.public},
    }
    async with Broker(settings(tmp_path / "state", hosts=hosts)) as broker:
        variables = {
            "CREDENTIALS_DIRECTORY": str(credentials),
            "RUNTIME_DIRECTORY": str(runtime),
            "BROKERS": broker.hosts_endpoint,
            "SERVER_KEYS": f"{broker_key.public} {host_key.public}",
            "MORE": "--capacity 2 --warm 1 --isolation auto",
        }
        copy = await asyncio.create_subprocess_exec(*command("ExecStartPre", variables))
        assert await within(copy.wait()) == 0
        python, *words = command("ExecStart", variables)
        assert python == "/opt/cellblock/bin/python"
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=DEVNULL, stdout=DEVNULL)
        try:
            await until(lambda: [hello.pid for hello in broker.hosts] == [process.pid], "a host", START_BOUND)
            answer = await within(broker.run("globalThis.__codemode_result__ = 6 * 7;"), START_BOUND)
            assert succeeded(answer) == 42
            process.send_signal(signal.SIGTERM)
            assert await within(process.wait()) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "cellblock-host@one.service"
    text = UNIT.read_text("utf-8")
    # It looks for the program.
    unit.write_text(text.replace("/opt/cellblock/bin/python", sys.executable))
    verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=START_BOUND, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text("utf-8").replace("KillMode=mixed", "KillMode=gently"))
    done = subprocess.run(verify, capture_output=True, text=True, timeout=START_BOUND, check=False)
    assert "kill mode" in done.stderr
