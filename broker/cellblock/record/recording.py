"""A recording is all that it takes to run a script again to the same point, and what came of it; its file, a
`.cellrun`, is JSON, a line each for the run, its requests and its response.

The file is meant to be read, sent and kept in a repository, so what looks like a secret is taken out of it
(`redacted`). Inputs and answers are JSON texts, as the script sent and got them, byte for byte.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Final, cast

import msgpack
from pydantic import TypeAdapter, ValidationError

from cellblock.base.errors import CellblockError
from cellblock.base.json import is_array, is_object
from cellblock.base.redaction import REDACTED
from cellblock.base.secret_values import is_named_secret
from cellblock.run.hook import RecordedCall, digest_of, is_events
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, Withheld
from cellblock_worker.base.private_files import read_named

FORMAT_VERSION: Final = 1
"""Goes up with any change that an older release would misread. A recording of another version is refused."""

_SEED: Final = re.compile("[0-9a-f]{64}")

MAX_BYTES: Final = 128 * 1024 * 1024
"""Bounds the size of a file that is read; a journal holds a quarter of it, and JSON escapes."""

MOST_VALUES: Final = 4_000_000
"""Bounds the values in a file that are decoded; each takes up to 120 bytes. Inputs and answers are texts, of any."""

_OUTSIDE_TEXTS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([^"]++)', re.DOTALL)

_HEAD: Final = (
    *("made_by", "deno", "started_at", "request", "conventions", "limits", "message_bytes", "catalog"),
    *("seed", "events", "logs", "used_ms", "ended", "exact", "principal", "grants"),
    "script_name",
)
_HINT: Final = "Give a file that `cellblock record` has made; `cellblock save` takes a script with --input."


class UnreadableRecording(CellblockError):
    """Tells that bytes are no recording that this release can replay; the message says why."""


@dataclass(slots=True, kw_only=True)
class Recording:
    """Holds one run, or the beginning of one.

    Args:
        made_by: Cellblock's version.
        deno: Deno's version, with V8's; empty when it is not known.
        started_at: Unix time in seconds.
        request: The request as it came, as JSON data.
        body: What the worker was sent: JSON with the script's text and its modules.
        conventions: Whether the script might give its result otherwise than by assigning it.
        limits: The limits in force, by the names of the settings.
        message_bytes: The cap of one message.
        catalog: The servers and tools of the run's catalog, by their names alone, and its version.
        seed: Of all randomness, 64 hex digits.
        events: What the script saw, in order (see `run.hook`).
        calls: Its requests, in the order of their ids.
        logs: How many console entries had come.
        used_ms: Wall time that the run has used before this recording was taken, in milliseconds.
        response: The run's own response, as JSON data; None while it goes on.
        ended: Why its worker ended, a reason of `protocol.Ended`; None while it goes on.
        exact: Whether it holds everything as it was; not where something was redacted.
        principal: Whose run it was.
        grants: What restricted it, each as in the policy; empty where nothing did.
        script_name: What places in the script are told by; empty where that is not known.
        label: Of what its author had read before, packed; empty where flows were off.
    """

    made_by: str
    deno: str
    started_at: float
    request: dict[str, Any]
    body: bytes
    conventions: bool
    limits: dict[str, int]
    message_bytes: int
    catalog: dict[str, Any]
    seed: str
    events: str = ""
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    logs: int = 0
    used_ms: int = 0
    response: dict[str, Any] | None = None
    ended: str | None = None
    exact: bool = True
    principal: str = ""
    grants: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    script_name: str = ""
    label: str = ""

    @property
    def code(self) -> str:
        """Gives the agent's own source."""
        return str(self.request["code"])

    @property
    def wall_ms(self) -> int | None:
        """Says how long the run took; None where that is not known."""
        usage = None if self.response is None else self.response.get("usage")
        wall_ms = usage.get("wallMs") if is_object(usage) else None
        return wall_ms if isinstance(wall_ms, int) else None

    def pack(self) -> bytes:
        """Encodes the whole recording, for a store of one's own: nothing is redacted."""
        data: dict[str, Any] = _adapter().dump_python(self)
        for call, recorded in zip(data["calls"], self.calls, strict=True):
            call |= {"certainty": recorded.certainty.value, "digest": recorded.input_digest}
        data["format"] = FORMAT_VERSION
        return cast("bytes", msgpack.packb(data))  # pyright: ignore[reportUnknownMemberType]

    @classmethod
    def unpack(cls, data: bytes) -> Recording:
        """Decodes what `pack` has made, in a time that its calls and its size make, whatever is in it. Raises
        UnreadableRecording."""
        try:
            found = cast("object", msgpack.unpackb(data))  # pyright: ignore[reportUnknownMemberType]
        except Exception as error:
            raise UnreadableRecording("The recording is damaged.", hint="Record the run again.") from error
        return recording_of(found)


