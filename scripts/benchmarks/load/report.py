"""A result as JSON, as a markdown table, as pictures, and beside another one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks import harness, plots
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
    if (
        not isinstance(found, dict)
        or not {"machine", "quick", "targets", "stages", "worker", "sweep", "flat"} <= found.keys()
    ):
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
    """Writes NAME.json, NAME.md and the pictures NAME-*.svg; gives the files."""
    pictures = {part: text for part, text in pictures_of(result).items() if text}
    text = markdown(result, [f"{name}-{part}.svg" for part in pictures])
    return harness.write(folder, name, result, text, **pictures)


def markdown(result: Result, pictures: Sequence[str] = ()) -> str:
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
    if result.get("floor"):
        text += _floor_table(result["floor"])
    stages = [(name, value) for part in ("stages", "worker") for name, value in result[part].items()]
    if stages:
        text += ["\n## Where the time of one warm run goes\n", "| stage | ms (median) |", "|---|---:|"]
        text += [f"| {name} | {value:.2f} |" for name, value in stages]
    if result["sweep"]:
        text += _sweep_table(result["sweep"])
    if result["flat"]:
        text += [
            "\n## Private memory over many runs\n",
            "| reuse | runs | broker MiB | host MiB | largest worker MiB |",
            "|---|---:|---:|---:|---:|",
            *(
                f"| {row.get('reuse', 'never')} | {row['runs']} | {row['broker_mib']:.1f} | {row['host_mib']:.1f} "
                f"| {row.get('worker_mib', 0.0):.1f} |"
                for row in result["flat"]
            ),
        ]
    text += ["", *(f"![{name}]({name})\n" for name in pictures)]
    return "\n".join(text)


def _floor_table(rows: Sequence[Result]) -> list[str]:
    return [
        "\n## The thinnest chain of the same parts\n",
        "Python, ZeroMQ, Python, pipes and a warm Deno process for one run, without any of Cellblock: nothing is "
        "checked, capped, logged or looked at. Isolated: with bubblewrap and the seccomp filter.\n",
        "| target | what | thin | isolated | Cellblock | bound |",
        "|---|---|---:|---:|---:|---:|",
        *(
            f"| {row['target']} | {row['what']} | {row['thin']:.3g} | {row['isolated']:.3g} | {row['ours']:.3g} "
            f"| {row['bound']:.3g} |"
            for row in rows
        ),
    ]


def _sweep_table(rows: Sequence[Result]) -> list[str]:
    """Also of the results before 2026-11-24, whose loads were closed and had no bare process beside them."""
    bare = {_load(row): row for row in rows if _way(row) == sweep.BARE}
    text = [
        "\n## Load, in turns with bare processes\n",
        "Medians of the rounds. CPU is milliseconds a run: the whole machine's, which a paced load divides its idle "
        "moments among, and of the daemon's broker, host, and worker in its run. A closed load counts from half "
        "a second after its start.\n",
        "| script | clients | arrival | way | runs/s | of bare's | p50 ms | of bare's | p90 ms | p99 ms | queue p99 ms "
        "| CPU | broker | host | worker | errors |",
        f"|---|---|---|---|{'---:|' * 12}",
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
            *(f"{cpu[part]:.2f}" if cpu.get(part) else "" for part in ("machine", "broker", "host", "worker")),
            latency["errors"],
        ]  # fmt: skip
        text.append(f"| {' | '.join(map(str, cells))} |")
    return text


def _way(row: Result) -> str:
    return str(row.get("way", row["front"]))


def _load(row: Result) -> tuple[Any, ...]:
    """What names a load, whichever way it went."""
    return row["scenario"], row["clients"], row.get("arrival", "closed"), row.get("principals", 1)


def pictures_of(result: Result) -> dict[str, str]:
    """Rate and p99 of the trivial script against clients, each way a line, and where the time of a run goes."""
    rate: plots.Series = {}
    tail: plots.Series = {}
    for row in result["sweep"]:
        name, clients = _way(row), float(row["clients"])
        if _load(row) == ("trivial", row["clients"], "closed", 1):
            rate.setdefault(name, []).append((clients, float(row["per_second"])))
        elif _load(row) == ("trivial", row["clients"], "paced", 1):
            tail.setdefault(name, []).append((clients, float(row["latency"]["p99_ms"])))
    stages = [(name, float(value)) for name, value in result["stages"].items()]
    return {
        "throughput": plots.lines(
            "Throughput, trivial script", "clients", "runs per second", rate, even_x=True
        ),
        "tail": plots.lines("p99 latency, paced", "clients", "ms", tail, log_y=True, even_x=True),
        "stages": plots.bars("Where the time of one warm run goes", stages, "ms") if stages else "",
    }


def compare(new: Result, old: Result) -> str:
    """Two results side by side, as markdown."""
    text = [
        f"| what | {old['machine']['date'][:16]} | {new['machine']['date'][:16]} | ratio |",
        "|---|---:|---:|---:|",
    ]
    before = {row["target"] + row["what"]: row for row in old["targets"]}
    for row in new["targets"]:
        known = before.get(row["target"] + row["what"])
        if known is not None:
            text.append(
                _compared(f"target {row['target']}: {row['what']}", known["measured"], row["measured"])
            )
    pairs: dict[str, list[float]] = {"p50": [], "p99": [], "runs/s": []}
    loads = {(_way(row), row["front"], _load(row)): row for row in old["sweep"]}
    for row in new["sweep"]:
        known = loads.get((_way(row), row["front"], _load(row)))
        if known is not None:
            label = (
                f"{_way(row)}, {row['scenario']}, {row['clients']} clients, {row.get('arrival', 'closed')}"
            )
            for what, before_it, after in (
                ("p50", known["latency"]["p50_ms"], row["latency"]["p50_ms"]),
                ("p99", known["latency"]["p99_ms"], row["latency"]["p99_ms"]),
                ("runs/s", known["per_second"], row["per_second"]),
            ):
                text.append(_compared(f"{label}: {what}", before_it, after))
                pairs[what] += [after / before_it] if before_it else []
    text += [""] + [_agreement(what, ratios) for what, ratios in pairs.items() if ratios]
    return "\n".join([*text, ""])


def _agreement(what: str, ratios: list[float]) -> str:
    close, near = (sum(1 / (1 + part) <= ratio <= 1 + part for ratio in ratios) for part in (0.1, 0.25))
    return (
        f"- {what}, {len(ratios)} loads: median ratio {statistics.median(ratios):.2f}, {min(ratios):.2f} to "
        f"{max(ratios):.2f}; {close} within 10 %, {near} within 25 %"
    )


def _compared(label: str, old: float, new: float) -> str:
    return f"| {label} | {old:.3g} | {new:.3g} | {new / old if old else 0:.2f} |"
