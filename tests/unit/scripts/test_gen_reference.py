"""Generated pages, and the menu of the documentation's site."""

import ast
import importlib.util
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("gen_reference", SCRIPTS / "gen_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = loaded()
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
    found = {(code, severity) for code, severity, _, _ in GENERATOR.diagnostics()}
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
    found = list(GENERATOR.broker_diagnostics("a.py", ast.parse(GIVEN)))
    assert {(code, severity) for code, severity, _, _ in found} == {
        ("A", "error"),
        ("A", "warning"),
        ("B", "error"),
        ("B", "warning"),
        ("KEPT", "info"),
    }
    assert list(GENERATOR.sandbox_notices(SAID)) == [("LEFT", "warning", "There are … left.", "Wait.")]


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
    with pytest.raises(GENERATOR.Unreadable):
        list(GENERATOR.broker_diagnostics("a.py", ast.parse(source)))
    with pytest.raises(GENERATOR.Unreadable):
        list(GENERATOR.sandbox_notices(b"notice(code, message);"))


SITE_ROOT: Final = Path(__file__).parents[3]
SITE: Final = (SITE_ROOT / "scripts/site/mkdocs.yml").read_text()


def test_the_menu_and_docs_agree() -> None:
    menu = re.findall(r"^ +- (\S+\.md)$", SITE.partition("\nnav:\n")[2], re.M)
    beside = SITE.partition("\nnot_in_nav: |\n")[2].partition("\n\n")[0].split()
    docs = SITE_ROOT / "docs"
    pages = [str(file.relative_to(docs)) for file in docs.rglob("*.md")]
    assert sorted(menu) == sorted(page for page in pages if not any(fnmatch(page, one) for one in beside))