def recording_of(data: object) -> Recording:
    """Makes a recording of its parts. Raises UnreadableRecording."""
    if not is_object(data) or "format" not in data:
        raise UnreadableRecording(
            "This is no recording.", hint="Give a file that `cellblock record` has made."
        )
    if data["format"] != FORMAT_VERSION:
        by = f"Cellblock {data.get('made_by', 'of another version')}"
        raise UnreadableRecording(
            f"The recording has format {data['format']!r} ({by}); this release reads format {FORMAT_VERSION}.",
            hint="Replay it with the release that made it, or record the run again.",
        )
    try:
        return _adapter().validate_python({name: value for name, value in data.items() if name != "format"})
    except ValidationError as error:
        said = error.errors(include_url=False, include_input=False)[0]
        raise _damaged(f"{'.'.join(map(str, said['loc']))}: {said['msg']}") from None


def checked(found: Recording) -> Recording:
    """Gives a recording that comes from elsewhere back when its parts are what they must be. Raises
    UnreadableRecording. Our own store vouches for its own: what events are is held against their grammar when they
    come, and a piece that was changed is not decrypted."""
    try:
        _check(found)
    except ValueError as error:
        raise _damaged(str(error)) from None
    return found


def _damaged(why: str) -> UnreadableRecording:
    return UnreadableRecording(f"The recording is damaged ({why}).", hint="Record the run again.")


@cache
def _adapter() -> TypeAdapter[Recording]:
    return TypeAdapter(Recording)


def _check(found: Recording) -> None:
    if not isinstance(found.request.get("code"), str):
        raise ValueError("there is no script")  # noqa: TRY004 - of a file, not of an argument
    ids = [call.id for call in found.calls]
    if ids != sorted(set(ids)):
        raise ValueError("the ids of its calls do not count up")
    if not is_events(found.events):
        raise ValueError("its events are none")
    if not isfinite(found.started_at):
        raise ValueError("it began at no time")
    if _SEED.fullmatch(found.seed) is None:
        raise ValueError("its seed has not 64 hex digits")
    told: object = (found.response or {}).get("diagnostics", [])
    if not is_array(told) or not all(map(is_object, told)):
        raise ValueError("its diagnostics are none")
    if not _is_plan(found.body):
        raise ValueError("its plan is none")
    try:
        catalog_of(found.catalog)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("its catalog is none") from None


def _is_plan(body: bytes) -> bool:
    """Says whether bytes are a plan as a worker is sent it: a script, and the modules that it may import."""
    plan: object = json.loads(body)
    if not is_object(plan):
        return False
    modules = plan.get("modules")
    are_urls = is_object(modules) and all(isinstance(url, str) for url in modules.values())
    return isinstance(plan.get("main"), str) and are_urls and is_object(plan.get("refused"))


# ---- the names of a catalog ------------------------------------------------------------------------------


def names_of(catalog: Catalog) -> dict[str, Any]:
    """Gives what hints need of a catalog: names alone, as plain data."""
    servers = {
        server_id: {
            "name": server.server_name,
            "config_name": server.config_name,
            "origin": server.origin,
            "tools": [[tool.tool_name, tool.export_name] for tool in server.tools],
            "withheld": [[one.name, one.export_name, one.why, one.hint] for one in server.withheld],
        }
        for server_id, server in catalog.servers.items()
    }
    return {
        "version": catalog.version,
        "servers": servers,
        "unavailable": dict(catalog.unavailable),
        "denied": dict(catalog.denied),
        "ids": dict(catalog.ids),
    }


def catalog_of(names: Mapping[str, Any]) -> Catalog:
    """Makes a catalog of names: its tools can be told, and none can be called."""
    servers = {
        server_id: ServerEntry(
            server_id,
            entry["name"],
            entry["config_name"],
            origin=entry.get("origin", ""),
            tools=tuple(ToolEntry(name, export) for name, export in entry["tools"]),
            withheld=tuple(Withheld(*one) for one in entry["withheld"]),
        )
        for server_id, entry in names["servers"].items()
    }
    return Catalog(names["version"], servers, names["unavailable"], names["denied"], names["ids"])


def write(recording: Recording) -> str:
    """Gives the text of a `.cellrun` file. Nothing is redacted here."""
    head = {"cellrun": FORMAT_VERSION} | {name: getattr(recording, name) for name in _HEAD}
    head["plan"] = json.loads(recording.body)
    lines = [head, *map(_call_line, recording.calls)]
    if recording.response is not None:
        lines.append({"response": recording.response})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def read_file(file: Path) -> Recording:
    """Reads a recording from a file, which may be anybody's. Raises OSError, UnreadableRecording."""
    data, _ = read_named(file, MAX_BYTES, secret=False)
    try:
        return read(data.decode())
    except UnicodeDecodeError as error:
        raise UnreadableRecording(f"The file is no recording ({error}).", hint=_HINT) from None


