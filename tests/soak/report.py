"""The report of a soak: Markdown for people, JSON for programs."""

from pathlib import Path
from typing import Any, Final

from benchmarks import harness

SHOWN_MOST: Final = 20


def write(folder: Path, name: str, report: dict[str, Any]) -> None:
    """Writes NAME.json and NAME.md."""
    lines = [
        f"# Soak, {report['date']}",
        "",
        f"`bash scripts/soak{report['options']} --minutes {report['minutes']:g} --seed {report['seed']}`: "
        f"{report['of']}, on {report['machine']['cores']} cores of {report['machine']['system']}.",
        "",
        f"{len(report['wrong'])} breaches:" if report["wrong"] else "Everything held.",
        *(f"- {text[:500]}" for text in report["wrong"]),
        "",
        harness.table(["what was done", "times"], report["faults"].items()),
        "",
        harness.table(["what there was", "count"], report["counts"].items()),
        "",
    ]
    harness.write(folder, name, report, "\n".join(lines))
