"""A result as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks import harness
from benchmarks.load import sweep
from benchmarks.load.targets import Verdict

Result = dict[str, Any]


class NoResult(ValueError):
    """A file that is no result of this harness; the text says which and why."""


def read(file: Path) -> Result:
    """A result that was written before. Raises NoResult."""
    try:
        found: object = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise NoResult(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict) or not {"machine", "quick", "targets", "sweep"} <= found.keys():
        raise NoResult(f"{file} is no JSON result of scripts/loadtest")
    return cast("Result", found)


def verdict_rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The targets as JSON rows."""
    return [
        {
            "target": one.number,
            "what": one.what,
            "measured": round(one.measured, 4),
            "bound": round(one.bound, 4),
            "unit": one.unit,
            "met": one.met,
            "detail": one.detail,
        }
        for one in verdicts
    ]


def write(result: Result, folder: Path, name: str) -> list[Path]:
    """Writes NAME.json and NAME.md; gives the files."""
    return harness.write(folder, name, result, markdown(result))


def markdown(result: Result) -> str:
    """The whole result for people."""
    about = result["machine"]
    text = [
        f"# Load test, {about['date'][:10]}\n",
        f"{about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, Python {about['python']}, "
        f"Deno {about['deno']}, pyzmq {about['pyzmq']}, mcp {about['mcp']}; load before it "
        f"{about['load_average_before']}; `scripts/loadtest{' --quick' if result['quick'] else ''}`.\n",
    ]
    if result["targets"]:
        text += [
            "## Targets\n",
            "| target | what | measured | bound | met | figures |",
            "|---|---|---:|---:|---|---|",
        ]
    for row in result["targets"]:
        unit = f" {row['unit']}" if row["unit"] else ""
        met = "yes" if row["met"] else "**no**"
        text.append(
            f"| {row['target']} | {row['what']} | {row['measured']:.3g}{unit} | {row['bound']:.3g}{unit} "
            f"| {met} | {row['detail']} |"
        )
    if result["sweep"]:
        text += _sweep_table(result["sweep"])
    return "\n".join([*text, ""])


def _sweep_table(rows: Sequence[Result]) -> list[str]:
    """Also of the results before 2026-11-24, whose loads were closed and had no bare process beside them."""
    bare = {_load(row): row for row in rows if _way(row) == sweep.BARE}
    text = [
        "\n## Load, in turns with bare processes\n",
        "Medians of the rounds. CPU is milliseconds a run: the whole machine's, which a paced load divides its idle "
        "moments among, and of the daemon's broker, host, launcher of workers, and worker in its run. A closed load "
        "counts from half a second after its start.\n",
        "| script | clients | arrival | way | runs/s | of bare's | p50 ms | of bare's | p90 ms | p99 ms | queue p99 ms "
        "| CPU | broker | host | launcher | worker | errors |",
        f"|---|---|---|---|{'---:|' * 13}",
    ]
    for row in rows:
        latency, cpu = row["latency"], row.get("cpu_ms", {"machine": row.get("cpu_ms_per_run")})
        beside = bare.get(_load(row))
        ratios = ["", ""]
        if beside is not None and beside is not row and latency["count"]:
            ratios = [
                f"{row['per_second'] / beside['per_second']:.2f}",
                f"{latency['p50_ms'] / beside['latency']['p50_ms']:.2f}",
            ]
        clients = (
            f"{row['clients']}, of {row['principals']}" if row.get("principals", 1) > 1 else row["clients"]
        )
        cells = [
            row["scenario"], clients, row.get("arrival", "closed"), _way(row), f"{row['per_second']:.1f}", ratios[0],
            f"{latency['p50_ms']:.2f}", ratios[1], f"{latency['p90_ms']:.1f}", f"{latency['p99_ms']:.1f}",
            f"{row['queue']['p99_ms']:.1f}",
            *(f"{cpu[part]:.2f}" if cpu.get(part) else "" for part in sweep.PARTS),
            latency["errors"],
        ]  # fmt: skip
        text.append(f"| {' | '.join(map(str, cells))} |")
    return text


def _way(row: Result) -> str:
    return str(row.get("way", row["front"]))


def _load(row: Result) -> tuple[Any, ...]:
    """What names a load, whichever way it went."""
    return row["scenario"], row["clients"], row.get("arrival", "closed"), row.get("principals", 1)
