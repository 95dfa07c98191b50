"""Run runs the command `run`: one script, its response as JSON, and questions on the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import config_used, with_state_dir
from cellblock.app.cli.parser import LIMITS
from cellblock.app.cli.progress import asker_on_terminal, progress_on
from cellblock.app.cli.streams import say, write_json
from cellblock.base.errors import InvalidRequest
from cellblock.base.json import is_object
from cellblock.base.settings.settings import Settings
from cellblock.observe.logs import logging_as_configured
from cellblock.record.journal import Journal
from cellblock.run.caller import Caller
from cellblock.run.policy.asking import COMMAND_LINE, Grantee
from cellblock.run.request import read_request, request_of
from cellblock.tools.catalog.model import Catalog

STDIN: Final = "-"


def run(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads settings, script and grants; a pipe is waited for. Returns what runs the script.

    Raises:
        UsageError: One of them cannot be read.
    """
    settings = with_state_dir(parsed).for_one_run()
    if sys.stderr.isatty():
        say(f"configuration: {config_used(parsed)}")
    code = read_script(parsed.script)
    grants = None if parsed.grants is None else read_grants(parsed.grants)
    return run_script(parsed, settings, code, grants)


async def run_script(
    parsed: argparse.Namespace,
    settings: Settings,
    code: str,
    grants: dict[str, Any] | None,
    journal: Journal | None = None,
) -> int:
    """Runs the script and prints its response; `journal` records the run. Returns the exit code."""
    limits = {to_camel(name): value for name in LIMITS if (value := getattr(parsed, name)) is not None}
    wanted: dict[str, Any] = {"limits": limits, "typecheck": parsed.typecheck, "grants": grants}
    wanted |= {name: True for name in ("durable", "plan") if getattr(parsed, name)}
    section = settings.cellblock
    try:
        with logging_as_configured(section.log, settings.servers.values(), section.traces.headers.values()):
            broker = Broker(settings)
            # Before any server is started.
            request = read_request({"code": code, **wanted}, section)
            broker.policy.grants_of(COMMAND_LINE, request.grants)
            async with progress_on(sys.stderr) as progress, broker:
                if progress is not None:
                    broker.events.add(progress)
                # The rest of a script on stdin is no answer.
                approver = asker_on_terminal(progress) if parsed.script != STDIN else None
                await broker.settled(parsed.require)
                _require(broker.catalog, parsed.require, config_used(parsed))
                grantee = Grantee(COMMAND_LINE, approver)
                wanted["requestedCapabilities"] = parsed.require or None
                response = await broker.run_request(
                    request_of(code, **wanted),
                    Caller(grantee=grantee),
                    journal=journal,
                    script_name=name_of(parsed.script),
                )
                response = response.decoded()
    except InvalidRequest as error:
        raise UsageError(str(error)) from None
    write_json(response.as_json())
    if not response.ok and not sys.stderr.isatty():
        say(f"the script failed; configuration: {config_used(parsed)}")
    return EXIT_OK if response.ok else EXIT_NO


def name_of(script: str) -> str:
    """Names the file that is run in all places that are told: editors and terminals find them by it."""
    return "" if script == STDIN else script


def _require(catalog: Catalog, names: Sequence[str], file: str) -> None:
    for name in names:
        server_id = catalog.id_of(name)
        if server_id not in catalog.servers:
            reason = catalog.unavailable.get(server_id, f"it is not in the configuration: {file}")
            raise UsageError(f"the required server {name} is not connected: {reason}")


def read_script(name: str) -> str:
    """Returns the text of a script; `-` is standard input. Raises UsageError."""
    try:
        raw = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return raw.decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no script {name}; name a file, or - for standard input") from None
    except OSError as error:
        raise UsageError(f"cannot read the script {name}: {error.strerror}; name a file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the script {name} is no UTF-8 text: {error}") from None


def read_grants(text: str) -> dict[str, Any]:
    """Returns the JSON object that `--grants` gives, or that is in the file it names. Raises UsageError."""
    source = "--grants"
    if not text.lstrip().startswith("{"):
        source = f"--grants {text}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{source}: cannot be read: {error.strerror}; name a file, or write the JSON itself"
            ) from None
        except ValueError as error:
            raise UsageError(f"{source}: cannot be read: {error}") from None
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f'{source}: this is no JSON, such as {{"readOnly": true}}: {error}') from None
    if not is_object(found):
        raise UsageError(f'{source}: this is no JSON object, such as {{"readOnly": true}}')
    return found
