"""`run`: one script to its response."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic.alias_generators import to_camel

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.asking import Person, answered
from cellblock.app.cli.flows import always_in
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import config_used, tell_starting, with_state_dir
from cellblock.app.cli.parser import LIMITS
from cellblock.app.cli.progress import RunProgress, approver_of, asker_on_terminal, progress_on
from cellblock.app.cli.streams import say, write_json
from cellblock.base.errors import InvalidRequest
from cellblock.base.json import is_object
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.settings import Settings
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.tasks import in_background
from cellblock.observe.logs import logging_as_configured
from cellblock.run.policy.asking import COMMAND_LINE, Caller, Grantee
from cellblock.run.request import read_request, request_of
from cellblock.tools.catalog.model import Catalog, JsonSchema
from cellblock.tools.catalog.modules import DISCOVERY_SPECIFIER, SERVERS_PREFIX
from cellblock.tools.schemas.validation import InputValidator

if TYPE_CHECKING:
    from cellblock.record.journal import Journal

STDIN: Final = "-"


def run(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads settings, script and grants; a pipe is waited for. Returns what runs the script.

    Raises:
        UsageError: One of them cannot be read.
    """
    if (parsed.script is None) == (parsed.saved is None):
        raise UsageError("name a script, or a kept one with --saved")
    if parsed.input is not None and parsed.saved is None:
        raise UsageError("--input is for --saved")
    if parsed.saved is not None:
        from cellblock.app.cli.scripts import run_saved

        return run_saved(parsed)
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
    *,
    output: JsonSchema = True,
) -> int:
    """Runs the script and prints its response; `journal` records the run, and its result must fit `output`. Returns the
    exit code."""
    limits = {to_camel(name): value for name in LIMITS if (value := getattr(parsed, name)) is not None}
    fields: dict[str, Any] = {"limits": limits, "typecheck": parsed.typecheck, "grants": grants}
    fields |= {name: True for name in ("durable", "plan") if getattr(parsed, name)}
    fields["requestedCapabilities"] = parsed.require or None
    request = request_of(code, **fields)
    wanted = {"request": request, "script": name_of(parsed.script), "config": config_used(parsed)}
    section = settings.cellblock
    with logging_as_configured(section.log, settings.servers.values()):
        broker = Broker(settings)
        broker.on_always = always_in(parsed.config)
        # Before any server is started.
        _check(broker, request)
        with progress_on(sys.stderr) as progress:
            # The line of progress says that it connects. The rest of a script on stdin is no answer.
            person = Person(
                tell=say if progress is None else lambda _: None,
                show=None if progress is None else progress.show,
                decide=asker_on_terminal(progress) if parsed.script != STDIN else None,
            )
            if journal is None:
                response = await answered(parsed, broker, "run", wanted, person)
            else:
                async with broker:
                    response = await run_in(broker, wanted, person, journal)
    if isinstance(response["result"], RawJson):
        response["result"] = response["result"].decoded()
    write_json(response)
    ok = all(one["severity"] != "error" for one in response["diagnostics"])
    if not ok and not sys.stderr.isatty():
        say(f"the script failed; configuration: {config_used(parsed)}")
    if ok and (misfit := InputValidator(output, label=parsed.script).check(response["result"])) is not None:
        say(f"the result does not fit the script's output schema: {misfit.sentence}")
        ok = False
    return EXIT_OK if ok else EXIT_NO


def _check(broker: Broker, request: Mapping[str, Any]) -> None:
    try:
        broker.policy.grants_of(COMMAND_LINE, read_request(request, broker.settings.cellblock).grants)
    except InvalidRequest as error:
        raise UsageError(str(error)) from None


async def run_in(
    broker: Broker, wanted: Mapping[str, Any], person: Person, journal: Journal | None = None
) -> dict[str, Any]:
    """Runs a script when the servers that it requires are there. Returns the response as JSON, but for a large result.

    Raises:
        UsageError: The request is wrong, or a server that it requires is not connected.
    """
    request: dict[str, Any] = wanted["request"]
    _check(broker, request)
    required: list[str] = request.get("requestedCapabilities") or []
    used = [broker.catalog.id_of(name) for name in required]
    used += [one for one in broker.catalog.ids.values() if f"{SERVERS_PREFIX}{one}" in request["code"]]
    progress = None if person.show is None else RunProgress()
    caller = Caller(COMMAND_LINE, Grantee(COMMAND_LINE, approver_of(person.decide)), progress)
    async with (
        in_background(tell_starting(broker, used, person.tell)),
        in_background(progress.shown_by(person.show))
        if progress and person.show
        else contextlib.nullcontext(),
    ):
        await broker.installed(person.tell, None if DISCOVERY_SPECIFIER in request["code"] else used)
        _require(broker.catalog, required, wanted["config"])
        try:
            response = await broker.run_request(
                request, caller, journal=journal, script_name=wanted["script"]
            )
        except InvalidRequest as error:
            raise UsageError(str(error)) from None
    return response.as_json()


def name_of(script: str) -> str:
    """Names the file that is run in all places that are told: editors and terminals find them by it."""
    return "" if script == STDIN else script


def _require(catalog: Catalog, names: Sequence[str], file: str) -> None:
    for name in names:
        server_id = catalog.id_of(name)
        if server_id not in catalog.servers:
            near = did_you_mean(nearest_names(name, [*catalog.servers, *catalog.unavailable], 1))
            absent = f"it is not in the configuration: {file}{near and f'. {near}'}"
            reason = catalog.unavailable.get(server_id, absent)
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
    return read_object(text, source, '{"readOnly": true}')


def read_object(text: str, what: str, example: str = '{"since": "2026-11-02"}') -> dict[str, Any]:
    """Returns a JSON object that an option gives. Raises UsageError."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what}: this is no JSON, such as {example}: {error}") from None
    if not is_object(found):
        raise UsageError(f"{what}: this is no JSON object, such as {example}")
    return found
