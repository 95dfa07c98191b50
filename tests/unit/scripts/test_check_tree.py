"""The rules on file length, machine paths and docstrings, on small trees with and without git."""

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


@pytest.mark.parametrize(("lines", "warnings"), [(600, 0), (601, 1)])
def test_length_warns_over_600(check_tree: ModuleType, tmp_path: Path, lines: int, warnings: int) -> None:
    files = [write(tmp_path, name, "x\n" * lines) for name in ("long.ts", "long.gen.ts", "long.md")]
    warned = check_tree.length_findings(tmp_path, files)
    assert len(warned) == warnings and all(line.startswith("long.ts: ") for line in warned)


DOCSTRINGS = '''"""{0}"""

LIMIT = 1
"""{0}"""


class Run:
    """{0}"""

    size: int
    """{0}"""

    def __init__(self) -> None:
        """{0}"""
        self.at = 1
        """{0}"""

    async def end(self) -> None:
        """{0}"""
        print(1)
        """{0}"""  # no docstring: it stands below no assignment
'''
DOCUMENTED = [1, 4, 8, 11, 14, 16, 19]
OF_FUNCTIONS = [14, 19]
NEED_VERB = [4, 11, 14, 16, 19]  # the functions' and the values'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Of one run.", DOCUMENTED),
        ("whether it fits.", DOCUMENTED),
        ("\n    What's said.", DOCUMENTED),
        ("Bounds one run.", []),
        ("Is one run.", DOCUMENTED),
        ("Are two runs.", DOCUMENTED),
        ("Names a run, of which it is told.", []),
        ("Names of tools.", NEED_VERB),
        ("A run that waits.", NEED_VERB),
        ("Return a run.", NEED_VERB),
        ("This run.", NEED_VERB),
        ("Often enough.", NEED_VERB),
        ("`of` is a name.", NEED_VERB),
        ("", NEED_VERB),
        ("Values that are checked.", NEED_VERB),
        ("Largest message.", NEED_VERB),
        ("Bound one run, and all.", OF_FUNCTIONS),
        ("Closes it.", DOCUMENTED),
        ("Waits for its end.", DOCUMENTED),
        ("Says whether they were read.", DOCUMENTED),
        ("Says what a run does until it ends.", []),
        ("Tells that one of several runs has its end.", []),
        ("Does nothing: a file needs no look.", DOCUMENTED),
        ("Comes last.", DOCUMENTED),
        ("Stops everything, within bounds.", []),
        ("Ends runs.", []),
        ("Ends a run that this selects.", DOCUMENTED),
        ("Holds a text as long as this\n    lasts.", DOCUMENTED),
        ("Says whose tool this is, and who says so.", DOCUMENTED),
        ("Says what one `a.b` gives before this.", DOCUMENTED),
        ("Ends the runs of this broker.", []),
        ("Ends a run. What this gives stays.", []),
    ],
)
def test_a_docstring_that_leans_on_its_surroundings_is_found(
    check_tree: ModuleType, tmp_path: Path, text: str, found: list[int]
) -> None:
    names = ("broker/a.py", "worker_runtime/b.py", "tests/c.py", "broker/d.md")
    content = DOCSTRINGS.format(text)
    files = [write(tmp_path, name, content) for name in names]
    extra = text.count("\n")
    lines = [line + number * extra for number, line in enumerate(DOCUMENTED) if line in found]
    expected = [f"{name}:{line}" for name in names[:2] for line in lines]
    assert [one.split(": ")[0] for one in check_tree.word_findings(tmp_path, files)] == expected


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
