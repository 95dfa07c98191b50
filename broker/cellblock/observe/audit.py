"""Audit writes the audit log: who ran what when, and which tools were called; JSON lines, written by a thread.

Without inputs and outputs, unless the configuration says otherwise. A call that is sent has a line then and one when it
ends, so that what was under way when a machine died is in it. Refusals that repeat are counted, so that they hide
nothing; and lines of calls that were sent outlast others, up to a share for each principal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from cellblock.base.errors import Certainty, ConfigError
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.settings import Audit
from cellblock.base.state_dir import in_the_way
from cellblock.observe.files import MAX_FILE_BYTES, LineWriter, PrivateFile
from cellblock.observe.logs import iso_time, summary
from cellblock.run.events import CallFacts, Decision, RunFacts, Watcher
from cellblock_worker.base.folders import Folder, InTheWay

FILE_NAME: Final = "audit.jsonl"
"""Names the log in the state directory."""

MAX_VALUE_BYTES: Final = 16 * 1024
"""Caps one script, input or output: a longer one is cut, and marked as cut."""

KEEP: Final = 9
"""Caps the files that are put aside: 100 MiB in all, about 400,000 lines."""

MAX_REFUSALS: Final = 64
"""Bounds the kinds of refusals that are told apart in one run."""

MAX_NAME_CHARS: Final = 256
"""Bounds a server's or tool's name as a script wrote it."""

_LASTING: Final = frozenset({"call", "call_end", "decision"})

_BEGIN: Final = b'{"time": '
"""Begins every line of the audit log."""

Line = dict[str, Any]


_Refusal = tuple[str, str, str]
"""Says of which server which tool was refused, and why; no tool where there is none of that name."""

_NO_REFUSALS: Final = Counter[_Refusal]()


class AuditLog(Watcher):
    """Writes `audit.jsonl`.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(self, values: Audit, state_dir: Path) -> None:
        self.path = state_dir / FILE_NAME
        self._values = values
        _refuse_others(self.path)
        file = PrivateFile(self.path, max_bytes=MAX_FILE_BYTES, keep=KEEP, outlasting=outlasting)
        self._lines = LineWriter(file, FILE_NAME)
        self._told_dropped = 0
        self._refused: dict[str, Counter[_Refusal]] = {}

    def close(self) -> None:
        """Writes the lines that wait, within the log's bound. Blocks."""
        self._lines.close()

    def run_accepted(self, run: RunFacts) -> None:
        """Writes `run`: with size and SHA-256 of the script, which tell whether it was the same one."""
        self._write(lambda: self._script(run))

    def call_sent(self, run: RunFacts, call: CallFacts) -> None:
        body = call.arguments if "inputs" in self._values else None
        self._write(lambda: {**self._call("call", run, call), **self._value("input", body)})

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        if call.certainty is Certainty.NOT_STARTED and run.ended is None and self._is_repeated(run, call):
            return
        body = call.result if "outputs" in self._values else None
        result = {
            "ok": call.ok,
            "error": call.error,
            "certainty": call.certainty.value,
            "duration_ms": call.duration_ms,
        }
        self._write(lambda: {**self._call("call_end", run, call), **result, **self._value("output", body)})

    def run_ended(self, run: RunFacts) -> None:
        for (server, tool, error), count in self._refused.pop(run.id, _NO_REFUSALS).items():
            if count > 1:
                facts = {"server": server, "tool": tool, "error": error, "calls": count}
                self._write(partial(dict[str, Any], self._head("refused", run), **facts))
        facts = summary(run)
        value = run.response.result if "outputs" in self._values and run.response is not None else None

        def line() -> Line:
            body = value.raw if isinstance(value, RawJson) else json.dumps(value).encode()
            return {
                **self._head("run_end", run),
                **facts,
                **self._value("output", None if value is None else body),
            }

        self._write(line)

    def run_decided(self, decision: Decision) -> None:
        """Writes `decision`: what a person has said to calls of a parked run, and who it was."""
        facts = {"verdict": decision.verdict, "calls": list(decision.calls), "by": decision.by}
        self._write(lambda: {"event": "decision", "run": decision.run, **facts})

    # ---- inside ----------------------------------------------------------------------------------------

    def _is_repeated(self, run: RunFacts, call: CallFacts) -> bool:
        """Counts a refusal, and says whether the run had one like it."""
        counts = self._refused.setdefault(run.id, Counter[_Refusal]())
        # Until the tool is found, its names are whatever the script has written.
        server, tool = ("", "") if call.export is None else (call.server, call.tool)
        kind = server, tool, call.error or ""
        if kind not in counts and len(counts) >= MAX_REFUSALS:
            kind = "", "", "of more kinds"
        counts[kind] += 1
        return counts[kind] > 1

    def _write(self, make: Callable[[], Line]) -> None:
        if (lost := self._lines.dropped - self._told_dropped) > 0:
            # The gap is in the log, so that nobody takes it for quiet.
            self._told_dropped += lost
            self._write(lambda: {"event": "lost", "lines": lost})
        now = time.time()
        # Hashing, cutting and encoding are the thread's work too.
        self._lines.put(lambda: json.dumps({"time": iso_time(now), **make()}, ensure_ascii=False))

    def _script(self, run: RunFacts) -> Line:
        code = run.code.encode("utf-8", "surrogatepass")
        return {
            **self._head("run", run),
            "accepted": iso_time(run.accepted_at),
            "script_bytes": len(code),
            "script_sha256": hashlib.sha256(code).hexdigest(),
            **self._value("script", code if "inputs" in self._values else None),
        }

    def _call(self, event: str, run: RunFacts, call: CallFacts) -> Line:
        server, tool = call.server[:MAX_NAME_CHARS], call.tool[:MAX_NAME_CHARS]
        return {**self._head(event, run), "call": call.number, "server": server, "tool": tool}

    def _head(self, event: str, run: RunFacts) -> Line:
        return {"event": event, "run": run.id, "client": run.client, "principal": run.principal}

    def _value(self, name: str, body: bytes | None) -> Line:
        if body is None:
            return {}
        cut: Line = {f"{name}_cut": len(body)} if len(body) > MAX_VALUE_BYTES else {}
        return {name: body[:MAX_VALUE_BYTES].decode("utf-8", "replace"), **cut}


def outlasting(lines: list[bytes], most: int) -> list[bytes]:
    """Returns the lines of the oldest file that stay, of `most` bytes: of each principal the newest of calls that were
    sent, and of decisions, up to its share."""
    found: list[tuple[str, bytes]] = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):  # of a line that was cut off
            facts = json.loads(line)
            if facts["event"] in _LASTING and facts.get("certainty") != Certainty.NOT_STARTED.value:
                found.append((facts.get("principal", ""), line))
    share = most // max(1, len({principal for principal, _ in found}))
    held, kept = Counter[str](), list[bytes]()
    for principal, line in reversed(found):
        held[principal] += len(line)
        if held[principal] <= share:
            kept.append(line)
    return kept[::-1]


def _refuse_others(path: Path) -> None:
    """Raises ConfigError where a file that is no audit log would be written to, or give way to one put aside."""
    for name in (path.name, *(f"{path.name}.{number}" for number in range(1, KEEP + 1))):
        try:
            with Folder.named(path.parent) as folder:
                begin = folder.beginning(name, len(_BEGIN))
            if not _BEGIN.startswith(begin):
                raise InTheWay(path.with_name(name), "not an audit log of Cellblock's")
        except FileNotFoundError:
            continue
        except InTheWay as error:
            raise in_the_way(error) from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}.", hint="Use another --state-dir.") from None
