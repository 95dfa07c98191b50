"""The command `run`: one script, its response as JSON, and questions on the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cellblock.base.errors import InvalidRequest
from cellblock.base.terminal_text import json_text
from cellblock.cli.log import logging_as_configured
from cellblock.cli.options import Commands, add_common
from cellblock.cli.streams import write_data

if TYPE_CHECKING:
    from cellblock.config.settings import Settings
    from cellblock.daemon.broker import Broker

LIMIT_OPTIONS: Final = {
    "timeout_ms": ("timeoutMs", "wall time in milliseconds"),
    "max_memory_bytes": ("maxMemoryBytes", "memory over an idle worker's, in bytes"),
    "max_log_bytes": ("maxLogBytes", "console output in bytes"),
    "max_tool_calls": ("maxToolCalls", "number of tool calls"),
    "max_cpu_ms": ("maxCpuMs", "CPU time in milliseconds"),
}

STDIN: Final = "-"

GRANTEE: Final = "cli"
"""Whose grants of `cellblock.policy` a run has."""


class UsageError(Exception):
    """The arguments cannot be used; the text says why."""


@dataclass(frozen=True)
class Asked:
    """What is to be run: the script, and the grants of the run, if it has any."""

    code: str
    grants: dict[str, Any] | None


def add_parser(commands: Commands) -> None:
    """The command and its options."""
    run = commands.add_parser(
        "run",
        help="run one script and print the response as JSON",
        description="Runs one script and prints the codemode.run response as JSON. On a terminal you are asked about "
        "calls that the policy wants approved, unless the script comes from standard input.",
    )
    run.add_argument("script", metavar="SCRIPT", help="a file, or - for standard input")
    add_common(run)
    for name, (_, meaning) in LIMIT_OPTIONS.items():
        run.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)
    run.add_argument(
        "--typecheck",
        choices=["off", "after", "before"],
        help="type-check after a failure, or before the start (default: as configured)",
    )
    run.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="SERVER",
        help="exit with 2 unless this server is connected (repeatable)",
    )
    run.add_argument(
        "--grants",
        metavar="FILE|JSON",
        help="narrow what the script may call, as in docs/howto-policy.md: a JSON object, or a file with one",
    )


def read(parsed: argparse.Namespace) -> Asked:
    """Reads what is to be run; a pipe is waited for.

    Raises:
        UsageError: It cannot be read.
    """
    return Asked(_read_script(parsed.script), None if parsed.grants is None else _read_grants(parsed.grants))


async def run(parsed: argparse.Namespace, settings: Settings, asked: Asked) -> bool:
    """Runs the script and prints its response. Returns whether it went well.

    Raises:
        UsageError: The grants or a required server are not there, or cannot be used.
        CellblockError: As `Broker`.
    """
    from cellblock.cli.progress import progress_on
    from cellblock.cli.terminal_asking import asker_on
    from cellblock.daemon.broker import Broker
    from cellblock.execution.request import read_request
    from cellblock.policy.asking import Grantee

    code, grants = asked.code, asked.grants
    limits = {
        key: value for name, (key, _) in LIMIT_OPTIONS.items() if (value := getattr(parsed, name)) is not None
    }
    wanted = {"limits": limits, "typecheck": parsed.typecheck, "grants": grants}
    broker = Broker(_told_at_once(settings).for_one_run())
    try:
        # Before any server is started.
        request = read_request({"code": code, **wanted}, settings.cellblock)
        broker.policy.grants_of(GRANTEE, request.grants)
    except InvalidRequest as error:
        raise UsageError(str(error)) from None
    async with (
        logging_as_configured(settings),
        progress_on(sys.stderr) as progress,
        broker,
    ):
        if progress is not None:
            broker.events.add(progress)
        # The rest of a script on stdin is no answer.
        approver = asker_on(sys.stdin, sys.stderr, progress) if parsed.script != STDIN else None
        await broker.settled(parsed.require)
        _require(broker, parsed.require)
        try:
            response = await broker.run(
                code,
                limits=limits,
                requested_capabilities=parsed.require,
                typecheck=parsed.typecheck,
                grants=grants,
                grantee=Grantee(GRANTEE, approver),
            )
        except InvalidRequest as error:
            raise UsageError(str(error)) from None
    write_data(json_text(_in_file(response.as_json(), parsed.script)) + "\n")
    return response.ok


def _in_file(response: dict[str, Any], script: str) -> dict[str, Any]:
    """The response with places in the file that was run: editors and terminals find them by its name."""
    from cellblock.script.source import SCRIPT_NAME

    if script != STDIN:
        for found in response["diagnostics"]:
            if found.get("path", "").startswith(f"{SCRIPT_NAME}:"):
                found["path"] = script + found["path"].removeprefix(SCRIPT_NAME)
    return response


def _told_at_once(settings: Settings) -> Settings:
    """The settings for one run: what is found too late for its response could never be told."""
    section = settings.cellblock
    if "typecheck_hold_ms" in section.model_fields_set:
        return settings
    waiting = section.model_copy(update={"typecheck_hold_ms": section.typecheck_timeout_ms})
    return settings.model_copy(update={"cellblock": waiting})


def _require(broker: Broker, names: Sequence[str]) -> None:
    catalog = broker.catalog
    for name in names:
        server_id = catalog.id_of(name)
        if server_id not in catalog.servers:
            reason = catalog.unavailable.get(server_id, "it is not in the configuration")
            raise UsageError(f"the required server {name} is not connected: {reason}")


def _read_script(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the script: {error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the script {name} is no UTF-8 text: {error}") from None


def _read_grants(text: str) -> dict[str, Any]:
    source = "--grants"
    if not text.lstrip().startswith("{"):
        source = f"--grants {text}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{source}: cannot be read: {error}") from None
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: this is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f'{source}: this is no JSON object, such as {{"readOnly": true}}')
    return cast("dict[str, Any]", found)
