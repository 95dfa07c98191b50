"""The tree, paths in the documents, generated pages, and the menu of the documentation's site."""

import ast
import functools
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

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


def decisions() -> list[tuple[str, str, str]]:
    """The number, the page and other numbers of each decision in the index."""
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^- \[(\d+)\. .*\]\((\S+?)\)(?: \(also ([\d, ]+)\))?$", index, re.MULTILINE)


def test_every_decision_is_a_page_that_the_index_has() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    assert 0 < len(pages) <= 40
    assert [one[:2] for one in decisions()] == [(str(int(page.name[:3])), page.name) for page in pages]
    for page in pages:
        first, _, rest = page.read_text(encoding="utf-8").partition("\n")
        assert first.startswith(f"# {int(page.name[:3])}. ") and rest.lstrip().startswith("Status: ")


def test_every_number_of_a_decision_is_found() -> None:
    known = {number for first, _, also in decisions() for number in (first, *also.split(", "))}
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
