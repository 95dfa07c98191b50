"""The tree, paths in the documents, generated pages, and the menu of the documentation's site. Each room says what
comes in, what goes out, what it may import and where to start, and says it truly; each import contract of
`pyproject.toml` is broken by one import that it forbids."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import check_tree
import gen_reference as generator
from support.documents import ROOT

# In two parts, so that this file passes the rule that it tests.
CHECKOUT = "/" + "work/main/file.py"


def test_files_of_git_are_all_but_ignored_ones(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n")
    for name in ("tracked.py", "deleted.py"):
        (tmp_path / name).touch()
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    for name in ("new é.py", "noise.log"):
        (tmp_path / name).touch()
    (tmp_path / "deleted.py").unlink()
    assert check_tree.checkout_files(tmp_path) == [Path(".gitignore"), Path("new é.py"), Path("tracked.py")]


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
def test_machine_paths_are_found_and_relative_ones_are_not(tmp_path: Path, line: str, found: bool) -> None:
    (tmp_path / "doc.md").write_text(f"first\n{line}\n")
    findings = check_tree.machine_path_findings(tmp_path, [Path("doc.md")])
    assert [finding.split(": ")[0] for finding in findings] == (["doc.md:2"] if found else [])


def test_binary_files_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "image.bin").write_bytes(b"\0" + CHECKOUT.encode())
    assert check_tree.machine_path_findings(tmp_path, [Path("image.bin")]) == []


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
BELOW = (
    "",
    "broker/cellblock",
    "broker/cellblock/serve",
    "worker_runtime",
    "worker_runtime/cellblock_worker",
)
PATH = re.compile(r"`((?:[\w.]+/)+[\w]+\.(?:py|ts))`")
TESTS = "tests/unit/.../"


def is_there(path: str) -> bool:
    if path.startswith(TESTS):
        return any((ROOT / "tests" / "unit").glob(f"*/*/{path[len(TESTS) :]}"))
    return any((ROOT / below / path).is_file() for below in BELOW)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    assert [path for path in PATH.findall(page.read_text(encoding="utf-8")) if not is_there(path)] == []


def test_scripts_name_tests_that_are_there() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    named = {path for one in scripts for path in re.findall(r"\btests/[\w./-]*\w", one.read_text("utf-8"))}
    assert len(named) > 5 and [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_headings_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\(((?![a-z]+:)[^)#\s]*)#([^)\s]+)\)", prose(page))
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    assert [f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors(target)] == []


def prose(page: Path) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page, and so does the site."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_the_path_is_found() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Where each step of the path lives")
    assert len(PATH.findall(table.partition("\n## ")[0])) > 20


DECISIONS = ROOT / "docs" / "decisions"


def decisions() -> list[tuple[str, str]]:
    """The number and the page of each decision in the index."""
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^- \[(\d+)\. .*\]\((\S+?)\)$", index, re.MULTILINE)


def test_every_decision_is_a_page_that_the_index_has() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    assert 0 < len(pages) <= 40
    assert decisions() == [(str(int(page.name[:3])), page.name) for page in pages]
    for page in pages:
        first, _, rest = page.read_text(encoding="utf-8").partition("\n")
        assert first.startswith(f"# {int(page.name[:3])}. ") and rest.lstrip().startswith("Status: ")


def test_every_number_of_a_decision_is_found() -> None:
    known = {number for number, _ in decisions()}
    sources = [path for top in ("broker", "worker_runtime", "scripts") for path in (ROOT / top).rglob("*.py")]
    for place in (ROOT / "pyproject.toml", ROOT / "CHANGELOG.md", *PAGES, *sources):
        named = re.findall(r"\bdecisions?,? (\d+)(?: and (\d+))?", place.read_text(encoding="utf-8"))
        assert {number for pair in named for number in pair if number} <= known, place


GIVEN = """
KEPT: Final = "KEPT"
def made(severity):
    return Diagnostic(severity=severity, code="A" if x else "B", message=f"It is {x}.")
def asked():
    return [made("error"), made(severity="warning"), {"severity": "info", "code": KEPT}]
def copied(one):
    return {"severity": one.severity, "code": one.code}
"""
SAID = b"""function notice(code: string) { send(code); }
if (a) { notice("LEFT", `There are ${count} left.`, "Wait.", path); }
"""


@pytest.mark.slow
def test_every_code_with_every_severity_is_found() -> None:
    found = {(code, severity) for code, severity, _, _ in generator.diagnostics()}
    assert {
        ("CALLS_NOT_AWAITED", "warning"),
        ("RESULT_NOT_JSON", "error"),
        ("RESULT_NOT_JSON", "warning"),
        ("TYPE_ERROR", "error"),
        ("TYPE_ERROR", "warning"),
        ("OUTPUT_KEPT", "info"),
    } <= found
    assert all(code.isupper() and severity for code, severity in found)


def test_codes_and_severities_are_read_through_parameters_and_constants() -> None:
    found = list(generator.broker_diagnostics("a.py", ast.parse(GIVEN)))
    assert {(code, severity) for code, severity, _, _ in found} == {
        ("A", "error"),
        ("A", "warning"),
        ("B", "error"),
        ("B", "warning"),
        ("KEPT", "info"),
    }
    assert list(generator.sandbox_notices(SAID)) == [("LEFT", "warning", "There are … left.", "Wait.")]


@pytest.mark.parametrize(
    "source",
    [
        'Diagnostic(severity="error", code=code)',
        'Diagnostic(severity=severity, code="A")',
        'def f(severity): Diagnostic(severity=severity, code="A")',
        'def f(severity): Diagnostic(severity=severity, code="A")\nf(computed())',
    ],
)
def test_what_cannot_be_read_stops_it(source: str) -> None:
    with pytest.raises(generator.Unreadable):
        list(generator.broker_diagnostics("a.py", ast.parse(source)))
    with pytest.raises(generator.Unreadable):
        list(generator.sandbox_notices(b"notice(code, message);"))


def test_the_menu_and_docs_agree() -> None:
    site = (ROOT / "scripts/site/mkdocs.yml").read_text()
    menu = re.findall(r"^ +- (\S+\.md)$", site.partition("\nnav:\n")[2], re.M)
    beside = site.partition("\nnot_in_nav: |\n")[2].partition("\n\n")[0].split()
    docs = ROOT / "docs"
    pages = [str(file.relative_to(docs)) for file in docs.rglob("*.md")]
    assert sorted(menu) == sorted(page for page in pages if not any(fnmatch(page, one) for one in beside))


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
