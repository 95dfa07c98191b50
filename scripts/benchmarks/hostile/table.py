"""The result as a table for people."""

from __future__ import annotations

from typing import Any, cast

from benchmarks.hostile.roles import BROKER

Row = dict[str, Any]


def markdown(result: Row) -> str:
    """The whole result."""
    about = result["machine"]
    lines = [
        f"# Beside hostile workloads, {about['date'][:10]}\n",
        f"{about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, Python {about['python']}, "
        f"Deno {about['deno']}; load before it {about['load_average_before']}.\n",
        f"A neighbour's trivial run over HTTP in ms, {result['runs']} of them beside each workload (those that a "
        "native worker has answered are none), counted from when each was due;"
        " in brackets the same neighbours alone in the same daemon just before. A stall is how late the "
        "broker's loop ran what was due, what its thread computed in it, and how long that had no core. Memory is "
        "resident.\n",
        "| workload | p50 | p99 | longest | failed | longest stall: CPU, no core | broker MiB | broker CPU s | other "
        "roles MiB | attacker billed | targets |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---|---|",
        *(_row(row) for row in result["workloads"]),
        "",
    ]
    lines += [f"- `{row['workload']}`: {row['says']}" for row in result["workloads"]]
    lines += [f"- left out: {text}" for text in result["left_out"]]
    lines += [f"- not measured: {text}" for text in result["not_measured"]]
    return "\n".join([*lines, ""])


def _row(row: Row) -> str:
    alone, beside, billed = row["alone"], row["beside"], row["billed"]

    def both(name: str) -> str:
        return f"{beside[name]:g} ({alone[name]:g})"

    def peak(which: Row) -> str:
        return f"{which['peak_mib'][BROKER]:.0f}"

    why = f"{beside['stall_cpu_ms']:g}, {beside['stall_coreless_ms']:g}"
    stall = f"{beside['stall_ms']:g}: {why} ({alone['stall_ms']:g})"
    others = ", ".join(f"{role} {size:.0f}" for role, size in beside["peak_mib"].items() if role != BROKER)
    endings = ", ".join(f"{count} {how}" for how, count in billed["endings"].items())
    each = billed["wall_ms"] / max(1, billed["runs"]) / 1000
    used = f"{billed['cpu_ms']} ms CPU, {billed['peak_mib']:.0f} MiB"
    bill = f"{used} for {billed['runs']} runs of {each:.1f} s: {endings}"
    notes = {
        key: value
        for key, value in billed.items()
        if key not in ("runs", "cpu_ms", "wall_ms", "peak_mib", "endings") and value
    }
    more = "".join(f"; {key.replace('_', ' ')}: {_shown(value)}" for key, value in notes.items())
    cells = [
        f"`{row['workload']}`",
        both("p50_ms"),
        both("p99_ms"),
        both("max_ms"),
        f"{beside['failed']} ({alone['failed']})"
        + (f", {beside['unsent']} unsent" if beside["unsent"] else ""),
        stall,
        f"{peak(beside)} ({peak(alone)})",
        both("broker_cpu_s"),
        others,
        (bill if billed["runs"] else "no run") + more,
        ", ".join(f"{name}: {word}" for name, word in row["targets"].items()),
    ]
    return f"| {' | '.join(cells)} |"


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    endings = cast("dict[str, int]", value)
    return ", ".join(f"{count} {how}" for how, count in endings.items())
