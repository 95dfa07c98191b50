"""`run`: one script to its response. On a terminal, a line on stderr shows how far it is, and is wiped at the end;
calls are asked about there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.asking import Person, answered
from cellblock.app.cli.flows import always_in
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import config_used, tell_starting, with_state_dir
from cellblock.app.cli.parser import LIMITS
from cellblock.app.cli.streams import above, say, write_json
from cellblock.base.json import is_object
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.settings import Settings
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.tasks import in_background
from cellblock.base.terminal import CLEAR_TO_END_OF_LINE, Painter, draw, milliseconds, plain
from cellblock.observe.logs import logging_as_configured
from cellblock.run.events import RunFacts, Watcher
from cellblock.run.policy.asking import COMMAND_LINE, Approver, Caller, Grantee, Question, Verdict
from cellblock.run.request import read_request, request_of
from cellblock.run.response import LogEntry
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
    # Commands that run a script beside their work have none of these options.
    option = vars(parsed).get
    request = request_of(
        code,
        limits={to_camel(name): value for name in LIMITS if (value := option(name)) is not None},
        typecheck=option("typecheck"),
        grants=grants,
        durable=option("durable") or None,
        plan=option("plan") or None,
        requestedCapabilities=option("require") or None,
    )
    wanted = {"request": request, "script": name_of(parsed.script), "config": config_used(parsed)}
    with logging_as_configured(settings.cellblock.log, settings.servers.values()):
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
    validator = InputValidator(output, label=parsed.script, subject="the result", strict=True)
    if ok and (misfit := validator.check(response["result"])) is not None:
        say(f"the result does not fit the script's output schema: {misfit.sentence}")
        ok = False
    return EXIT_OK if ok else EXIT_NO


def _check(broker: Broker, request: Mapping[str, Any]) -> None:
    """Raises InvalidRequest."""
    broker.policy.grants_of(COMMAND_LINE, read_request(request, broker.settings.cellblock).grants)


async def run_in(
    broker: Broker, wanted: Mapping[str, Any], person: Person, journal: Journal | None = None
) -> dict[str, Any]:
    """Runs a script when the servers that it requires are there. Returns the response as JSON, but for a large result.

    Raises:
        InvalidRequest: The request is wrong.
        UsageError: A server that it requires is not connected.
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
        response = await broker.run_request(request, caller, journal=journal, script_name=wanted["script"])
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
            raise UsageError(
                f"the required server {name} is not connected: {catalog.unavailable.get(server_id, absent)}"
            )


def read_script(name: str) -> str:
    """Returns the text of a script; `-` is standard input. Raises UsageError."""
    try:
        return (sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()).decode("utf-8")
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
        found: object = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise UsageError(f"{what}: this is no JSON, such as {example}: {error}") from None
    if not is_object(found):
        raise UsageError(f"{what}: this is no JSON object, such as {example}")
    return found


REDRAW_SECONDS: Final = 0.1

MAX_CHARS: Final = 500
"""Bounds a line, of which a terminal shows what it has room for."""

FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class RunProgress(Watcher):
    """Follows one run, and words how far it is."""

    def __init__(self) -> None:
        self._run: RunFacts | None = None
        self._log = ""
        self._since = time.monotonic()

    def run_accepted(self, run: RunFacts) -> None:
        """Takes the run that is followed."""
        self._run, self._since = run, run.accepted

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        self._log = entry.message

    def line(self) -> str:
        """Returns how far the run is."""
        state = "connecting" if self._run is None else self._run.state
        parts = [f"{state} {milliseconds((time.monotonic() - self._since) * 1000)}"]
        if self._run is not None and self._run.calls:
            waiting = [call for call in self._run.calls if not call.over]
            parts.append(f"{len(self._run.calls) - len(waiting)} of {len(self._run.calls)} calls done")
            parts += [f"in {call.server}.{call.tool}" for call in waiting[-1:]]
        if self._log:
            parts.append(self._log.rstrip().rpartition("\n")[2])
        return plain(" · ".join(parts), MAX_CHARS)

    async def shown_by(self, show: Callable[[str], object]) -> None:
        """Gives the line to `show`, again and again."""
        while True:
            show(self.line())
            await asyncio.sleep(REDRAW_SECONDS)


