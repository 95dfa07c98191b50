"""`cellblock doctor`: says what is in force and what does not work; its exit code tells which."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cellblock.types.check import compiler
from cellblock_worker.confinement.bubblewrap import find_binary
from support.cellblock_zygote import forked_cellblock
from support.certificates import certificate
from support.commands import in_this_process
from support.entries import CELLBLOCK, plain_server, write_config

pytestmark = pytest.mark.thorough


def doctor(
    folder: Path,
    *options: object,
    code: int = 0,
    before: Sequence[str] = (),
    program: Path | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """A doctor that ends so, with the state directory and, where there is one, the configuration of a folder."""
    config = folder / "cellblock.json"
    place = ["--state-dir", folder / "state", *(["--config", config] if config.exists() else [])]
    words = [*before, program or forked_cellblock(), "doctor", *place, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_sound_machine_has_no_problems(tmp_path: Path) -> None:
    report = json.loads(doctor(tmp_path, "--json").stdout)
    assert report["ok"] is True and report["problems"] == []
    assert report["versions"]["Deno"].startswith("2.")
    assert report["config"].startswith("none (no --config, and no ")
    assert report["stateDir"] == str(tmp_path / "state")
    assert report["typecheck"].startswith(("after (TypeScript ", "off: the build has brought no"))
    if sys.platform.startswith("linux"):
        assert any(layer.startswith("kernel: RLIMIT_DATA") for layer in report["layers"])


def test_the_trial_of_a_doctor_is_no_run_that_is_kept(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, journal="all")
    doctor(tmp_path)
    listed = in_this_process("runs", "list", "--config", config, "--state-dir", tmp_path / "state")
    assert listed.out == "No run is kept.\n"


NO_NODE = {"command": "npx", "args": ["-y", "x"], "env": {"PATH": "/nonexistent"}}


@pytest.mark.parametrize(
    ("servers", "section", "code", "said"),
    [
        pytest.param(
            {"plain": plain_server(), "broken": {"command": "/nonexistent/nothing"}},
            {},
            1,
            {
                "": ("/cellblock.json\n", "plain: connected", "broken: not connected"),
                "Problems": ("Server broken is not connected",),
            },
            id="a server that does not start",
        ),
        pytest.param(
            {},
            {"isolation": "off", "typecheck": "off"},
            0,
            {
                "": (
                    "isolation = off",
                    "Type checking of scripts: off, by the configuration",
                    "missing   namespaces and cgroup: switched off",
                )
            },
            id="isolation that is off",
        ),
        pytest.param(
            {"js": NO_NODE, "web": {"url": "http://127.0.0.1:9/mcp", "sandboxEnabled": True}},
            {},
            1,
            {
                "": ("Daemon: ",),
                "Problems": ("npx is not on PATH. Install Node.js", "Check that it runs, and its URL."),
                "Warnings": ("mcpServers.web.sandboxEnabled: ",),
            },
            id="what to do",
        ),
    ],
)
def test_it_says_what_is_so_and_what_to_do(
    tmp_path: Path, servers: Any, section: Any, code: int, said: dict[str, tuple[str, ...]]
) -> None:
    """Before the problems, or below such a heading."""
    write_config(tmp_path, servers, **section)
    shown = doctor(tmp_path, code=code).stdout
    assert "\x1b" not in shown
    for heading, texts in said.items():
        part = shown.partition(heading)[2] if heading else shown.partition("Problems")[0]
        assert [text for text in texts if text not in part] == [], shown


def test_what_has_come_of_a_slow_server_is_told_as_soon_as_it_is_known(tmp_path: Path) -> None:
    plain = plain_server()
    words = ["-c", 'sleep 4; exec "$@"', "sh", plain["command"], *plain["args"]]
    hanging = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    write_config(tmp_path, {"hanging": hanging, "slow": {**plain, "command": "/bin/sh", "args": words}})
    told = [line for line in doctor(tmp_path, code=1).stderr.splitlines() if "connected" in line]
    assert told == ["cellblock: server slow is connected", "cellblock: server hanging is not connected"]


def test_a_state_directory_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problem = json.loads(doctor(tmp_path / "file", "--json", code=1).stdout)["problems"][0]
    assert "cannot be used" in problem and "--state-dir" in problem


def test_what_a_daemon_is_to_serve_with_is_looked_at(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    cert, _ = certificate(tmp_path / "one")
    _, key = certificate(tmp_path / "other")
    problems = doctor(tmp_path, "--tls-cert", cert, "--tls-key", key, code=1).stdout.partition("Problems")[2]
    assert "Give the private key that the certificate was made for." in problems
    doctor(tmp_path, "--http", "nowhere", code=2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces")
def test_a_machine_that_forbids_namespaces(tmp_path: Path) -> None:
    """In a namespace that allows no further one, as containers and hardened kernels are."""
    bubblewrap = find_binary()
    without = [str(bubblewrap), "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    if bubblewrap is None or subprocess.run([*without, "true"], capture_output=True, timeout=120).returncode:
        pytest.skip("this bubblewrap cannot forbid user namespaces")
    for isolation, section in (("auto", "missing   namespaces: "), ("required", "Problems\n")):
        write_config(tmp_path, {}, isolation=isolation)
        done = doctor(tmp_path, before=without, program=CELLBLOCK, code=int(isolation == "required"))
        told = done.stdout.partition(section)[2]
        assert "Allow user namespaces" in told or "forbids user namespaces. " in told, done.stdout
        assert "cellblock doctor" not in done.stdout


@pytest.mark.skipif(find_binary() is None, reason="there is no bubblewrap to put a filter in")
def test_a_deno_that_was_not_traced(tmp_path: Path) -> None:
    """Another version of the wheel, as `deno>=2.9.8,<3` allows: what it needs is on no list yet."""
    info = tmp_path / "packages" / "deno-2.9.99.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deno\nVersion: 2.9.99\n", encoding="utf-8")
    for isolation, section in (("auto", "missing   seccomp: "), ("required", "Problems\n")):
        write_config(tmp_path, {}, isolation=isolation)
        env, code = {**os.environ, "PYTHONPATH": str(info.parent)}, int(isolation == "required")
        done = doctor(tmp_path, program=CELLBLOCK, env=env, code=code)
        told = done.stdout.partition(section)[2]
        assert "deno 2.9.99 needs is not known" in told and "install deno 2.9.8" in told, done.stdout


def test_a_compiler_that_does_not_work_is_told_with_what_to_do(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "cellblock_typescript"
    (package / "compiler").mkdir(parents=True)
    for source in compiler.FOLDER.parent.glob("*.py"):
        shutil.copy(source, package)
    shutil.copy(compiler.FOLDER / "BUILD.json", package / "compiler")
    (package / "compiler" / compiler.BINARY).write_text("#!/bin/sh\necho no\n", encoding="utf-8")
    (package / "compiler" / compiler.BINARY).chmod(0o755)
    done = doctor(tmp_path, program=CELLBLOCK, env={**os.environ, "PYTHONPATH": str(package.parent)})
    warned = done.stdout.partition("Warnings\n")[2]
    assert "was not type-checked: the compiler was lost" in warned and compiler.FIX in warned, done.stdout


READ_ONLY = """
while read -r _ _ _ _ point _ rest; do
    case "$rest" in *"- cgroup "*|*"- cgroup2 "*) mount -o remount,bind,ro "$point" || exit 99;; esac
