"""Secrets of the configuration, and of logins, stay with the servers that they are for: in calls of others, and in
results, they are replaced, or such a call is denied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

from cellblock.base.errors import CallDenied, CellblockError, Fault
from cellblock.base.json import mapped
from cellblock.base.payload import encode
from cellblock.base.raw_json import LIGHT_BYTES, RawJson, is_small
from cellblock.base.redaction import SecretForms, redacted
from cellblock.base.secret_values import secrets_of
from cellblock.base.settings.server import ServerConfig
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.upstream.wire.repair import CARRIED, carried
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult

Clean = Callable[[str], str]
"""Takes secrets out of a text."""

_ESCAPE: Final = re.compile(rb"\\[u\\/]")
"""Begins an escape in JSON, in which a secret may be written any way."""


class Secrets:
    """Knows the secrets of all servers, and which of them each server may get.

    Args:
        mode: Whether they are masked, or a call with one is denied.
        servers: The configuration's servers, by name.
        others: Secrets that are no server's.
        later: Those of logins.
    """

    def __init__(
        self,
        mode: Literal["mask", "deny"],
        servers: Mapping[str, ServerConfig],
        others: Iterable[str] = (),
        later: SecretForms | None = None,
    ) -> None:
        self._denies, configured = mode == "deny", SecretForms()
        configured.add(others)
        for name, config in servers.items():
            configured.add(secrets_of(config), name)
        self._known = configured, later or SecretForms()

    async def for_call(self, server: str, tool: ToolEntry, arguments: Any) -> Any:
        """Returns the input of a call of a server, by its name in the configuration, without others' secrets. Raises
        CallDenied: It has one, and is not to be made."""
        masked = await _masked(arguments, partial(self._clean, besides=server))
        if self._denies and masked != arguments:
            raise CallDenied(
                f"{tool.export_name} was not called: a secret of the configuration or of a login is in its input.",
                hint="Leave the secret out: servers have what they need without it.",
                code="SECRET_DENIED",
                fault=Fault.SCRIPT,
            )
        return masked

    async def incoming(self, result: Any) -> Any:
        """Returns what a call has come to without any secret."""
        clean = self._clean
        if isinstance(result, ToolResult):
            body = await _masked_body(result.body, clean)
            return result if body is result.body else ToolResult(body, result.notes, result.null_is_value)
        if isinstance(result, ResourceResult):
            return ResourceResult(await _masked_body(result.body, clean))
        if isinstance(result, RawJson):
            return RawJson(await _masked_body(result.raw, clean))
        if isinstance(body := carried(getattr(result, "meta", None)), bytes):
            return result.model_copy(update={"meta": {CARRIED: await _masked_body(body, clean)}})
        return result

    def told(self, error: CellblockError) -> None:
        """Takes the secrets out of what an error says."""
        error.message, error.hint = self._clean(error.message), self._clean(error.hint)

    def _clean(self, text: str, besides: str | None = None) -> str:
        return redacted(text, self._known, besides)


async def _masked(value: Any, clean: Clean) -> Any:
    if is_small(value):
        return mapped(value, clean, keys=clean)
    return await asyncio.to_thread(mapped, value, clean, keys=clean)


async def _masked_body(body: bytes, clean: Clean) -> bytes:
    if len(body) <= LIGHT_BYTES:
        return _without(body, clean)
    return await asyncio.to_thread(_without, body, clean)


def _without(body: bytes, clean: Clean) -> bytes:
    """Returns JSON without secrets in its texts; the same bytes where none is there."""
    if _ESCAPE.search(body) is None:
        text = body.decode("utf-8", "replace")
        if clean(text) == text:
            return body
    value: Any = msgspec.json.decode(body)
    masked = mapped(value, clean, keys=clean)
    return body if masked == value else encode(masked)
