"""`run`, `record` and `replay`: one script to its response, with its recording, or a recording run again."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.asking import Person, answered
from cellblock.app.cli.flows import always_in
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import config_used, no_secrets_known, tell_starting, warn, with_state_dir
from cellblock.app.cli.parser import LIMITS
from cellblock.app.cli.progress import RunProgress, approver_of, asker_on_terminal, progress_on
from cellblock.app.cli.runs import decoded, kept_recording
from cellblock.app.cli.streams import say, write_json
from cellblock.app.config.load import load_settings
from cellblock.app.replay import Live, is_well, replay
from cellblock.base.errors import InvalidRequest, first_few
from cellblock.base.json import is_object
from cellblock.base.raw_json import RawJson
from cellblock.base.redaction import Redactor, redacting, without_credentials
from cellblock.base.settings.settings import Settings
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.tasks import in_background
from cellblock.observe.logs import logging_as_configured
from cellblock.record.cellrun import read_file, redacted, write
from cellblock.record.journal import Journal
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording
from cellblock.record.scripts.script_file import SUFFIX, BadScript
from cellblock.run.policy.asking import COMMAND_LINE, Caller, Grantee
from cellblock.run.request import read_request, request_of
from cellblock.tools.catalog.model import Catalog, JsonSchema
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.tools.schemas.validation import InputValidator
from cellblock_worker.base.folders import FILE, Folder, InTheWay
from cellblock_worker.base.private_files import write_private

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
        return _run_saved(parsed)
    settings = with_state_dir(parsed).for_one_run()
    if sys.stderr.isatty():
        say(f"configuration: {config_used(parsed)}")
    code = read_script(parsed.script)
    grants = None if parsed.grants is None else read_grants(parsed.grants)
    return run_script(parsed, settings, code, grants)


def _run_saved(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads the approved version of a kept script, and its input. Returns what runs it.

    Raises:
        UsageError: The input does not fit, or grants are given.
        BadScript: No version is approved.
    """
    from cellblock.app.cli.scripts import opened_library

    if parsed.grants is not None:
        raise UsageError("a kept script has grants of its own; leave --grants out")
    settings, library = opened_library(parsed)
    approval = library.approved(parsed.saved)
    if approval is None:
        raise BadScript(
            f"No version of {parsed.saved} is approved here.",
            hint=f"Approve it: cellblock scripts approve {parsed.saved}",
        )
    script, given = approval.script, read_object(parsed.input or "{}", "--input")
    if (
        misfit := InputValidator(script.header.input, label=script.name, strict=True).check(given)
    ) is not None:
        raise UsageError(f"the input of {script.name} does not fit: {misfit.sentence}")
    parsed.script = f"{script.name}{SUFFIX}"
    grants = script.grant.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return run_script(parsed, settings.for_one_run(), script.with_input(given), grants, output=script.output)


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
        await broker.installed(person.tell, " ".join([request["code"], *used]))
        await broker.settled(required)
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


RUN_ID: Final = re.compile("[0-9a-f]{16}")
"""Matches the ids of runs."""

MAX_TOLD: Final = 8
"""Bounds the parts of a recording that a warning names."""


