"""A broker answers one-shot commands: that of a daemon which runs with the same configuration, or one of their own.

A daemon answers on its socket, in lines of JSON: what is told meanwhile (`say`, `line`), what the person at the command
is asked (`question`, `withdrawn`), and at last `answer`, `failed` or `other`. The command writes a `verdict`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pkgutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cellblock import __version__
from cellblock.app.cli.arguments import UsageError, other_file
from cellblock.app.cli.streams import say
from cellblock.base.daemon_socket import addresses
from cellblock.base.errors import CellblockError, Certainty, Fault
from cellblock.base.tasks import TaskSet, in_background
from cellblock.serve.http.address import MCP_PATH, config_mark
from cellblock.serve.splices import Splices
from cellblock.serve.stdio.daemon import DOES_NOT_START, Daemon, DaemonUnavailable, Link

if TYPE_CHECKING:
    from cellblock.app.broker import Broker
    from cellblock.run.policy.asking import Verdict

ANSWERS: Final = {
    "types": "tools:types_of",
    "search": "tools:search_in",
    "inspect": "tools:inspect_in",
    "doctor": "doctor:findings",
    "run": "run:run_in",
    "status": "daemon:rows",
}
"""Maps what a broker is asked to the function of this package that answers."""

STOP: Final = "stop"


Decider: TypeAlias = "Callable[[str], Awaitable[Verdict]]"
"""Asks the person at the command whether a call may be made."""


@dataclass
class Person:
    """Stands for whoever waits for an answer.

    Attributes:
        tell: Is given sentences.
        show: Is given the line of progress, again and again; None where there is none.
        decide: None where nobody can be asked.
        told: Says which daemon has answered, or why none has.
    """

    tell: Callable[[str], object] = say
    show: Callable[[str], object] | None = None
    decide: Decider | None = None
    told: str = ""


class DaemonFailed(CellblockError):
    """Repeats what a daemon has said that went wrong."""

    certainty = Certainty.MAY_HAVE_RUN


async def answered(
    parsed: argparse.Namespace, broker: Broker, what: str, wanted: Mapping[str, Any], person: Person
) -> Any:
    """Returns what a daemon of the same configuration answers, or the broker, which is entered for it.

    Raises:
        UsageError: The command is wrong.
        CellblockError: There is no answer.
    """
    try:
        return await ask_daemon(parsed, broker.settings.state_dir, what, wanted, person)
    except DaemonUnavailable as error:
        person.told = error.message
        if broker.settings.enabled and (not isinstance(error, NoDaemon) or os.isatty(2)):
            say(f"{error.message} The servers are started for this command alone.")
    async with broker:
        return await _answer(broker, what, wanted, person)


class NoDaemon(DaemonUnavailable):
    """Tells that no daemon runs in a state directory."""


async def ask_daemon(
    parsed: argparse.Namespace, state_dir: Path, what: str, wanted: Mapping[str, Any], person: Person
) -> Any:
    """Returns what the daemon answers that runs in this state directory with the configuration of the command.

    Raises:
        DaemonUnavailable: There is none.
        UsageError, DaemonFailed: It has refused, or failed.
    """
    asked = {
        "what": what,
        "wanted": dict(wanted),
        "version": __version__,
        "config": config_mark(other_file(parsed)),
        "shows": person.show is not None,
        "decides": person.decide is not None,
    }
    why: DaemonUnavailable = NoDaemon(
        "No daemon of this configuration runs.", hint="An editor starts it, or `cellblock serve --http`."
    )
    for address in addresses(state_dir):
        try:
            link = await Daemon(f"http://{address}{MCP_PATH}", state_dir=state_dir).linked(ask=asked)
        except CellblockError as error:
            if why.__class__ is NoDaemon and not isinstance(error, DaemonUnavailable):
                why = DaemonUnavailable(error.message, hint=error.hint)
            continue
        try:
            if not (link.facts or {}).get("answers"):
                raise _not_asked(address, "it is of an earlier version")
            person.told = f"answers at {address}"
            return await _conversation(link, person, address)
        except DaemonUnavailable as error:
            why = error
        except (EOFError, OSError):
            raise DaemonFailed(
                f"The daemon at {address} has ended before it had answered. Its log says why: `cellblock logs`.",
                hint="",
            ) from None
        finally:
            link.close()
    raise why


class Answers:
    """Answers what commands ask a daemon.

    Args:
        broker: Its broker.
        parsed: The options that it was started with.
        why_behind: Says why its configuration is not that of the file, if it is not.
        stop: Has it end.
    """

    def __init__(
        self,
        broker: Broker,
        parsed: argparse.Namespace,
        why_behind: Callable[[], Awaitable[str | None]],
        stop: Callable[[], None],
    ) -> None:
        self._broker, self._parsed = broker, parsed
        self._why_behind, self._stop = why_behind, stop

    async def warnings(self) -> list[str]:
        """Returns what each command is to tell of the daemon."""
        from cellblock.observe.facts import NOT_STARTED

        found = [
            f"{DOES_NOT_START}{row['name']}: {row['reason']}. Set it where the daemon runs; for "
            "a variable, start the daemon anew."
            for row in self._broker.facts().upstreams()
            if row["state"] == NOT_STARTED
        ]
        if (why := await self._why_behind()) is not None:
            found.append(f"the daemon has not taken over its configuration file as it is now: {why}")
        return found

    async def __call__(
        self, asked: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers one command, until it hangs up."""
        splices = Splices()

        def send(**said: Any) -> None:
            # A large result is encoded already.
            text = json.dumps(said, default=lambda large: splices.add(large.raw))
            writer.writelines([*splices.spliced(text.encode()), b"\n"])

        what: str = asked["what"]
        if (why := await self._unlike(asked, what)) is not None:
            send(other=why)
            return
        if what == STOP:
            send(answer={"pid": os.getpid(), "runs": self._broker.running})
            self._stop()
            return
        questions = _Questions(send)
        person = Person(
            tell=lambda text: send(say=text),
            show=(lambda text: send(line=text)) if asked["shows"] else None,
            decide=questions.ask if asked["decides"] else None,
        )
        for warning in await self.warnings() if what == "status" else ():
            send(say=f"warning: {warning}")
        work = asyncio.ensure_future(
            _answer(self._broker, what, {**asked["wanted"], "certificate": self._parsed.tls_cert}, person)
        )
        async with in_background(_hear(reader, questions, work)):
            try:
                send(answer=await work)
            except CellblockError as error:
                send(failed=str(error), usage=error.fault is Fault.CALLER)
            except asyncio.CancelledError:
                # It has hung up, or the daemon ends.
                send(failed="The daemon has ended what the command asked for.", usage=False)

    async def _unlike(self, asked: Mapping[str, Any], what: str) -> str | None:
        if asked["config"] != config_mark(other_file(self._parsed)):
            return "it has another configuration file"
        if what == STOP:
            return None
        if asked["version"] != __version__:
            return f"it is of version {__version__}, and this command of {asked['version']}"
        if what != "status" and (behind := await self._why_behind()) is not None:
            return f"it has not taken over the configuration file as it is now: {behind}"
        if self._broker.settings.cellblock.frontend.profile == "proxy":
            return "its profile is `proxy`"
        return None


