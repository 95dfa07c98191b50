"""Secrets of the configuration stay with the servers that they are for: in calls of others, and in results, they are
replaced, or such a call is denied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from cellblock.base.errors import CallDenied, CellblockError, Fault
from cellblock.base.json import mapped
from cellblock.base.payload import encode
from cellblock.base.raw_json import LIGHT_BYTES, RawJson, is_small
from cellblock.base.redaction import REDACTED, pattern_of
from cellblock.base.secret_values import secrets_of
from cellblock.base.settings.server import ServerConfig
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.upstream.wire.repair import CARRIED, carried
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult

Pattern = re.Pattern[str] | None

_ESCAPE: Final = b"\\u"
"""Begins an escape in JSON, in which a secret may be written any way."""


class Secrets:
    """Knows the secrets of all servers, and which of them each server may get.

    Args:
        mode: Whether they are masked, or a call with one is denied.
        servers: The configuration's servers, by name.
        others: Secrets that are no server's.
    """

    def __init__(
        self,
        mode: Literal["mask", "deny"],
        servers: Mapping[str, ServerConfig],
        others: Iterable[str] = (),
    ) -> None:
        own = {name: frozenset(secrets_of(config)) for name, config in servers.items()}
        every = frozenset(others).union(*own.values())
        self._denies = mode == "deny"
        self._every = pattern_of(every)
        self._of_others = {name: pattern_of(every - secrets) for name, secrets in own.items()}

    async def for_call(self, server: str, tool: ToolEntry, arguments: Any) -> Any:
        """Returns the input of a call of a server, by its name in the configuration, without others' secrets. Raises
        CallDenied: It has one, and is not to be made."""
        masked = await _masked(arguments, self._of_others.get(server, self._every))
        if self._denies and masked != arguments:
            raise CallDenied(
                f"{tool.export_name} was not called: a secret of the configuration is in its input.",
                hint="Leave the secret out: servers have what they need from the configuration.",
                code="SECRET_DENIED",
                fault=Fault.SCRIPT,
            )
        return masked

    async def incoming(self, result: Any) -> Any:
        """Returns what a call has come to without any secret."""
        pattern = self._every
        if pattern is None:
            return result
        if isinstance(result, ToolResult):
            body = await _masked_body(result.body, pattern)
            return result if body is result.body else ToolResult(body, result.notes, result.null_is_value)
        if isinstance(result, ResourceResult):
            return ResourceResult(await _masked_body(result.body, pattern))
        if isinstance(result, RawJson):
            return RawJson(await _masked_body(result.raw, pattern))
        if isinstance(body := carried(getattr(result, "meta", None)), bytes):
            return result.model_copy(update={"meta": {CARRIED: await _masked_body(body, pattern)}})
        return result

    def told(self, error: CellblockError) -> None:
        """Takes the secrets out of what an error says."""
        if (pattern := self._every) is not None:
            error.message = pattern.sub(REDACTED, error.message)
            error.hint = pattern.sub(REDACTED, error.hint)


async def _masked(value: Any, pattern: Pattern) -> Any:
    if pattern is None:
        return value
    if is_small(value):
        return mapped(value, lambda text: pattern.sub(REDACTED, text), keys=True)
    return await asyncio.to_thread(mapped, value, lambda text: pattern.sub(REDACTED, text), keys=True)


async def _masked_body(body: bytes, pattern: re.Pattern[str]) -> bytes:
    if len(body) <= LIGHT_BYTES:
        return _without(body, pattern)
    return await asyncio.to_thread(_without, body, pattern)


def _without(body: bytes, pattern: re.Pattern[str]) -> bytes:
    """Returns JSON without secrets in its texts; the same bytes where none is there."""
    if (
        _ESCAPE not in body
        and b"\\\\" not in body
        and pattern.search(body.decode("utf-8", "replace")) is None
    ):
        return body
    value: Any = msgspec.json.decode(body)
    masked = mapped(value, lambda text: pattern.sub(REDACTED, text), keys=True)
    return body if masked == value else encode(masked)
