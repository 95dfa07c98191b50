"""Each room says what comes in, what goes out, what it may import and where to start, and says it truly; each import
contract of `pyproject.toml` is broken by one import that it forbids."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from support.documents import ROOT

CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "tool"
]["importlinter"]["contracts"]
PACKAGES = {
    "cellblock": ROOT / "broker/cellblock",
    "cellblock_worker": ROOT / "worker_runtime/cellblock_worker",
}
SANDBOX_ROOMS = ("context", "globals", "journal", "result", "wire")


def layers(package: str) -> list[set[str]]:
    """Returns the rows of the import contract of a package, from the top down."""
    (found,) = (each["layers"] for each in CONTRACTS if each.get("containers") == [package])
    return [set(row.split(" | ")) for row in found]


def strings(file: Path) -> set[str]:
    """Returns the strings of a file but those that name a logger."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    loggers = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger"
        for argument in node.args
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loggers
    }


def broken(name: str, importer: str, rows: list[set[str]]) -> bool:
    """Says whether a module of a package may not be named in a file of one of its rooms."""
    level = {room: number for number, row in enumerate(rows) for room in row}
    return importer != name and level[name] <= level[importer]


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_that_are_named_in_strings_are_below(package: str) -> None:
    """What `importlib` and `python -m` are given counts as an import, which the import contracts do not see."""
    root, rows = PACKAGES[package], layers(package)
    # What is written into clients' files and units to be started there.
    command = "cellblock.cli"
    modules = {
        ".".join((package, *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for file in root.rglob("*.py")
    }
    found: list[str] = []
    for file in root.rglob("*.py"):
        room = file.relative_to(root).parts[0].removesuffix(".py")
        found += [
            f"{file.relative_to(root)}: {named}"
            for named in strings(file) & (modules - {package, command})
            if room != "__init__" and broken(named.split(".")[1], room, rows)
        ]
    assert found == []


def imported(file: Path) -> list[Path]:
    """Returns the files that a file of the sandbox imports."""
    paths = r'^(?:\} from|(?:import|export) .*from) "(\.[^"]+)"'
    found = re.findall(paths, file.read_text(encoding="utf-8"), re.MULTILINE)
    return [(file.parent / path).resolve() for path in found]


def test_imports_of_the_sandbox_go_one_way() -> None:
    """A room is one, whatever it has; a file beside the rooms is one by itself."""
    sandbox = ROOT / "worker_runtime/sandbox"
    arrows: dict[Path, set[Path]] = {}
    for file in sandbox.rglob("*.ts"):
        room, *named = (
            place if place.parent == sandbox else place.parent
            for place in (file, *imported(file))
            if place.is_relative_to(sandbox)
        )
        arrows.setdefault(room, set()).update(each for each in named if each != room)
    TopologicalSorter(arrows).prepare()  # raises CycleError, which names the way around


@pytest.mark.parametrize(
    "folder",
    [ROOT / "js_stdlib", *(ROOT / "worker_runtime/sandbox" / room for room in ("", *SANDBOX_ROOMS))],
    ids=lambda folder: folder.name,
)
def test_a_room_of_the_sandbox_says_the_same(folder: Path) -> None:
    said = (folder / "README.md").read_text(encoding="utf-8")
    assert all(what in said for what in ("In: ", "Out: ", "May import: "))
    start = re.search(r"Start at (?:the one|`([\w./]+)`)", said)
    assert start is not None and (folder / (start[1] or "")).is_file()
    # Folders of the sandbox and files, as they stand in imports: `../result/kinds.ts`, `../../js_stdlib/errors.ts`.
    for file in folder.glob("*.ts"):
        for place in imported(file):
            if place.parent != folder and folder != ROOT / "worker_runtime/sandbox":
                name = place.parent.name if place.parent.name in SANDBOX_ROOMS else place.name
                assert f"`{name}`" in said or f"`js_stdlib/{name}`" in said, f"{file.name} imports {name}"


def test_unit_tests_stand_where_their_source_does() -> None:
    units = ROOT / "tests/unit"
    folders = {
        file.parent.relative_to(units) for file in units.rglob("*test*") if file.suffix in (".py", ".ts")
    }
    # The source of one is tests of another kind.
    sources = {folder: ("tests" if folder.parts[:1] == ("soak",) else ".") for folder in folders - {Path()}}
    astray = {folder for folder, top in sources.items() if not (ROOT / top / folder).is_dir()}
    assert len(sources) > 40 and not astray


FORBIDDEN = {
    "The worker host never imports the broker": ("cellblock_worker/base", "cellblock.base"),
    "The worker host does without Pydantic": ("cellblock_worker/base", "pydantic"),
    "One direction of imports between the broker's rooms": ("cellblock/base", "cellblock.app"),
    "The core knows no fleet": ("cellblock/serve", "cellblock.fleet"),
    "A run knows no storage": ("cellblock/run", "cellblock.record"),
    "Tools know no runs": ("cellblock/tools", "cellblock.run"),
    "One direction of imports between the worker host's rooms": (
        "cellblock_worker/wire",
        "cellblock_worker.host",
    ),
}


def test_each_contract_is_broken_by_one_import_that_it_forbids(tmp_path: Path) -> None:
    for package in ("broker/cellblock", "worker_runtime/cellblock_worker"):
        shutil.copytree(
            ROOT / package,
            tmp_path / Path(package).name,
            ignore=lambda folder, names: {
                name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()
            },
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for number, (room, module) in enumerate(FORBIDDEN.values()):
        (tmp_path / room / f"forbidden_{number}.py").write_text(f"import {module}\n", encoding="utf-8")
    said = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    broken = re.findall(r"^(.+) BROKEN$", said.stdout, re.MULTILINE)
    assert len(broken) == len(CONTRACTS) == len(FORBIDDEN), said.stdout + said.stderr
    assert all(any(name.startswith(start) for name in broken) for start in FORBIDDEN)
    # Each by the import that was put there.
    assert all(f"forbidden_{number}" in said.stdout for number in range(len(FORBIDDEN)))
