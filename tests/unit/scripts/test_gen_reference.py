"""Generated pages, and the menu of the documentation's site."""

from __future__ import annotations

import ast
import importlib.util
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest

import gen_scale
from gen_scale import costs_of, needs, newest, page_of, tables

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


ROOT = Path(__file__).resolve().parents[3]


def row(script: str, mode: str, broker_us: float, transactions: float = 0.0, **more: Any) -> dict[str, Any]:
    usage = {"broker": broker_us, "PostgreSQL": 100 * transactions, "balancer": 10.0}
    return {
        "script": script, "journal": mode, "arrival": "closed", "brokers": 1, "us_a_run": usage,
        "transactions_a_run": transactions, "wal_bytes_a_run": 1024 * transactions, "per_second": 50.0, **more,
    }  # fmt: skip


def result(*, host_us: float = 20.0) -> dict[str, Any]:
    """Of a run with four calls: 2,000 µs of the broker; with all written down twice that, and 10 transactions."""
    rows = [
        one
        for mode, us, written in (("off", 1000.0, 0), ("parked", 1000.0, 0), ("all", 2000.0, 1))
        for one in (
            row("no call", mode, us, 2 * written),
            row("10 calls of a stdio server", mode, us + 2500 * (1 + written), 2 * written + 20 * written),
        )
    ]
    mesh = {
        "us_a_host_second": host_us,
        "idle_transactions_a_second": 1.0,
        "kib_a_host": 32.0,
        "descriptors_a_host": 1.0,
    }
    memory = {
        "broker_mib": 100.0,
        "kib_a_connection": 64.0,
        "kib_a_run": 64.0,
        "descriptors_a_connection": 1.0,
        "postgresql_sessions": 5,
    }
    machine = {"cores": 2, "system": "Linux", "load_average_before": [0.1, 0.1, 0.1]}
    return {
        "machine": machine,
        "beside": "",
        "quick": False,
        "core": {"rows": rows, "memory": memory, "mesh": mesh},
        "linear": {"rows": [{"hosts": 16, "hosts_ms_a_run": 50.0, "host_mib": 120.0}]},
    }


def test_the_page_has_the_tables_of_the_newest_result() -> None:
    page = gen_scale.PAGE.read_text("utf-8")
    assert page_of(newest(), page) == page, "run scripts/gen_scale"
    assert newest().read_text("utf-8").count("\n") > 3 and "### A thousand hosts" in page


def test_a_thousand_hosts_need_what_can_be_computed_by_hand() -> None:
    found = needs(1000, costs_of(result(), "parked"))
    # 12,000 places in use for 5 s; 2,000 µs each are 4.8 cores; each broker has 0.7 of one, less 0.02 for idle hosts.
    assert found["runs"] == 2400 and found["brokers"] == 8
    assert (found["links"], found["heartbeats"], found["sessions"]) == (8000, 8000, 40)
    assert found["held"] == 1500 and found["descriptors"] == 1000 + 1500
    assert found["broker_mib"] == pytest.approx(100 + 1000 * 32 / 1024 + 1500 * 128 / 1024)
    assert found["transactions"] == pytest.approx(8)
    assert found["host_cores"] == pytest.approx(120) and found["balancer_cores"] == pytest.approx(0.024)
    # 10 transactions a run, of which one broker has made 50 times 22 a second: at most 70 % of that.
    written = needs(1000, costs_of(result(), "all"))
    assert written["brokers"] == 32 and written["transactions"] == pytest.approx(2400 * 10 + 32)
    assert written["postgresql_cores"] == pytest.approx(2400 * 1000 / 1e6)


def test_hosts_that_idle_can_fill_every_broker() -> None:
    assert needs(35_000, costs_of(result(), "parked"))["brokers"] is None
    assert "no number is enough" in tables(result(host_us=700.0), "x.json")


SITE_ROOT: Final = Path(__file__).parents[3]
SITE: Final = (SITE_ROOT / "scripts/site/mkdocs.yml").read_text()


def test_the_menu_and_docs_agree() -> None:
    menu = re.findall(r"^ +- (\S+\.md)$", SITE.partition("\nnav:\n")[2], re.M)
    beside = SITE.partition("\nnot_in_nav: |\n")[2].partition("\n\n")[0].split()
    docs = SITE_ROOT / "docs"
    pages = [str(file.relative_to(docs)) for file in docs.rglob("*.md")]
    assert sorted(menu) == sorted(page for page in pages if not any(fnmatch(page, one) for one in beside))
