"""What was measured of the systems, as Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import table
from benchmarks.load.scenarios import BODIES
from benchmarks.peers.hostile import LOOPS, SURVIVED

Result = dict[str, Any]


def markdown(result: Result) -> str:
    """The whole result for people."""
    about = result["machine"]
    names = [row["name"] for row in result["systems"] if not row["missing"]]
    load = {(row["system"], row["scenario"], row["clients"]): row for row in result["load"]}
    text = [
        f"# Beside other systems, {about['date'][:10]}\n",
        f"{about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, Python {about['python']}, Deno "
        f"{about['deno']}; load before it {about['load_average_before']}; "
        f"`scripts/loadtest --peers{' --quick' if result['quick'] else ''}`.\n",
        "Each system is in a process of its own and gets the same scripts through the same pipe, in turns; its tools "
        "are functions of that process. FastMCP gets them in Python. What the pipe adds is in every figure.\n",
        table(
            ("system", "version", "what is around a script", "not measured, because"),
            (
                (row["name"], row["version"], row["isolates"], row["missing"] or "")
                for row in result["systems"]
            ),
        ),
    ]
    for clients in sorted({row["clients"] for row in result["load"]}):
        for title, unit, value in (("Runs per second", "", _rate), ("p50", " in ms", _p50)):
            text += [
                f"\n## {title}{unit}, {clients} client{'s' if clients > 1 else ''}\n",
                table(
                    ("system", *BODIES),
                    ((name, *(value(load[name, body, clients]) for body in BODIES)) for name in names),
                ),
            ]
    loops = {(row["system"], row["loop"]): row for row in result["loops"]}
    text += [
        "\n## Hostile loops\n",
        "Each in a fresh process, with a bound of 2 s and 128 MiB where the system has one. *Survived*: the loop was "
        "ended or refused after so long, and another's run beside it and the next one are right. *Neighbour*: how long "
        "the run beside it took, which came 0.3 s after the loop had begun.\n",
        table(
            ("system", *LOOPS),
            (
                (name, *(_loop(loops.get((name, loop))) for loop in LOOPS))
                for name in names
                if any(row["system"] == name for row in result["loops"])
            ),
        ),
        "\nWhat was said:\n",
        *(
            f"- {row['system']}, {row['loop']}: `{row['said'].replace('`', chr(39))}`"
            for row in result["loops"]
            if row.get("said")
        ),
    ]
    return "\n".join([*text, ""])


def _rate(row: Result) -> str:
    return f"{row['per_second']:.0f}" if row["latency"]["count"] else "fails"


def _p50(row: Result) -> str:
    return f"{row['latency']['p50_ms']:.1f}" if row["latency"]["count"] else "fails"


def _loop(row: Result | None) -> str:
    if row is None:
        return ""
    verdict = str(row["verdict"])
    if verdict == SURVIVED:
        verdict += f", {row['seconds']:.1f} s" + ("; still computes" if row["computing"] else "")
    elif "neighbour_s" not in row:
        return verdict
    else:
        verdict = f"**{verdict}**"
    beside = row["neighbour_s"]
    return f"{verdict}; neighbour {'not answered' if beside is None else f'{beside:.2g} s'}"