# ---- inside ------------------------------------------------------------------------------------------


def _not_asked(address: str, why: str) -> DaemonUnavailable:
    return DaemonUnavailable(
        f"The daemon at {address} is not asked: {why}.",
        hint="End it with `cellblock stop`, and start it anew.",
    )


async def _answer(broker: Broker, what: str, wanted: Mapping[str, Any], person: Person) -> Any:
    answer: Callable[[Broker, Mapping[str, Any], Person], Coroutine[Any, Any, Any]]
    answer = pkgutil.resolve_name(f"cellblock.app.cli.{ANSWERS[what]}")
    return await answer(broker, wanted, person)


class _Questions:
    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._open: dict[int, asyncio.Future[Verdict]] = {}
        self._count = 0

    async def ask(self, question: str) -> Verdict:
        self._count = number = self._count + 1
        self._open[number] = asyncio.get_running_loop().create_future()
        self._send(question=question, number=number)
        try:
            return await self._open[number]
        except asyncio.CancelledError:
            self._send(withdrawn=number)
            raise
        finally:
            del self._open[number]

    def answered(self, number: int, verdict: str) -> None:
        from cellblock.run.policy.asking import Verdict

        if number in self._open and not self._open[number].done():
            self._open[number].set_result(Verdict(verdict))


async def _hear(reader: asyncio.StreamReader, questions: _Questions, work: asyncio.Future[Any]) -> None:
    """Takes verdicts; ends the work when the command hangs up."""
    while line := await reader.readline():
        said = json.loads(line)
        questions.answered(said["number"], said["verdict"])
    work.cancel()


async def _conversation(link: Link, person: Person, address: str) -> Any:
    asking, tasks = dict[int, asyncio.Task[None]](), TaskSet()

    async def decide(number: int, question: str) -> None:
        assert person.decide is not None  # or nothing is asked
        verdict = await person.decide(question)
        link.writer.write(json.dumps({"number": number, "verdict": verdict.value}).encode() + b"\n")

    try:
        while True:
            match json.loads(await link.reader.readuntil(b"\n")):
                case {"answer": answer}:
                    return answer
                case {"failed": why, "usage": is_usage}:
                    raise UsageError(why) if is_usage else DaemonFailed(why, hint="")
                case {"other": why}:
                    raise _not_asked(address, why)
                case {"say": text}:
                    person.tell(text)
                case {"line": text} if person.show is not None:
                    person.show(text)
                case {"question": question, "number": number}:
                    asking[number] = tasks.start(decide(number, question))
                case {"withdrawn": number} if number in asking:
                    asking[number].cancel()
                case _:
                    pass
    finally:
        tasks.cancel()
        await tasks.ended()
