"""What `cellblock doctor` says of the cgroups on machines as they are: of root, of another user, without any."""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.entries import CELLBLOCK

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cgroups are Linux's"),
]

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


def doctor(*before: str, state_dir: Path, isolation: str = "auto") -> dict[str, Any]:
    """The report of a `cellblock doctor` that another program starts."""
    config = state_dir.parent / f"{isolation}.json"
    config.write_text(
        json.dumps({"cellblock": {"isolation": isolation, "typecheck": "off"}}), encoding="utf-8"
    )
    words = [
        *before,
        str(CELLBLOCK),
        "doctor",
        "--json",
        "--config",
        str(config),
        "--state-dir",
        str(state_dir),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def about_groups(report: dict[str, Any], part: str) -> list[str]:
    return [text for text in report[part] if text.startswith("cgroup")]


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


def test_who_can_write_them_has_one_for_each_worker(tmp_path: Path) -> None:
    report = doctor(state_dir=tmp_path / "state")
    [*kept] = about_groups(report, "layers")
    if not kept:
        pytest.skip(f"no cgroup can be made here: {report['missing']}")
    for text in kept:
        assert "each worker has one of its own" in text
    kept_names = " ".join(text.partition(":")[0] for text in kept)
    assert about_groups(report, "missing") == [] or "memory" not in kept_names or "pids" not in kept_names


def test_where_none_can_be_written_it_says_what_is_left_open(tmp_path: Path) -> None:
    wrapped = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]
    if refused(*wrapped, "true"):
        pytest.skip("this user cannot mount anything")
    report = doctor(*wrapped, state_dir=tmp_path / "state", isolation="required")
    assert report["ok"] and about_groups(report, "layers") == []
    [missing] = about_groups(report, "missing")
    assert missing.startswith("cgroup (memory, pids): ")
    assert "bounded only as far as its address space and the seccomp filter go" in missing
    assert "Delegate=yes" in missing


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
    report = doctor(*as_other, state_dir=state)
    assert report["ok"] and about_groups(report, "layers") == []
    [missing] = about_groups(report, "missing")
    assert missing.startswith("cgroup (memory, pids): ") and "Permission denied" in missing
