"""A report of a fleet as data, as a page, and as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, plots
from benchmarks.fleet.fit import FULL, RESIDUAL, Point
from benchmarks.harness import table

Result = dict[str, Any]


def write(result: Result, folder: Path, name: str) -> list[Path]:
    """Writes NAME.json, NAME.md and the pictures; gives the files."""
    pictures = {part: text for part, text in pictures_of(result).items() if text}
    text = markdown(result, [f"{name}-{part}.svg" for part in pictures])
    return harness.write(folder, name, result, text, **pictures)


def markdown(result: Result, pictures: Sequence[str] = ()) -> str:
    """Returns the page."""
    about, core = result["machine"], result["core"]
    beside = f", {result['beside']}" if result["beside"] else ""
    text = [
        f"# Fleet, {about['date'][:10]}\n",
        f"{about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, Python {about['python']}, "
        f"Deno {about['deno']}; load "
        f"before it {about['load_average_before']}{beside}; `scripts/loadtest "
        f"--fleet{' --quick' if result['quick'] else ''}`.\n",
        f"Parts: {result['parts']}. {result['links']} {result['cores']}\n",
        *_yardstick(result["yardstick"]),
        *_linear(result["linear"]),
        *delayed_part(result["delayed"]),
        "\n## What a broker's core does (synthetic hosts)\n",
        "Synthetic: the hosts are real, their workers are no processes. They make the calls that a script "
        "names, and its run has ended; no script "
        "runs. So this is of brokers alone. CPU is microseconds a run, of all threads of a part. *Closed*: "
        "48 clients a broker begin a run with the "
        "last answer. *Offered*: runs are due at fixed times, and a latency counts from then.\n",
        _runs(core["rows"]),
        f"\n{_full(core['rows'])}\n",
        _calls(core["rows"]),
        *_mesh(core["mesh"]),
        *_memory(core["memory"]),
    ]
    return "\n".join([*text, "", *(f"![{name}]({name})\n" for name in pictures)])


def judged(result: Result) -> str:
    """Returns what is said of the line, in a sentence."""
    linear = result["linear"]
    full = {row["hosts"]: limit for row in linear["rows"] if (limit := limit_of(row)) is not None}
    said = ", ".join(f"{hosts}: {share:+.1%}" for hosts, share in linear["residuals"].items())
    line = (
        f"The line: {linear['per_host']:.3g} runs/s a host; off it, by hosts, {said}" if said else "No line"
    )
    if linear["met"] is None:
        verdict = "**Not judged**: at too few points the machine could do more"
    else:
        verdict = f"Within {RESIDUAL:.0%}: **{'met' if linear['met'] else 'not met'}**"
    by_limit: dict[str, list[str]] = {}
    for hosts, limit in full.items():
        by_limit.setdefault(limit, []).append(str(hosts))
    limits = " ".join(
        f"With {', '.join(hosts)} hosts {limit} was full (over {FULL:.0%})."
        for limit, hosts in by_limit.items()
    )
    return f"{line}. {verdict}. {limits or 'Nothing was full.'}"


def limit_of(row: Result) -> str | None:
    """Names what was full at a count of hosts; None: nothing."""
    return Point(row["hosts"], row["per_second"], row["broker_share"], row["machine_share"]).limit


def _yardstick(found: Result) -> list[str]:
    server = found["sdk_server"]
    return [
        "## Yardsticks of the same run\n",
        "- A server of the MCP SDK alone, whose tool does nothing, on the brokers' core, by the same "
        f"client: {server['per_second']:.0f} "
        f"requests/s, {server['us_a_run']['broker']:.0f} µs of CPU each, {server['broker_share']:.0%} of "
        "the core.",
        f"- A bare `deno run`: {found['bare_deno_ms']:.1f} ms (median).\n",
    ]


def _linear(linear: Result) -> list[str]:
    head = [
        "hosts", "places", "runs/s", "of the line", "p50 ms", "p99 ms", "busiest broker", "machine",
        "hosts' CPU ms a run", "MiB a host", "runs", "wrong",
    ]  # fmt: skip
    rows = [
        (
            row["hosts"],
            row["hosts"] * linear["capacity"],
            f"{row['per_second']:.2f}",
            f"{row['per_second'] / (linear['per_host'] * row['hosts']):.3f}" if linear["per_host"] else "",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['broker_share']:.0%}",
            f"{row['machine_share']:.0%}",
            f"{row['hosts_ms_a_run']:.1f}",
            f"{row['host_mib']:.0f}",
            row["runs"],
            row["wrong"],
        )
        for row in linear["rows"]
    ]
    return [
        "## Throughput against hosts (real workers)\n",
        f"{linear['brokers']} brokers, hosts of {linear['capacity']} places, scripts that wait "
        f"{linear['wait_ms'] / 1000:g} s for a tool of a stdio "
        "server, half as many clients again as places. Medians of the windows.\n",
        table(head, rows),
        f"\n{judged({'linear': linear})}",
    ]


def delayed_part(delayed: Result) -> list[str]:
    """Returns what is said of links that are delayed."""
    how = {
        "netem": "the kernel's netem at both ends of each link",
        "relays": "a relay in each link, which is there in the undelayed turns, too; none of it loses packets",
    }[delayed["by"]]
    rows = [
        (
            f"{row['delay_ms']:g} ms",
            f"{row['loss']:.1%}",
            f"{row['per_second']:.2f}",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['machine_share']:.0%}",
            row["runs"],
            row["wrong"],
        )
        for row in delayed["rows"]
    ]
    return [
        "\n## Hosts that are far away (real workers)\n",
        f"One broker, {delayed['hosts']} hosts, scripts that make {delayed['calls']} calls one after the other "
        f"and wait {delayed['wait_ms'] / 1000:g} s. What goes either way between broker and hosts is delayed by {how}. "
        f"Medians of {delayed['turns']} turns.\n",
        table(["delay", "lost", "runs/s", "p50 ms", "p99 ms", "machine", "runs", "wrong"], rows),
    ]


def _runs(rows: Iterable[Result]) -> str:
    head = [
        "script", "journal", "load", "brokers", "runs/s", "p50 ms", "p99 ms", "core", "loop", "broker µs",
        "hosts µs", "balancer µs", "client µs", "PostgreSQL µs", "transactions", "transactions/s", "WAL bytes", "wrong",
    ]  # fmt: skip
    return table(head, [_run(row) for row in rows])


def _run(row: Result) -> Sequence[object]:
    us = row["us_a_run"]
    return (
        row["script"],
        row["journal"],
        f"offered {row['offered']:.0f}/s" if row["arrival"] == "offered" else row["arrival"],
        row["brokers"],
        f"{row['per_second']:.0f}",
        f"{row['p50_ms']:.1f}",
        f"{row['p99_ms']:.1f}",
        f"{row['broker_share']:.0%}",
        f"{row['loop_share']:.0%}",
        *(f"{us.get(part, 0):.0f}" for part in ("broker", "hosts", "balancer", "client", "PostgreSQL")),
        f"{row['transactions_a_run']:.2f}",
        f"{row['transactions_a_run'] * row['per_second']:.0f}",
        f"{row['wal_bytes_a_run']:.0f}",
        row["wrong"],
    )


def _full(rows: Sequence[Result]) -> str:
    closed = [row for row in rows if row["arrival"] == "closed" and row["brokers"] == 1]
    short = [row for row in closed if row["broker_share"] < FULL]
    if not short:
        return "In each closed load of one broker its core was full: what stands there is what it does."
    names = ", ".join(
        f"{row['script']} with journal {row['journal']} ({row['broker_share']:.0%})" for row in short
    )
    return (
        f"The broker's core was not full with {names}: the other core, which has all else, was full first. "
        "What a core would do follows there from the "
        "microseconds."
    )


def _calls(rows: Sequence[Result]) -> str:
    head = ["", "journal", "broker µs", "PostgreSQL µs", "transactions", "WAL bytes", "runs/s a core"]
    found = costs(rows)
    lines = [
        (
            what,
            mode,
            f"{cost['broker_us']:.0f}",
            f"{cost['postgresql_us']:.0f}",
            f"{cost['transactions']:.2f}",
            f"{cost['wal_bytes']:.0f}",
            f"{1e6 / cost['broker_us']:.0f}" if what == "a run" else "",
        )
        for (what, mode), cost in found.items()
    ]
    return "\n### A run without a call, and each call (synthetic)\n\n" + table(head, lines)


def costs(rows: Sequence[Result]) -> dict[tuple[str, str], dict[str, float]]:
    """Returns what a run without a call takes, and each call of the two kinds, by journal mode."""
    closed = {
        (row["script"], row["journal"]): row
        for row in rows
        if row["arrival"] == "closed" and row["brokers"] == 1
    }
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (script, mode), row in closed.items():
        many, _, kind = script.partition(" calls of ")
        if kind:
            base = _costs_of(closed["no call", mode])
            found[f"a call of {kind}", mode] = {
                name: max(0.0, value - base[name]) / int(many) for name, value in _costs_of(row).items()
            }
        else:
            found["a run", mode] = _costs_of(row)
    return found


def _costs_of(row: Result) -> dict[str, float]:
    us = row["us_a_run"]
    return {
        "broker_us": us["broker"],
        "postgresql_us": us.get("PostgreSQL", 0.0),
        "transactions": row["transactions_a_run"],
        "wal_bytes": row["wal_bytes_a_run"],
    }


def _mesh(mesh: Result) -> list[str]:
    (few, few_us), (many, many_us) = mesh["us_a_run"].items()
    return [
        "\n## Hosts that idle (synthetic)\n",
        f"A host costs a broker {mesh['us_a_host_second']:.0f} µs of CPU each second (its heartbeat, "
        f"ZeroMQ's, CURVE), {mesh['kib_a_host']:.0f} KiB and {mesh['descriptors_a_host']:.2f} descriptors. "
        f"Without that, a run without a call takes {few_us:.0f} µs of the broker beside {few} hosts, and "
        f"{many_us:.0f} beside {many}. A broker without load makes {mesh['idle_transactions_a_second']:.2f} "
        "transactions a second.",
    ]


def _memory(memory: Result) -> list[str]:
    return [
        "\n## What is held (synthetic)\n",
        f"A broker has {memory['broker_mib']:.0f} MiB of its own; an open connection takes "
        f"{memory['kib_a_connection']:.0f} KiB and "
        f"{memory['descriptors_a_connection']:.2f} descriptors (TLS), a run that waits for a tool "
        f"{memory['kib_a_run']:.0f} KiB "
        f"({memory['runs_held']} at once). It has {memory['postgresql_sessions']} sessions at PostgreSQL.",
    ]


def pictures_of(result: Result) -> dict[str, str]:
    """Returns throughput against hosts, and the climb's latency."""
    linear = result["linear"]
    measured = [(float(row["hosts"]), float(row["per_second"])) for row in linear["rows"]]
    line = [(hosts, linear["per_host"] * hosts) for hosts, _ in measured]
    climb = [row for row in result["core"]["rows"] if row["arrival"] == "offered"]
    latency: plots.Series = {
        name: [(round(row["offered"]), row[key]) for row in climb]
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"))
    }
    return {
        "hosts": plots.lines(
            "Throughput against hosts, scripts that wait",
            "hosts",
            "runs per second",
            {"measured": measured, "line": line},
        ),
        "climb": plots.lines(
            "Latency against offered load, synthetic", "runs per second", "ms", latency, log_y=True
        ),
    }
