"""The report of a soak: Markdown for people, JSON for programs."""

from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from soak import figures
from soak.books import INVARIANTS

MIB: Final = harness.MIB
SHOWN_MOST: Final = 20


def write(folder: Path, name: str, report: dict[str, Any]) -> None:
    """Writes NAME.json and NAME.md."""
    harness.write(folder, name, report, _markdown(report))


def write_fleet(folder: Path, name: str, report: dict[str, Any]) -> None:
    """The same of a fleet's soak."""
    lines = [
        f"# Soak of a fleet, {report['date']}",
        "",
        f"`bash scripts/soak --fleet --minutes {report['minutes']:g} --seed {report['seed']}`: {report['fleet']}, on "
        f"{report['machine']['cores']} cores of {report['machine']['system']}.",
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


def _markdown(report: dict[str, Any]) -> str:
    broken = sum(report["broken"].values())
    verdict = (
        "every invariant held" if not broken else f"{broken} breaches of {len(report['broken'])} invariants"
    )
    left_out = "".join(f" --without {part}" for part in report["without"])
    lines = [
        f"# Soak of {report['date']}",
        "",
        f"`bash scripts/soak --minutes {report['minutes']:g} --seed {report['seed']}{left_out}`: {verdict}.",
        "",
        "Deaths meet whatever is there at the moment: a seed fixes the load and the order of deaths, not the course.",
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| {label} | {value} |" for label, value in _summary(report)),
        "",
        "## Invariants",
        "",
        "| invariant | what it says | breaches |",
        "|---|---|---|",
        *(f"| {label} | {text} | {report['broken'].get(label, 0)} |" for label, text in INVARIANTS.items()),
        "",
    ]
    for label, texts in report["breaches"].items():
        lines += [f"### {label}", "", *(f"- `{text}`" for text in texts), ""] if texts else []
    lines += [
        "## Runs by kind",
        "",
        "Latency is from the client's request to its answer, waiting in the queue included.",
        "",
        "| kind | runs | without error | other endings | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["kinds"]:
        endings = ", ".join(f"{code} {count}" for code, count in row["endings"].items()) or "none"
        figures_of = f"{row['runs']} | {row['without_error']} | {endings} | {row['p50_ms']} | {row['p99_ms']}"
        lines.append(f"| {row['kind']} | {figures_of} |")
    lines += ["", "## Machine", "", "| part | version |", "|---|---|"]
    lines += [f"| {part} | {value} |" for part, value in report["machine"].items()]
    return "\n".join(lines) + "\n"


def _summary(report: dict[str, Any]) -> list[tuple[str, str]]:
    memory = {
        who: f"{early / MIB:.1f} → {late / MIB:.1f} MiB, steady growth {steady / MIB:.1f} MiB"
        for who, (early, late, steady) in report["memory"].items()
    }
    recoveries = sorted(report["recoveries"])
    again = (
        f"median {figures.percentile(recoveries, 0.5)} s, longest {recoveries[-1]} s"
        if recoveries
        else "none killed"
    )
    calls = report["calls"]
    return [
        ("duration of the load", f"{report['seconds']:.0f} s, {report['clients']} runs at once"),
        ("runs, answers in a second", f"{report['runs']:,}, {report['runs'] / report['seconds']:.1f}"),
        ("answers", f"{report['answers']:,}, of which {report['duplicate_answers']} second answers"),
        (
            "tool calls in the ledgers",
            f"{calls['recorded']:,}, of which {calls['duplicates']} twice; told completed {calls['completed']:,}, "
            f"may have run {calls['uncertain']:,}, not started {calls['not_started']:,}",
        ),
        ("deaths and pauses", ", ".join(f"{what} {count}" for what, count in report["faults"].items())),
        ("from a host's SIGKILL to the next good answer", again),
        ("resident memory early → late, broker", memory["broker"]),
        ("resident memory early → late, longest-lived host", memory["host"]),
        *_hostile(report),
        *_kills(report.get("kills", {})),
        ("descriptors at rest before → after, broker", report["descriptors"]["broker"]),
        ("descriptors at rest before → after, host", report["descriptors"]["host"]),
        ("processes seen, left at the end", f"{report['processes_seen']:,}, {report['processes_left']}"),
        ("load average at the end", report["load_average"]),
    ]


def _hostile(report: dict[str, Any]) -> list[tuple[str, str]]:
    met = report["hostile"].get("neighbours")
    if not met:
        return []
    peak = max(report["samples"]["broker_rss"], default=0) / MIB
    missed = f"of {met['runs']}, {met['failed']} failed and {met['unsent']} could not be sent"
    deeds = {
        **report["hostile"]["deeds"],
        "native attackers": "among the workers" if report["native"] else "none",
    }
    return [
        (
            "a quiet neighbour's trivial run, p50, p99, longest",
            f"{met['p50_ms']}, {met['p99_ms']}, {met['max_ms']} ms; {missed}",
        ),
        ("most resident memory of the broker", f"{peak:.0f} MiB"),
        ("hostile actors", ", ".join(f"{what} {count}" for what, count in deeds.items())),
    ]


def _kills(found: dict[str, Any]) -> list[tuple[str, str]]:
    if not found:
        return []
    deaths, others = (
        ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in found[part].items())
        for part in ("faults", "counts")
    )
    return [("deaths at the daemon whose runs wait", deaths), ("its requests, runs and calls", others)]
