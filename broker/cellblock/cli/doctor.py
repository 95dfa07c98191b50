"""`cellblock doctor`: what is in force on this machine, what is missing and how to get it, in plain words."""

from __future__ import annotations

import asyncio
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock import __version__
from cellblock.base.errors import ConfigError, HostUnavailable
from cellblock.base.state_dir import LOGS, check_state_dir
from cellblock.base.terminal import Painter
from cellblock.catalog.naming import module_paths
from cellblock.cli.checkups import deno_trouble, fix_of, isolation_fix, low_disk, state_dir_trouble
from cellblock.cli.checkups_daemon import certificate_state, daemon_state, token_trouble
from cellblock.cli.overlay_faults import overlay_faults
from cellblock.daemon.broker import Broker
from cellblock.typecheck import compiler
from cellblock.upstream.stderr_log import upstream_log

PROBE: Final = "globalThis.__codemode_result__ = 6 * 7;"
PROBE_RESULT: Final = 42
TYPE_PROBE: Final = "nothingOfThisName;"
VERSION_BOUND_SECONDS: Final = 10.0

LARGE_BODIES_CAPPED: Final = "processes that read large bodies: a cgroup each, of its task's memory"
LARGE_BODIES_UNCAPPED: Final = (
    "processes that read large bodies: no memory cgroup; "
    "their data is bounded, and nothing else of their memory"
)
"""Beside the workers: the broker's own."""

PLAIN: Final = Painter(None)


@dataclass(slots=True)
class Report:
    """What was found. `problems` are what keeps Cellblock or a server from working; `missing` only weakens it;
    `warnings` are about tools of servers that work."""

    versions: dict[str, str]
    state_dir: str
    isolation: str
    typecheck: str = ""
    daemon: str = ""
    layers: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    servers: dict[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Whether nothing keeps it from working."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "ok": self.ok,
            "versions": self.versions,
            "stateDir": self.state_dir,
            "isolation": self.isolation,
            "layers": self.layers,
            "missing": self.missing,
            "typecheck": self.typecheck,
            "daemon": self.daemon,
            "servers": self.servers,
            "warnings": self.warnings,
            "problems": self.problems,
        }

    def as_text(self, paint: Painter = PLAIN) -> str:
        """The report for people."""
        lines = [paint("Versions", "bold")]
        lines += [f"  {name} {version}" for name, version in self.versions.items()]
        lines += [
            "",
            f"State directory: {self.state_dir}",
            "",
            paint(f"Around each worker (isolation = {self.isolation})", "bold"),
        ]
        lines += [f"  {paint('in force', 'green')}  {layer}" for layer in self.layers]
        lines += [f"  {paint('missing', 'yellow')}   {layer}" for layer in self.missing]
        lines += ["", f"Type checking of scripts: {self.typecheck}"]
        if self.daemon:
            lines += ["", f"Daemon: {self.daemon}"]
        if self.servers:
            lines += ["", paint("Servers", "bold")]
            lines += [
                f"  {name}: {paint(state, 'green' if state.startswith('connected') else 'red')}"
                for name, state in self.servers.items()
            ]
        if self.warnings:
            lines += ["", paint("Warnings", "bold", "yellow"), *(f"  {warning}" for warning in self.warnings)]
        verdict = (
            paint("Problems", "bold", "red")
            if self.problems
            else paint("No problems found.", "bold", "green")
        )
        lines += ["", verdict]
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines)


