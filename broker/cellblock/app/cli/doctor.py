"""Doctor runs the command `doctor`: what is in force on this machine, what is missing and how to get it."""

from __future__ import annotations

import argparse
import asyncio
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from cellblock import __version__
from cellblock.app.broker import Broker
from cellblock.app.cli.asking import Person, answered
from cellblock.app.cli.config_check import Checked, check_config
from cellblock.app.cli.fixes import (
    certificate_state,
    deno_trouble,
    isolation_fix,
    low_disk,
    served_certificate,
    state_dir_trouble,
    token_trouble,
    with_fix,
)
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import QUIET_SECONDS, config_used, reading, settled, store_to_read
from cellblock.app.cli.overlay_faults import overlay_faults
from cellblock.app.cli.streams import write_json
from cellblock.base.daemon_socket import addresses
from cellblock.base.errors import ConfigError, HostUnavailable, counted
from cellblock.base.settings.problems import dotted
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import LOGS, check_state_dir
from cellblock.base.terminal import Painter
from cellblock.record.journal import Journal
from cellblock.record.scripts.approvals import Approvals
from cellblock.run.flows.overview import overview
from cellblock.run.policy.policy import idle_patterns
from cellblock.run.request import request_of
from cellblock.serve.http.address import Address
from cellblock.serve.stdio.daemon import is_taken
from cellblock.tools.catalog.naming import module_paths
from cellblock.tools.upstream.server_log import upstream_log
from cellblock.types.check import compiler

PROBE: Final = "globalThis.__codemode_result__ = 6 * 7;"
PROBE_RESULT: Final = 42
TYPE_PROBE: Final = "nothingOfThisName;"
VERSION_BOUND_SECONDS: Final = 10.0


@dataclass(slots=True)
class Report:
    """A report has `problems`, which keep Cellblock or a server from working, `missing`, which only weakens it, and
    `warnings`, which are about tools of servers that work."""

    versions: dict[str, str]
    config: str
    state_dir: str
    isolation: str
    layers: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    typecheck: str = ""
    daemon: str = ""
    servers: dict[str, str] = field(default_factory=dict[str, str])
    scripts: dict[str, str] = field(default_factory=dict[str, str])
    flows: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])

    def note(self, problem: str | None, *warnings: str | None) -> None:
        self.problems += [problem] if problem else []
        self.warnings += [warning for warning in warnings if warning]

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.problems} | {to_camel(name): value for name, value in asdict(self).items()}

    def as_text(self, paint: Painter) -> str:
        parts = [
            [paint("Versions", "bold"), *(f"  {name} {version}" for name, version in self.versions.items())],
            [f"Configuration: {self.config}", f"State directory: {self.state_dir}"],
            [
                paint(f"Around each worker (isolation = {self.isolation})", "bold"),
                *(f"  {paint('in force', 'green')}  {layer}" for layer in self.layers),
                *(f"  {paint('missing', 'yellow')}   {layer}" for layer in self.missing),
            ],
            [f"Type checking of scripts: {self.typecheck}"],
        ]
        if self.daemon:
            parts.append([f"Daemon: {self.daemon}"])
        if self.servers:
            states = (
                f"  {name}: {paint(state, 'green' if state.startswith('connected') else 'red')}"
                for name, state in self.servers.items()
            )
            parts.append([paint("Servers", "bold"), *states])
        if self.scripts:
            approved = (f"  {name}: {said}" for name, said in self.scripts.items())
            parts.append([paint("Kept scripts that run", "bold"), *approved])
        if self.flows:
            parts.append([paint("Where data may go", "bold"), *(f"  {line}" for line in self.flows)])
        if self.warnings:
            parts.append([paint("Warnings", "bold", "yellow"), *(f"  {text}" for text in self.warnings)])
        verdict = ("Problems", "red") if self.problems else ("No problems found.", "green")
        parts.append([paint(verdict[0], "bold", verdict[1]), *(f"  {text}" for text in self.problems)])
        return "\n\n".join("\n".join(part) for part in parts)


def _examined(parsed: argparse.Namespace) -> Checked | None:
    return None if parsed.config is None else check_config(parsed.config)


@reading(_examined)
async def run(parsed: argparse.Namespace, checked: Checked | None) -> int:
    """Prints the report on this machine.

    Raises:
        ConfigError: The configuration has errors, or the address cannot be used.
    """
    settings, warnings = Settings(), list[str]()
    if checked is not None:
        warnings = checked.sentences()
        if parsed.json and checked.errors:
            write_json({"ok": False, "problems": warnings})
        settings = checked.usable()
    broker = Broker(settings.with_state_dir(parsed.state_dir).for_one_run(), state_dir="user")
    where, tls = Address.parse(parsed.http), (parsed.tls_cert, parsed.tls_key)

    report = await _examine(parsed, broker, f"{where.host}:{where.port}", tls)
    report.warnings[:0] = warnings
    if parsed.json:
        write_json(report.as_json())
    else:
        sys.stdout.write(report.as_text(Painter(sys.stdout)) + "\n")
    return EXIT_NO if report.problems else EXIT_OK