done </proc/self/mountinfo
exec "$@"
"""
"""As in a container: the hierarchies are there, and are not this process's to change."""

ANOTHER = 65534

NEEDED = [CELLBLOCK.parents[2], Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()]
"""What another user must be able to read to run Cellblock: the checkout, and its Python."""


def cgroup_doctor(folder: Path, *before: str, isolation: str = "auto") -> dict[str, Any]:
    """The report of a doctor that another program starts."""
    write_config(folder, {}, isolation=isolation, typecheck="off")
    return json.loads(doctor(folder, "--json", before=before, program=CELLBLOCK).stdout)


def about_groups(report: dict[str, Any], part: str) -> list[str]:
    return [text for text in report[part] if text.startswith("cgroup")]


def without_groups(report: dict[str, Any]) -> str:
    """What a report says of cgroups that has none."""
    assert report["ok"] and about_groups(report, "layers") == []
    [missing] = about_groups(report, "missing")
    assert missing.startswith("cgroup (memory, pids): ")
    return missing


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all can enter; that of the test itself is below this user's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def showing(paths: Iterable[Path], aside: Path) -> str:
    """A script that puts folders which all may enter above these, in its own mount namespace, and becomes its
    arguments."""
    above = {
        path: [one for one in reversed(path.parents) if not one.stat().st_mode & 0o001] for path in paths
    }
    hidden = {path: closed[0] for path, closed in above.items() if closed}
    kept = {path: aside / str(number) for number, path in enumerate(hidden)}
    for folder in kept.values():
        folder.mkdir()
    lines = [["mount", "--bind", str(path), str(kept[path])] for path in hidden]
    lines += [["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(top)] for top in {*hidden.values()}]
    for path in hidden:
        lines += [["mkdir", "-p", str(path)], ["mount", "--bind", str(kept[path]), str(path)]]
    return "\n".join(["set -e", *map(shlex.join, lines), 'exec "$@"'])


def refused(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, timeout=30).returncode != 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cgroups are Linux's")
def test_who_can_write_them_has_one_for_each_worker(tmp_path: Path) -> None:
    report = cgroup_doctor(tmp_path)
    kept = about_groups(report, "layers")
    if not kept:
        pytest.skip(f"no cgroup can be made here: {report['missing']}")
    assert all("each worker has one of its own" in text for text in kept), kept
    kept_names = " ".join(text.partition(":")[0] for text in kept)
    assert about_groups(report, "missing") == [] or "memory" not in kept_names or "pids" not in kept_names


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cgroups are Linux's")
def test_where_none_can_be_written_it_says_what_is_left_open(tmp_path: Path) -> None:
    wrapped = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]
    if refused(*wrapped, "true"):
        pytest.skip("this user cannot mount anything")
    missing = without_groups(cgroup_doctor(tmp_path, *wrapped, isolation="required"))
    assert "bounded only as far as its address space and the seccomp filter go" in missing
    assert "Delegate=yes" in missing


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cgroups are Linux's")
def test_another_user_has_none_unless_they_are_given_to_it(open_folder: Path) -> None:
    as_other = ["setpriv", f"--reuid={ANOTHER}", f"--regid={ANOTHER}", "--clear-groups"]
    as_other += ["env", f"HOME={open_folder}"]
    if refused(*as_other, str(CELLBLOCK), "--version"):
        as_other = ["unshare", "--mount", "sh", "-c", showing(NEEDED, open_folder), "sh", *as_other]
    if refused(*as_other, str(CELLBLOCK), "--version"):
        pytest.skip("this process cannot become another user, or cannot show it what it needs")
    state = open_folder / "state"
    state.mkdir()
    shutil.chown(state, ANOTHER, ANOTHER)
    assert "Permission denied" in without_groups(cgroup_doctor(open_folder, *as_other))