async def examine(
    broker: Broker,
    *,
    warnings: Sequence[str] = (),
    address: str | None = None,
    tls: tuple[Path | None, Path | None] = (None, None),
) -> Report:
    """Starts the broker, connects to every server, and runs one script.

    Args:
        broker: Not yet entered; closed again afterwards.
        warnings: What is known already.
        address: Where a daemon usually is, as `HOST:PORT`; None does not look.
        tls: The certificate and the key that a daemon is to serve with.
    """
    settings = broker.settings
    versions = {"cellblock": __version__, "Python": platform.python_version(), "system": platform.platform()}
    report = Report(versions, str(settings.state_dir), settings.cellblock.isolation.mode)
    report.typecheck = _typecheck(settings.cellblock.typecheck)
    report.warnings += warnings
    if address is not None:
        report.daemon, warning = await asyncio.to_thread(daemon_state, address)
        report.warnings += [warning] if warning else []
    trouble, warning = certificate_state(*tls)
    report.problems += [trouble] if trouble else []
    report.warnings += [warning] if warning else []
    trouble = state_dir_trouble(settings.state_dir)
    if trouble is not None:
        report.problems.append(trouble)
        return report
    shared, low = check_state_dir(settings.state_dir), low_disk(settings.state_dir)
    report.warnings += [warning for warning in (shared, low) if warning]
    token, deno = token_trouble(settings), deno_trouble()
    report.problems += [trouble for trouble in (token, deno) if trouble]
    if deno is not None:
        return report  # nothing could start
    enabled = {name: server for name, server in settings.servers.items() if not server.disabled}
    names = {path: name for name, path in module_paths(enabled).items()}
    try:
        async with broker:
            await broker.settled()
            for hello in broker.hosts:
                report.layers = hello.layers
                report.missing = [_with_fix(layer) for layer in hello.missing]
                versions["Deno"] = _deno_version(hello.deno)
            if settings.cellblock.isolation.mode != "off":
                if broker.apart.caps_memory:
                    report.layers.append(LARGE_BODIES_CAPPED)
                else:
                    report.missing.append(LARGE_BODIES_UNCAPPED)
            for server in broker.catalog.servers.values():
                left_out = f", {len(server.withheld)} left out" if server.withheld else ""
                report.servers[server.server_id] = f"connected, {len(server.tools)} tools{left_out}"
                report.warnings += [f"{server.server_id}: {warning}" for warning in server.warnings]
            for server_id, reason in broker.catalog.unavailable.items():
                report.servers[server_id] = f"not connected: {reason}"
                name = names.get(server_id, server_id)
                log = upstream_log(settings.state_dir / LOGS, name)
                fix = fix_of(enabled.get(name), reason, log)
                report.problems.append(f"Server {server_id} is not connected: {reason}. {fix}")
            report.warnings += map(str, await asyncio.to_thread(overlay_faults, settings, broker.catalog))
            response = await broker.run(PROBE)
            if response.result != PROBE_RESULT:
                found = response.diagnostics[0].message if response.diagnostics else "a wrong result"
                report.problems.append(f"A script that only computes does not run: {found}")
            if compiler.why_absent() is None and settings.cellblock.typecheck != "off":
                report.typecheck += await _failed_check(broker)
    except (HostUnavailable, ConfigError) as error:
        # The hint of the one is to run this very command.
        said = str(error).removesuffix(f" {error.hint}") if isinstance(error, HostUnavailable) else str(error)
        report.problems.append(_with_fix(said))
    return report


def _with_fix(said: str) -> str:
    fix = isolation_fix(said)
    return f"{said.removesuffix('.')}. {fix}" if fix else said


def _typecheck(mode: str) -> str:
    if mode == "off":
        return "off, by the configuration"
    absent = compiler.why_absent()
    if absent is not None:
        return f"off: {absent}. {compiler.FIX}"
    return f"{mode} (TypeScript {compiler.version()})"


async def _failed_check(broker: Broker) -> str:
    """What goes wrong when a script with a type error is checked, or nothing."""
    response = await broker.run(TYPE_PROBE, typecheck="before")
    missed = next((found for found in response.diagnostics if found.code == "TYPECHECK_UNAVAILABLE"), None)
    return f", but a trial failed: {missed.message}" if missed else ""


def _deno_version(binary: str) -> str:
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=VERSION_BOUND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return done.stdout.partition("\n")[0].removeprefix("deno ") if done.returncode == 0 else "does not run"
