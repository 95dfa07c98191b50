"""Cellrun is the file of a recording: JSON, a line each for the run, its requests and its response.

It is meant to be read, sent and kept in a repository, so what looks like a secret is taken out of it (`redacted`).
Inputs and answers are JSON texts, as the script sent and got them, byte for byte.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.base.redaction import REDACTED
from cellblock.base.secret_values import is_named_secret
from cellblock.record.recording import (
    FORMAT_VERSION,
    RecordedCall,
    Recording,
    UnreadableRecording,
    checked,
    recording_of,
)
from cellblock.run.hook import digest_of
from cellblock_worker.base.private_files import read_named

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
