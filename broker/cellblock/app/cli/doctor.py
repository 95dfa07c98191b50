"""`doctor`: what is in force on this machine, what keeps Cellblock or a server from working, and what to do then."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from cellblock import __version__
from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import reading
from cellblock.app.cli.asking import Person, answered
from cellblock.app.cli.config_check import Checked, check_config, overlay_faults
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import QUIET_SECONDS, config_used, settled, store_to_read
from cellblock.app.cli.streams import answer, write_json
from cellblock.base.daemon_socket import addresses
from cellblock.base.errors import MORE_THREADS, ConfigError, HostUnavailable, counted
from cellblock.base.json import is_object
from cellblock.base.settings.settings import ServerConfig, Settings
from cellblock.base.state_dir import LOGS, check_state_dir
from cellblock.base.terminal import Painter
from cellblock.record.journal import Journal
from cellblock.record.scripts.library import Approvals
from cellblock.run.flows.rules import overview
from cellblock.run.policy.policy import idle_patterns
from cellblock.run.request import request_of
from cellblock.serve.http.address import Address, check_certificate, validity
from cellblock.serve.http.token import FILE_NAME, read_token
from cellblock.serve.stdio.daemon import is_taken
from cellblock.tools.catalog.naming import module_paths
from cellblock.tools.upstream.installs import NO_PACKAGE
from cellblock.tools.upstream.programs import missing_command, missing_variable
from cellblock.tools.upstream.server_log import upstream_log
from cellblock.types.check import compiler
from cellblock_worker.confinement.confinement import deno_binary

PROBE: Final = "globalThis.__codemode_result__ = 6 * 7;"
PROBE_RESULT: Final = 42
TYPE_PROBE: Final = "nothingOfThisName;"
VERSION_BOUND_SECONDS: Final = 10.0


@dataclass(slots=True)
class Report:
    """A report has `problems`, which keep Cellblock, a server or a rule from working, `missing`, which only weakens
    it, and `warnings`, which are about type checks and tools that work. A broker's part of it is one, too."""

    versions: dict[str, str] = field(default_factory=dict[str, str])
    config: str = ""
    state_dir: str = ""
    isolation: str = ""
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
        further = {
            paint("Servers", "bold"): [
                f"{name}: {paint(state, 'green' if state.startswith('connected') else 'red')}"
                for name, state in self.servers.items()
            ],
            paint("Kept scripts that run", "bold"): [
                f"{name}: {said}" for name, said in self.scripts.items()
            ],
            paint("Where data may go", "bold"): self.flows,
            paint("Warnings", "bold", "yellow"): self.warnings,
        }
        parts += [[heading, *(f"  {line}" for line in lines)] for heading, lines in further.items() if lines]
        verdict = ("Problems", "red") if self.problems else ("No problems found.", "green")
        parts.append([paint(verdict[0], "bold", verdict[1]), *(f"  {text}" for text in self.problems)])
        return "\n\n".join("\n".join(part) for part in parts)


@reading(lambda parsed: None if parsed.config is None else check_config(parsed.config))
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
    answer(parsed, report.as_json(), report.as_text(Painter(sys.stdout)) + "\n")
    return EXIT_NO if report.problems else EXIT_OK


async def _examine(
    parsed: argparse.Namespace, broker: Broker, address: str, tls: tuple[Path | None, Path | None]
) -> Report:
    """Looks at this machine, and has a daemon, or the broker, connect to every server and run one script."""
    settings = broker.settings
    section, state_dir = settings.cellblock, settings.state_dir
    report = Report(
        {"cellblock": __version__, "Python": platform.python_version(), "system": platform.platform()},
        config_used(parsed),
        str(state_dir),
        section.isolation,
        typecheck=_typecheck(section.typecheck),
    )
    report.note(*certificate_state(*tls))
    if (trouble := state_dir_trouble(state_dir)) is not None:
        report.note(trouble)
        return report
    report.note(token_trouble(state_dir), check_state_dir(state_dir), low_disk(state_dir))
    if (trouble := deno_trouble()) is not None:
        report.note(trouble)
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
    for name, more in found.items():
        before = getattr(report, name)
        setattr(report, name, before | more if is_object(more) else before + more)
    return report