class Progress:
    """Draws a line on a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._paint = Painter(stream)
        self._frame = 0
        self._held = False

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Takes the progress line away while the block runs: others may write."""
        self.wipe()
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def show(self, text: str) -> None:
        """Draws the line with this text."""
        if self._held:
            return
        self._frame += 1
        width = shutil.get_terminal_size().columns - 3
        spinner = self._paint(FRAMES[self._frame % len(FRAMES)], "cyan")
        self._write(f"\r{spinner} {plain(text, width)}{CLEAR_TO_END_OF_LINE}")

    def wipe(self) -> None:
        self._write(f"\r{CLEAR_TO_END_OF_LINE}")

    def _write(self, text: str) -> None:
        # A terminal that has gone away, or has no such characters, must not end the run.
        with contextlib.suppress(OSError, ValueError):
            draw(self._stream, text)
            self._stream.flush()


@contextlib.contextmanager
def progress_on(stream: IO[str] = sys.stderr) -> Generator[Progress | None]:
    """Lets the block draw a line of progress, which is wiped at its end; gives None where the stream is no terminal."""
    if not stream.isatty():
        yield None
        return
    progress = Progress(stream)
    progress.show("connecting")
    try:
        yield progress
    finally:
        progress.wipe()


PROMPT: Final = "Allow it? [y/N] "

MAX_LINE_BYTES: Final = 4096
"""Bounds a line that is typed: a terminal gives no longer one."""

ANSWERS: Final = {
    "y": Verdict.ACCEPTED,
    "yes": Verdict.ACCEPTED,
    "always": Verdict.ALWAYS,
    "n": Verdict.DECLINED,
    "no": Verdict.DECLINED,
}
"""Maps what is typed to verdicts. Nothing typed is no; anything else is asked again."""


def approver_of(ask: Callable[[str], Awaitable[Verdict]] | None) -> Approver | None:
    """Makes an approver of what asks a question that is worded already."""
    if ask is None:
        return None

    async def approve(question: Question) -> Verdict:
        from cellblock.serve.mcp.approvals import question_text

        text = question_text(question)
        return await ask(text if question.flow is None else f"{text}\nFor that, type: always")

    return approve


def asker_on_terminal(progress: Progress | None) -> Callable[[str], Awaitable[Verdict]] | None:
    """Makes what asks at the terminal of this process, and holds `progress` meanwhile; None where nobody sits."""
    stdin, stderr = sys.stdin, sys.stderr
    try:
        if not (stdin.isatty() and stderr.isatty()):
            return None
        descriptor = stdin.fileno()
    except (OSError, ValueError):
        return None

    async def ask(question: str) -> Verdict:
        with progress.held() if progress is not None else contextlib.nullcontext():
            _forget_typed(descriptor)
            above(stderr)  # what it counts until now is about something else
            stderr.write(question + "\n")
            prompt = above(stderr) + PROMPT
            line = b""
            try:
                while True:
                    stderr.write(prompt)
                    stderr.flush()
                    line = await _line(descriptor)
                    typed = line.decode("utf-8", "replace").strip().lower() or "n"
                    verdict = ANSWERS.get(typed) if line else Verdict.CANCELLED
                    if verdict is not None:
                        return verdict
            finally:
                if not line.endswith(b"\n"):
                    stderr.write("\n")

    return ask


async def _line(descriptor: int) -> bytes:
    """Returns the next line that is typed; empty at the end of the input."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, MAX_LINE_BYTES)
    except OSError:
        # The terminal has gone.
        return b""


def _forget_typed(descriptor: int) -> None:
    """Drops what was typed before the question was there: that is no answer to it."""
    import termios

    with contextlib.suppress(termios.error):
        termios.tcflush(descriptor, termios.TCIFLUSH)