async def _examine(
    parsed: argparse.Namespace, broker: Broker, address: str, tls: tuple[Path | None, Path | None]
) -> Report:
    """Looks at this machine, and has a daemon, or the broker, connect to every server and run one script."""
    settings = broker.settings
    section, state_dir = settings.cellblock, settings.state_dir
    versions = {"cellblock": __version__, "Python": platform.python_version(), "system": platform.platform()}
    checked = _typecheck(section.typecheck)
    report = Report(versions, config_used(parsed), str(state_dir), section.isolation, typecheck=checked)
    report.note(*certificate_state(*tls))
    trouble = state_dir_trouble(state_dir)
    report.note(trouble)
    if trouble is not None:
        return report
    report.note(token_trouble(state_dir), check_state_dir(state_dir), low_disk(state_dir))
    deno = deno_trouble()
    report.note(deno)
    if deno is not None:
        return report  # nothing could start
    person = Person()
    try:
        found: dict[str, Any] = await answered(parsed, broker, "doctor", {}, person)
    except (HostUnavailable, ConfigError) as error:
        # The hint of the one is to run this very command.
        report.problems.append(_with_fix(error.message if "cellblock doctor" in error.hint else str(error)))
        return report
    finally:
        report.daemon = person.told
        if address not in addresses(state_dir) and await is_taken(address):
            report.warnings.append(
                f"{address} is taken by another program, or by a daemon with another state directory. Serve at "
                "another port: cellblock serve --http 127.0.0.1:PORT."
            )
    report.scripts = await asyncio.to_thread(_approved_scripts, settings)
    report.layers, report.missing, report.servers = found["layers"], found["missing"], found["servers"]
    versions.update(found["versions"])
    report.typecheck += found["typecheck"]
    report.flows = found["flows"]
    report.warnings += found["warnings"]
    report.problems += found["problems"]
    return report


async def findings(broker: Broker, wanted: Mapping[str, Any], person: Person) -> dict[str, Any]:
    """Returns what a broker that runs finds: around its workers, of its servers, and by a script."""
    settings, section = broker.settings, broker.settings.cellblock
    versions, problems = dict[str, str](), list[str]()
    layers, missing = list[str](), list[str]()
    servers, warnings = dict[str, str](), list[str]()
    if (cert := wanted.get("certificate")) is not None and (ends := served_certificate(cert)):
        warnings.append(ends)
    enabled = {name: server for name, server in settings.servers.items() if not server.disabled}
    names = {path: name for name, path in module_paths(enabled).items()}
    await _settled_one_by_one(broker, person)
    for hello in broker.hosts:
        layers = hello.layers
        missing = [_with_fix(layer) for layer in hello.missing]
        versions["Deno"] = await asyncio.to_thread(_deno_version, hello.deno)
    for server in broker.catalog.servers.values():
        left_out = f", {len(server.withheld)} left out" if server.withheld else ""
        has = "resources and no tools" if server.has_resources_alone else counted(len(server.tools), "tool")
        servers[server.server_id] = f"connected, {has}{left_out}"
        warnings += [f"{server.server_id}: {warning}" for warning in server.warnings]
    for server_id, reason in broker.catalog.unavailable.items():
        if (how := broker.catalog.logins.get(server_id)) is not None:
            servers[server_id] = f"each user logs in, and you have not: {how}"
            continue
        servers[server_id] = f"not connected: {reason}"
        name = names.get(server_id, server_id)
        why = with_fix(enabled.get(name), reason, upstream_log(settings.state_dir / LOGS, name))
        problems.append(f"Server {server_id} is not connected: {why}")
    faults = await asyncio.to_thread(overlay_faults, settings, broker.catalog)
    warnings += [f"{fault.text(str(fault.file))} {fault.hint}" for fault in faults]
    for fault in idle_patterns(section.policy, broker.catalog):
        warnings.append(f"{dotted(('cellblock', 'policy', *fault.path))}: {fault.message}. {fault.hint}")
    # A journal of its own: the user's runs are kept beside it.
    response = await broker.run_request(request_of(PROBE), journal=Journal())
    if response.result != PROBE_RESULT:
        found = response.diagnostics[0].message if response.diagnostics else "a wrong result"
        problems.append(f"A script that only computes does not run: {found}")
    is_checked = compiler.why_absent() is None and section.typecheck != "off"
    return {
        "versions": versions,
        "layers": layers,
        "missing": missing,
        "typecheck": await _failed_check(broker) if is_checked else "",
        "servers": servers,
        "flows": overview(section.policy, settings.servers, broker.catalog),
        "warnings": warnings,
        "problems": problems,
    }


def _approved_scripts(settings: Settings) -> dict[str, str]:
    """Says who has let which version of each kept script in."""
    return {
        name: f"{one.script.digest}, approved by {one.by} on {time.strftime('%Y-%m-%d', time.localtime(one.at))}"
        for name, one in Approvals(store_to_read(settings)).all().items()
    }


async def _settled_one_by_one(broker: Broker, person: Person) -> None:
    """Waits for all servers, and tells of each that has taken a while what has come of it."""
    loop = asyncio.get_running_loop()
    quiet_until = loop.time() + QUIET_SECONDS

    async def one(server_id: str) -> None:
        await settled(broker, [server_id], person.tell)
        if loop.time() > quiet_until:
            said = "not connected" if server_id in broker.catalog.unavailable else "connected"
            person.tell(f"server {server_id} is {said}")

    await asyncio.gather(*map(one, broker.catalog.who_starts))
    await settled(broker, None, person.tell)


def _with_fix(trouble: str) -> str:
    fix = isolation_fix(trouble)
    return f"{trouble.removesuffix('.')}. {fix}" if fix else trouble


def _typecheck(mode: str) -> str:
    if mode == "off":
        return "off, by the configuration"
    absent = compiler.why_absent()
    if absent is not None:
        return f"off: {absent}. {compiler.FIX}"
    return f"{mode} (TypeScript {compiler.version()})"


async def _failed_check(broker: Broker) -> str:
    """Returns what goes wrong when a script with a type error is checked, or nothing."""
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
