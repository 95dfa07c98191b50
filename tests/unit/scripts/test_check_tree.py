"""The tree, and paths in the documents."""

import functools
import re
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


ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
SOURCES = [path for top in ("broker", "worker_runtime", "scripts") for path in (ROOT / top).rglob("*.py")]
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
    named = PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not is_there(path)] == []


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


def test_every_decision_is_a_page_that_the_index_has() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(folder.glob("[0-9]*.md"))
    assert 0 < len(pages) <= 40
    listed = re.findall(r"^- \[(\d+)\. .*\]\((\S+?)\)(?: \(also [\d, ]+\))?$", index, re.MULTILINE)
    assert listed == [(str(int(page.name[:3])), page.name) for page in pages]
    for page in pages:
        first, _, rest = page.read_text(encoding="utf-8").partition("\n")
        assert first.startswith(f"# {int(page.name[:3])}. ") and rest.lstrip().startswith("Status: ")


def test_every_number_of_a_decision_is_found() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- \[(\d+)\. .*\]\(\S+?\)(?: \(also ([\d, ]+)\))?$", index, re.MULTILINE)
    known = {number for first, also in lines for number in (first, *also.split(", "))}
    places = ["pyproject.toml", "CHANGELOG.md", *(str(page) for page in PAGES), *map(str, SOURCES)]
    for place in places:
        text = (ROOT / place).read_text(encoding="utf-8")
        named = re.findall(r"\bdecisions?,? (\d+)(?: and (\d+))?", text)
        assert {number for pair in named for number in pair if number} <= known, place