async def findings(broker: Broker, wanted: Mapping[str, Any], person: Person) -> dict[str, Any]:
    """Returns what a broker that runs finds, as the data of a `Report`: around its workers, of its servers, and by a
    script."""
    settings, section = broker.settings, broker.settings.cellblock
    report = Report()
    if (cert := wanted.get("certificate")) is not None:
        report.note(None, served_certificate(cert))
    names = {path: name for name, path in module_paths(settings.enabled).items()}
    await _settled_one_by_one(broker, person)
    for hello in broker.hosts:
        report.layers = hello.layers
        report.missing = [_with_fix(layer) for layer in hello.missing]
        report.versions["Deno"] = await asyncio.to_thread(_deno_version, hello.deno)
    for server in broker.catalog.servers.values():
        left_out = f", {server.left_out} left out" if server.left_out else ""
        has = "resources and no tools" if server.has_resources_alone else counted(len(server.tools), "tool")
        report.servers[server.server_id] = f"connected, {has}{left_out}"
        report.warnings += [f"{server.server_id}: {warning}" for warning in server.warnings]
    for server_id, reason in broker.catalog.unavailable.items():
        if (how := broker.catalog.logins.get(server_id)) is not None:
            report.servers[server_id] = f"each user logs in, and you have not: {how}"
            continue
        report.servers[server_id] = f"not connected: {reason}"
        name = names.get(server_id, server_id)
        why = with_fix(settings.servers.get(name), reason, upstream_log(settings.state_dir / LOGS, name))
        report.problems.append(f"Server {server_id} is not connected: {why}")
    report.warnings += [
        f"{fault.text(str(fault.file))} {fault.hint}"
        for fault in await asyncio.to_thread(overlay_faults, settings, broker.catalog)
    ]
    for fault in idle_patterns(section.policy, broker.catalog):
        (report.problems if fault.slip_at else report.warnings).append(fault.sentence)
    # A journal of its own: the user's runs are kept beside it.
    response = await broker.run_request(request_of(PROBE), journal=Journal())
    if response.result != PROBE_RESULT:
        found = response.diagnostics[0].message if response.diagnostics else "a wrong result"
        report.problems.append(f"A script that only computes does not run: {found}")
    if compiler.why_absent() is None and section.typecheck != "off":
        report.note(None, await _failed_check(broker))
    report.flows = overview(section.policy, settings.servers, broker.catalog)
    return asdict(report)


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
    if (absent := compiler.why_absent()) is not None:
        return f"off: {absent}. {compiler.FIX}"
    return f"{mode} (TypeScript {compiler.version()})"


async def _failed_check(broker: Broker) -> str | None:
    """Returns what goes wrong when a script with a type error is checked, or None."""
    response = await broker.run(TYPE_PROBE, typecheck="before")
    missed = next((found for found in response.diagnostics if found.code == "TYPECHECK_UNAVAILABLE"), None)
    return f"{missed.message} If another `cellblock doctor` says so, too: {compiler.FIX}" if missed else None


def _deno_version(binary: str) -> str:
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=VERSION_BOUND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return done.stdout.partition("\n")[0].removeprefix("deno ") if done.returncode == 0 else "does not run"


LOW_DISK_BYTES: Final = 64 * 1024 * 1024
"""Names the free space below which logs and stores will soon find none."""

DENO_FIX: Final = "Install Cellblock anew (pip install --force-reinstall cellblock): it brings Deno along."

_BY_REASON: Final = (
    (NO_PACKAGE, "The registry has no package of that name, or a private one: check the name."),
    (
        r"did not say why",
        "Start it by hand to see more; where npx could not install it, the reason is in ~/.npm/_logs.",
    ),
    (r"closed by the server|ended by itself", "All that it said is in {log}."),
    (r"start new thread", MORE_THREADS),
    (r"cellblock auth login", ""),
    (r"\bit is (?:text/html|application/xhtml)", "Check its URL: a web page answers there."),
    (r"HTTP 40[13]", "Correct its credentials: the headers of its entry."),
    (r"HTTP 404", "Check its URL: many servers answer at /mcp, older ones at /sse with type sse."),
    (r"no tool list within \d+ s", "Start it by hand to see why it lists no tools."),
    (
        r"upstream\.connect_timeout_ms",
        "Start it by hand once, so that it is downloaded; or raise upstream.connect_timeout_ms.",
    ),
)


def fix_of(config: ServerConfig | None, reason: str, log: Path) -> str:
    """Returns what to do about a server that is not connected; its stderr goes to `log`."""
    if config is not None:
        if config.missing is not None:
            return "Set it where Cellblock is started; the warning above has its place."
        if (missing := missing_command(config)) is not None:
            return missing
        if config.command is not None and (lacks := missing_variable(config, reason)) is not None:
            return lacks
    for pattern, fix in _BY_REASON:
        if re.search(pattern, reason, re.I):
            return fix.format(log=log)
    if config is not None and config.url is not None:
        return "Check that it runs, and its URL."
    return f"Start it by hand to see why{f'; what it said is in {log}' if log.exists() else ''}."