def read(text: str) -> Recording:
    """Makes a recording of the text of a file. Raises UnreadableRecording."""
    if _has_over(MOST_VALUES, text):
        raise UnreadableRecording(
            f"The file is no recording: it has over {MOST_VALUES:,} values.", hint=_HINT
        )
    try:
        lines: list[object] = [json.loads(line) for line in text.split("\n") if line]
    except (ValueError, RecursionError) as error:
        raise UnreadableRecording(f"The file is no recording ({error}).", hint=_HINT) from None
    head = lines[0] if lines else None
    if not is_object(head) or "cellrun" not in head:
        raise UnreadableRecording("The file is no recording.", hint=_HINT)
    data = {name: head[name] for name in _HEAD if name in head} | {"format": head["cellrun"]}
    data["body"] = json.dumps(head.get("plan")).encode()
    calls: list[Any] = []
    for line in lines[1:]:
        if not is_object(line):
            raise UnreadableRecording("The recording is damaged: a line is no object.", hint=_HINT)
        if "response" in line:
            data["response"] = line["response"]
        else:
            calls.append(
                line | {"input": _bytes(line.get("input", "")), "answer": _bytes(line.get("answer", ""))}
            )
    return checked(recording_of(data | {"calls": calls}))


def _has_over(most: int, text: str) -> bool:
    """Says whether JSON has more values than this, without decoding it."""
    if sum(map(text.count, ",[{")) <= most:
        return False
    found = 0
    for outside in _OUTSIDE_TEXTS.finditer(text):
        found += sum(map((outside[1] or "").count, ",[{"))
        if found > most:
            return True
    return False


def _call_line(call: RecordedCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "kind": call.kind,
        "server": call.server,
        "tool": call.tool,
        "input": _text(call.input),
        "digest": call.input_digest,
        "ok": call.ok,
        "answer": _text(call.answer),
        "duration_ms": call.duration_ms,
        "error": call.error,
        "certainty": call.certainty.value,
        **({"inner": call.inner} if call.inner else {}),
    }


def _text(data: bytes) -> str:
    # A worker may have sent any bytes; JSON has escapes for what stands for them.
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: Any) -> Any:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


# ---- redaction -------------------------------------------------------------------------------------------


def redacted(
    recording: Recording, known: Callable[[str], str], likely: Callable[[str], str]
) -> tuple[Recording, list[str]]:
    """Gives the recording without secrets, and names the parts that are changed: none where it replays to the byte.

    Args:
        recording: A whole recording.
        known: Gives a text without the secrets of the configuration; all else of a script is left as it is.
        likely: Gives a text without those, and without what looks like a credential.
    """
    changed: list[str] = []

    def part(name: str, before: Any, after: Any) -> Any:
        if before != after:
            changed.append(name)
        return after

    calls: list[RecordedCall] = []
    for call in recording.calls:
        sent = part(f"{call.kind} {call.id}: input", call.input, _hidden_json(call.input, likely))
        answer = part(f"{call.kind} {call.id}: answer", call.answer, _hidden_json(call.answer, likely))
        # A digest of what was taken out would let it be guessed.
        digest = call.digest if sent is call.input else digest_of(sent)
        calls.append(replace(call, input=sent, answer=answer, digest=digest))
    request = part("script", recording.request, _hidden(recording.request, known))
    body = part("modules", recording.body, _hidden_json(recording.body, _in_modules(known), named=False))
    grants = part("grants", recording.grants, _hidden(recording.grants, likely))
    response = part("response", recording.response, _hidden(recording.response, likely, named=True))
    exact = recording.exact and not changed
    found = replace(
        recording, calls=calls, request=request, body=body, grants=grants, response=response, exact=exact
    )
    return found, changed


def _hidden_json(data: bytes, hide: Callable[[str], str], *, named: bool = True) -> bytes:
    """Gives JSON without secrets; the very same bytes where there are none."""
    try:
        value: Any = json.loads(data) if data else None
    except (ValueError, RecursionError):
        return hide(_text(data)).encode("utf-8", "surrogateescape")
    after = _hidden(value, hide, named=named)
    if after == value:
        return data
    # As the sandbox writes it: what a script only passes on has the same digest in a replay.
    return json.dumps(after, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _hidden(value: Any, hide: Callable[[str], str], *, named: bool = False) -> Any:
    """Gives data without secrets; `named`: also without texts that have the name of one."""
    if isinstance(value, str):
        return hide(value)
    if is_array(value):
        return [_hidden(item, hide, named=named) for item in value]
    if is_object(value):
        return {
            hide(name): REDACTED
            if named and isinstance(item, str) and item and is_named_secret(name, item)
            else _hidden(item, hide, named=named)
            for name, item in value.items()
        }
    return value


def _in_modules(hide: Callable[[str], str]) -> Callable[[str], str]:
    """Returns what hides as `hide` does, and inside of `data:` URLs, too."""

    def hidden(text: str) -> str:
        mark = ";base64,"
        if not text.startswith("data:") or mark not in text:
            return hide(text)
        start, encoded = text.split(mark, 1)
        source = b64decode(encoded).decode("utf-8", "replace")
        after = hide(source)
        return text if after == source else f"{start}{mark}{b64encode(after.encode()).decode()}"

    return hidden
