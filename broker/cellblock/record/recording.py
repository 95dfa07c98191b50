"""A recording is all that it takes to run a script again to the same point, and what came of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from typing import Any, Final, cast

import msgpack
from pydantic import TypeAdapter, ValidationError

from cellblock.base.errors import CellblockError
from cellblock.base.json import is_array, is_object
from cellblock.run.hook import RecordedCall, is_events
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, Withheld

FORMAT_VERSION: Final = 1
"""Goes up with any change that an older release would misread. A recording of another version is refused."""

_SEED: Final = re.compile("[0-9a-f]{64}")


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
