"""Each room says what comes in, what goes out, what it may import and where to start, and says it truly."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "cellblock": ROOT / "broker/cellblock",
    "cellblock_worker": ROOT / "worker_runtime/cellblock_worker",
}
SANDBOX_ROOMS = ("context", "globals", "journal", "result", "wire")
TYPESCRIPT_IMPORT = re.compile(r'^(?:\} from|(?:import|export) .*from) "(\.[^"]+)"', re.MULTILINE)
SANDBOX = (
    ROOT / "js_stdlib",
    *(ROOT / "worker_runtime/sandbox" / room for room in ("", *SANDBOX_ROOMS)),
)
IMPORT = re.compile(r"^\s*(?:from|import) (cellblock(?:_worker)?(?:\.\w+)*)", re.MULTILINE)
NAME = re.compile(r"`([\w.]+)`")
START = re.compile(r"Start at (?:the one|`([\w./]+)`)")


def layers(package: str) -> list[set[str]]:
    """Returns the rows of the import contract of a package, from the top down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (found,) = (each["layers"] for each in contracts if each.get("containers") == [package])
    return [set(row.split(" | ")) for row in found]


def rooms(pattern: str) -> list[tuple[str, Path]]:
    return [
        (package, file.parent) for package, root in PACKAGES.items() for file in sorted(root.glob(pattern))
    ]


def docstring(room: Path) -> str:
    return " ".join((room / "__init__.py").read_text(encoding="utf-8").split('"""')[1].split())


def named(room: Path) -> Iterator[str]:
    """Yields the rooms from which the files of a room import: `base`, or `cellblock_worker.base` of the worker host."""
    own = next(package for package, root in PACKAGES.items() if room.is_relative_to(root))
    for file in room.rglob("*.py"):
        for module in IMPORT.findall(file.read_text(encoding="utf-8")):
            package, _, rest = module.partition(".")
            of = rest.partition(".")[0]
            if of and (package, of) != (own, room.name):
                yield of if package == own else f"{package}.{of}"


@pytest.mark.parametrize(
    ("package", "room"), rooms("*/**/__init__.py"), ids=lambda room: str(room).rpartition("cellblock/")[2]
)
def test_a_room_says_what_comes_in_and_out_and_where_to_start(package: str, room: Path) -> None:
    said = docstring(room)
    assert re.search(r"In: .*Out: |In and out: ", said), said
    start = START.search(said)
    assert start is not None, said
    if start[1]:
        place = room.joinpath(*start[1].split("."))
        assert any(
            path.exists() for path in (place, place.with_suffix(".py"), place.parent.with_suffix(".py"))
        ), said


@pytest.mark.parametrize(
    ("package", "room"), rooms("*/__init__.py"), ids=lambda room: str(room).rpartition("cellblock/")[2]
)
def test_a_room_says_what_it_may_import(package: str, room: Path) -> None:
    allows = docstring(room).partition("may import ")[2]
    assert allows
    allows = allows.partition(". ")[0]
    rows = layers(package)
    level = next(number for number, row in enumerate(rows) if room.name in row)
    below = set().union(*rows[level + 1 :])
    said = {
        name
        for name in NAME.findall(allows)
        if name in set().union(*rows) or name.startswith("cellblock_worker.")
    }
    own = {name for name in said if not name.startswith("cellblock_worker.")}
    assert own <= below, "it names what the import contract in pyproject.toml forbids"
    assert set(named(room)) <= (said | below if "every room below" in allows else said)


def imported(file: Path) -> list[Path]:
    """Returns the files that a file of the sandbox imports."""
    return [
        (file.parent / path).resolve() for path in TYPESCRIPT_IMPORT.findall(file.read_text(encoding="utf-8"))
    ]


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


@pytest.mark.parametrize("folder", SANDBOX, ids=lambda folder: folder.name)
def test_a_room_of_the_sandbox_says_the_same(folder: Path) -> None:
    said = (folder / "README.md").read_text(encoding="utf-8")
    for what in ("In: ", "Out: ", "May import: "):
        assert what in said
    start = START.search(said)
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
    assert len(sources) > 50 and not astray
