"""`cellblock doctor`: says what is in force and what does not work; its exit code tells which."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock_worker.confinement.bubblewrap import find_binary
from support.cellblock_zygote import forked_cellblock
from support.certificates import certificate
from support.entries import CELLBLOCK, plain_server, write_config

pytestmark = pytest.mark.thorough


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked_cellblock(), "doctor", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_sound_machine_has_no_problems(tmp_path: Path) -> None:
    done = doctor("--json", "--state-dir", str(tmp_path / "state"))
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["ok"] is True and report["problems"] == []
    assert report["versions"]["Deno"].startswith("2.")
    assert report["config"].startswith("none (no --config, and no ")
    assert report["stateDir"] == str(tmp_path / "state")
    assert report["typecheck"].startswith(("after (TypeScript ", "off: the build has brought no"))
    if sys.platform.startswith("linux"):
        assert any(layer.startswith("kernel: RLIMIT_DATA") for layer in report["layers"])


def test_the_trial_of_a_doctor_is_no_run_that_is_kept(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, journal="all")
    options = ["--config", str(config), "--state-dir", str(tmp_path / "state")]
    assert doctor(*options).returncode == 0
    listed = subprocess.run([forked_cellblock(), "runs", "list", *options], capture_output=True, text=True)
    assert listed.stdout == "No run is kept.\n"


def test_a_server_that_does_not_start_is_a_problem(tmp_path: Path) -> None:
    servers = {"plain": plain_server(), "broken": {"command": str(tmp_path / "nothing")}}
    config = write_config(tmp_path, servers)
    done = doctor("--config", str(config), "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 1
    assert f"Configuration: {config}\n" in done.stdout
    assert "plain: connected" in done.stdout
    assert "broken: not connected" in done.stdout.partition("Problems")[0]
    assert "Server broken is not connected" in done.stdout.partition("Problems")[2]


def test_what_has_come_of_a_slow_server_is_told_as_soon_as_it_is_known(tmp_path: Path) -> None:
    plain = plain_server()
    words = ["-c", 'sleep 4; exec "$@"', "sh", plain["command"], *plain["args"]]
    hanging = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    config = write_config(
        tmp_path, {"hanging": hanging, "slow": {**plain, "command": "/bin/sh", "args": words}}
    )
    done = doctor("--config", str(config), "--state-dir", str(tmp_path / "state"))
    told = [line for line in done.stderr.splitlines() if "connected" in line]
    assert told == ["cellblock: server slow is connected", "cellblock: server hanging is not connected"]


def test_isolation_that_is_off_is_said_to_be_missing(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"cellblock": {"isolation": "off", "typecheck": "off"}}), encoding="utf-8")
    done = doctor("--config", str(config), "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 0
    assert "isolation = off" in done.stdout
    assert "Type checking of scripts: off, by the configuration" in done.stdout
    assert "missing   namespaces and cgroup: switched off" in done.stdout


def test_the_fix_is_said(tmp_path: Path) -> None:
    servers = {
        "js": {"command": "npx", "args": ["-y", "x"], "env": {"PATH": "/nonexistent"}},
        "web": {"url": "http://127.0.0.1:9/mcp", "sandboxEnabled": True},
    }
    config = write_config(tmp_path, servers)
    done = doctor("--config", str(config), "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 1
    problems = done.stdout.partition("Problems")[2]
    assert "npx is not on PATH. Install Node.js" in problems
    assert "Check that it runs, and its URL." in problems
    assert "mcpServers.web.sandboxEnabled: " in done.stdout.partition("Warnings")[2]
    assert "Daemon: " in done.stdout and "\x1b" not in done.stdout


def test_a_state_directory_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor("--json", "--state-dir", str(tmp_path / "file" / "state"))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert "cannot be used" in report["problems"][0] and "--state-dir" in report["problems"][0]


def test_what_a_daemon_is_to_serve_with_is_looked_at(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    cert, _ = certificate(tmp_path / "one")
    _, key = certificate(tmp_path / "other")
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--state-dir", str(tmp_path / "state")]
    done = doctor(*options)
    assert done.returncode == 1
    assert "Give the private key that the certificate was made for." in done.stdout.partition("Problems")[2]
    assert doctor("--http", "nowhere").returncode == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces")
def test_a_machine_that_forbids_namespaces(tmp_path: Path) -> None:
    """In a namespace that allows no further one, as containers and hardened kernels are."""
    bubblewrap = find_binary()
    without = [str(bubblewrap), "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    if bubblewrap is None or subprocess.run([*without, "true"], capture_output=True, timeout=120).returncode:
        pytest.skip("this bubblewrap cannot forbid user namespaces")
    config = tmp_path / "config.json"
    for isolation, section in (("auto", "missing   namespaces: "), ("required", "Problems\n")):
        config.write_text(json.dumps({"cellblock": {"isolation": isolation}}), encoding="utf-8")
        words = [*without, str(CELLBLOCK), "doctor", "--config", config, "--state-dir", tmp_path / "state"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == (isolation == "required")
        told = done.stdout.partition(section)[2]
        assert "Allow user namespaces" in told or "forbids user namespaces. " in told, done.stdout
        assert "cellblock doctor" not in done.stdout


@pytest.mark.skipif(find_binary() is None, reason="there is no bubblewrap to put a filter in")
def test_a_deno_that_was_not_traced(tmp_path: Path) -> None:
    """Another version of the wheel, as `deno>=2.9.8,<3` allows: what it needs is on no list yet."""
    info = tmp_path / "packages" / "deno-2.9.99.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deno\nVersion: 2.9.99\n", encoding="utf-8")
    config = tmp_path / "config.json"
    for isolation, section in (("auto", "missing   seccomp: "), ("required", "Problems\n")):
        config.write_text(json.dumps({"cellblock": {"isolation": isolation}}), encoding="utf-8")
        words = [str(CELLBLOCK), "doctor", "--config", config, "--state-dir", tmp_path / "state"]
        environment = {**os.environ, "PYTHONPATH": str(info.parent)}
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == (isolation == "required"), done.stdout
        told = done.stdout.partition(section)[2]
        assert "deno 2.9.99 needs is not known" in told and "install deno 2.9.8" in told, done.stdout
