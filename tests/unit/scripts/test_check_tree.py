"""The rule on machine paths, on small trees with and without git."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
# In two parts, so that this file passes the rule that it tests.
CHECKOUT = "/" + "work/main/file.py"


@pytest.fixture
def check_tree(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import check_tree

    yield check_tree
    sys.modules.pop("check_tree")


def write(root: Path, name: str, content: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return Path(name)


def test_files_of_git_are_all_but_ignored_ones(check_tree: ModuleType, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    write(tmp_path, ".gitignore", "*.log\n")
    write(tmp_path, "tracked.py")
    write(tmp_path, "deleted.py")
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    write(tmp_path, "new é.py")
    write(tmp_path, "noise.log")
    (tmp_path / "deleted.py").unlink()
    assert check_tree.checkout_files(tmp_path) == [Path(".gitignore"), Path("new é.py"), Path("tracked.py")]


def test_files_without_git_leave_out_caches(
    check_tree: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in (
        "a.py",
        "sub/b.ts",
        ".venv/lib/c.py",
        "x/__pycache__/d.py",
        ".ruff_cache/e",
        "node_modules/f.js",
    ):
        write(tmp_path, name)
    assert check_tree.checkout_files(tmp_path) == [Path("a.py"), Path("sub/b.ts")]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (CHECKOUT, True),
        (f'cd "{CHECKOUT}"', True),
        (f"PYTHONPATH={CHECKOUT}", True),
        (f"x:{CHECKOUT}", True),
        ("/" + "tmp/lab/v/bin/deno", True),
        ("https://example.com/" + "work/items", False),
        ("../" + "work/items", False),
        ("/" + "workspace/items", False),
        ("/" + "tmp/labels/x", False),
    ],
)
def test_machine_paths_are_found_and_relative_ones_are_not(
    check_tree: ModuleType, tmp_path: Path, line: str, found: bool
) -> None:
    file = write(tmp_path, "doc.md", f"first\n{line}\n")
    findings = check_tree.machine_path_findings(tmp_path, [file])
    assert [finding.split(": ")[0] for finding in findings] == (["doc.md:2"] if found else [])


def test_binary_files_are_not_searched(check_tree: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "image.bin").write_bytes(b"\0" + CHECKOUT.encode())
    assert check_tree.machine_path_findings(tmp_path, [Path("image.bin")]) == []