def record(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads the script and the options, as `run` does. Returns what runs the script and writes the recording.

    Raises:
        UsageError: Something cannot be read, or the recording cannot have its name.
    """
    settings = with_state_dir(parsed).for_one_run()
    code = read_script(parsed.script)
    grants = None if parsed.grants is None else read_grants(parsed.grants)
    try:
        # Before the run: what it did cannot be recorded afterwards.
        with Folder.named(parsed.output.absolute().parent) as folder:
            folder.check(parsed.output.name, FILE)
    except InTheWay as error:
        raise UsageError(f"{error}; name another file") from None
    except OSError:
        raise UsageError(
            f"there is no folder for {parsed.output}; name a file in a folder that is there"
        ) from None
    return _record(parsed, settings, code, grants)


async def _record(
    parsed: argparse.Namespace, settings: Settings, code: str, grants: dict[str, Any] | None
) -> int:
    journal = Journal()
    exit_code = await run_script(parsed, settings, code, grants, journal)
    try:
        recording = journal.snapshot()
    except ValueError as error:
        say(f"error: nothing is recorded: {error}")
        return EXIT_NO
    found, changed = redacted(recording, *hiding(settings))
    try:
        with Folder.named(parsed.output.absolute().parent) as folder:
            write_private(folder, parsed.output.name, write(found).encode())
    except OSError as error:
        raise UsageError(f"cannot write {parsed.output}: {error.strerror}; name a file") from None
    say(f"recorded: {parsed.output} ({len(found.calls)} requests)")
    if changed:
        parts = first_few(changed, MAX_TOLD)
        say(f"warning: secrets are taken out ({parts}); the file does not replay to the byte")
    return exit_code


def hiding(settings: Settings) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Returns what takes the secrets of the servers out of a text; and what likely ones, too."""
    redactors = [Redactor(server) for server in settings.servers.values()]

    def known(text: str) -> str:
        for redactor in redactors:
            text = redactor.text(text)
        return text

    return known, lambda text: without_credentials(known(text))


def replay_file(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads a recording, and the script that is to be tried. Returns what replays it.

    Raises:
        UsageError: One of them cannot be read.
        ConfigError: No run of this id is kept with a recording, or it cannot be read.
    """
    file: Path = parsed.recording
    is_kept = RUN_ID.fullmatch(str(file)) and not file.exists()
    recording = kept_recording(parsed, str(file)) if is_kept else read_recording(file)
    script = None if parsed.script is None else read_script(parsed.script)
    if parsed.live_on_miss and script is None:
        raise UsageError("--live-on-miss is for another script; name one with --script")
    if parsed.yes and not parsed.live_on_miss:
        raise UsageError("--yes is for --live-on-miss; name that, too")
    live, settings = None, load_settings(parsed.config)
    if parsed.live_on_miss:
        approver = approver_of(asker_on_terminal(None) if parsed.script != STDIN else None)
        if approver is None and not parsed.yes:
            raise UsageError("nobody can be asked here; use a terminal, or name --yes")
        live = Live(
            with_state_dir(parsed).for_one_run(), Grantee(COMMAND_LINE, approver), asks=not parsed.yes
        )
    if not is_kept:
        return _replay(parsed, recording, script, redacting(()), live, settings)
    # Secrets were taken out of a file; what is kept has all that the script saw.
    warn(no_secrets_known(parsed))
    return _replay(parsed, recording, script, redacting(settings.servers.values()), live, settings)


def read_recording(file: Path) -> Recording:
    """Reads a recording. Raises UsageError."""
    try:
        return read_file(file)
    except OSError as error:
        raise UsageError(f"cannot read the recording {file}: {error.strerror}; name a file") from None
    except UnreadableRecording as error:
        raise UsageError(str(error)) from None


async def _replay(
    parsed: argparse.Namespace,
    recording: Recording,
    script: str | None,
    hide: Callable[[Any], Any],
    live: Live | None,
    settings: Settings,
) -> int:
    found = await replay(
        recording,
        script=script,
        until=parsed.until,
        live=live,
        settings=settings,
        script_name="" if parsed.script is None else name_of(parsed.script),
    )
    told: dict[str, Any] = {
        "same": found.same,
        "exact": recording.exact,
        "madeBy": recording.made_by,
        "deno": recording.deno,
    }
    if found.reason is not None:
        told["reason"] = found.reason
    if live is not None:
        told["live"] = list(found.missed)
    if found.differences:
        told["differences"] = found.differences
    if parsed.trace or parsed.values:
        told["trace"] = [_traced(call, place, values=parsed.values) for call, place in found.trace]
    write_json(hide(found.response.as_json() | {"replay": told}))
    made = sum(call.kind == "call" for call, _ in found.trace)
    if parsed.until is not None and made < parsed.until:
        say(f"note: it was not stopped: the script made {made} calls, and none is number {parsed.until}")
    if found.same is False and not recording.exact:
        say("secrets were taken out of the recording, and so the replay need not be the same")
    return EXIT_OK if is_well(found, recording) else EXIT_NO


def _traced(call: RecordedCall, place: str | None, *, values: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": call.id,
        "kind": call.kind,
        "name": call.name,
        "place": place,
        "ok": call.ok,
    }
    if call.kind == "call":
        told |= {"durationMs": call.duration_ms, "error": call.error}
    if values:
        told |= {"input": decoded(call.input), "answer": decoded(call.answer)}
    return told