def with_fix(config: ServerConfig | None, reason: str, log: Path) -> str:
    """Returns a reason with what to do, as for `fix_of`, where it does not say so itself."""
    fix = fix_of(config, reason, log)
    return reason if fix.rstrip(".") in reason else f"{reason.rstrip('.')}. {fix}"


def state_dir_trouble(state_dir: Path) -> str | None:
    """Returns why nothing can be kept in the state directory, and what to do; None when it can."""
    try:
        check_state_dir(state_dir)
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=state_dir) as file:
            file.write(b"x")
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return (
            f"The state directory {state_dir} cannot be written: {error.strerror}. "
            "Make it yours (chown, chmod 700), free space on its disk, or use another --state-dir."
        )
    return None


def deno_trouble() -> str | None:
    """Returns what is wrong with the Deno that runs scripts, and what to do; None when it is there."""
    try:
        binary = deno_binary()
    except OSError as error:
        return f"Deno is missing: {error}. {DENO_FIX}"
    return None if os.access(binary, os.X_OK) else f"Deno cannot be started: {binary}. {DENO_FIX}"


def low_disk(state_dir: Path) -> str | None:
    """Returns what to do about a disk that is nearly full; None when it is not."""
    free = shutil.disk_usage(state_dir).free
    if free >= LOW_DISK_BYTES:
        return None
    return (
        f"The disk of the state directory {state_dir} has only {free // 1024:,} KiB left: logs and what is learnt "
        "will be lost. Free space on it, or use another --state-dir."
    )


_APPARMOR: Final = (
    "kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap an AppArmor profile that allows `userns`"
)

_KERNEL_SETTINGS: Final = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", _APPARMOR),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)
"""Lists what forbids user namespaces: the setting, the value that does, and what allows them."""

_CONTAINERS: Final = ("/.dockerenv", "/run/.containerenv")


def isolation_fix(
    missing: str, proc: Path = Path("/proc/sys"), containers: tuple[str, ...] = _CONTAINERS
) -> str:
    """Returns how to get what a host says is missing around workers.

    Returns:
        What to do, or nothing when that is said already, or is the user's own choice.
    """
    if "bwrap failed" not in missing:
        return ""
    for name, forbids, allows in _KERNEL_SETTINGS:
        with contextlib.suppress(OSError):
            if (proc / name).read_text(encoding="ascii").strip() == forbids:
                return f"This kernel forbids user namespaces. Allow them: sudo sysctl -w {allows}."
    if any(Path(file).exists() for file in containers):
        return (
            "This container forbids user namespaces. Start it so that they are allowed (Docker: --security-opt "
            "seccomp=PROFILE with a profile that allows unshare, mount and pivot_root)."
        )
    return (
        "Allow user namespaces to this user; inside a container or another sandbox, its own settings decide."
    )


# ---- what a daemon is shown with ----------------------------------------------------------------------

RENEW_DAYS: Final = 14
"""Counts the days before its end in which a certificate should be renewed."""


def served_certificate(cert: Path) -> str | None:
    """Returns a warning about the certificate of a daemon that serves, where it ends soon."""
    try:
        _, end = validity(cert.read_bytes())
    except (OSError, ValueError):
        return None
    return _renewal(end, f"The certificate {cert} of the daemon", "and restart the daemon")


def certificate_state(cert: Path | None, key: Path | None) -> tuple[str | None, str | None]:
    """Returns what keeps a daemon from serving with a certificate, and a warning about one that ends soon."""
    if cert is None and key is None:
        return None, None
    if cert is None or key is None:
        return "--tls-cert and --tls-key belong together. Give both.", None
    try:
        return None, _renewal(check_certificate(cert, key), f"The certificate {cert}", "before that")
    except ConfigError as error:
        return str(error), None


def _renewal(end: datetime.datetime, what: str, how: str) -> str | None:
    left = end - datetime.datetime.now(datetime.UTC)
    if left > datetime.timedelta(days=RENEW_DAYS):
        return None
    ends = "expired" if left <= datetime.timedelta() else "expires"
    return f"{what} {ends} at {end:%Y-%m-%d %H:%M} UTC. Renew it, {how}."


def token_trouble(state_dir: Path) -> str | None:
    """Returns what is wrong with the token file, and what to do; None when there is none or all is well."""
    file = state_dir / FILE_NAME
    try:
        if file.exists():
            read_token(file)
    except ConfigError as error:
        return str(error)
    return None
