"""Keeps the secrets of a server's configuration out of what others read: errors, reasons, logs.

A server, its SDK or an HTTP library may quote a URL, a header or a key in an error. Which values are secrets is told
by where they stand in the configuration; a tool's ordinary results are data and are left alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

from cellblock.base.json import mapped
from cellblock.base.secrets.configured_secrets import secrets_of
from cellblock.base.settings.settings import ServerConfig

REDACTED: Final = "[redacted]"

MIN_SECRET_CHARS: Final = 6
"""Leaves shorter values alone, which are too likely to be words of their own."""

MAX_LATER: Final = 24
"""Caps the secrets of one server that came after its configuration: eight renewals of access token, refresh token and
client."""

_URL: Final = re.compile(r"""(https?://)(?:[^\s/?#@"']*@)?([^\s?#"']*)(?:[?#][^\s"']*)?""")


class Redactor:
    """Replaces the secrets of one server's configuration (`configured_secrets`), and whatever was put in there for a
    reference such as `${env:NAME}`."""

    def __init__(self, config: ServerConfig) -> None:
        self._known = list(secrets_of(config))
        self._later: list[str] = []
        self._pattern = self._compiled()

    def add(self, secrets: Iterable[str]) -> None:
        """Adds more secrets, such as a renewed token; of those the last `MAX_LATER` are known."""
        new = [secret for secret in secrets if secret not in self._later]
        if new:
            self._later = [*self._later, *new][-MAX_LATER:]
            self._pattern = self._compiled()

    def _compiled(self) -> re.Pattern[str] | None:
        found = {form for secret in [*self._known, *self._later] for form in _forms(secret)}
        # The longest first: one secret may begin with another.
        ordered = sorted((text for text in found if len(text) >= MIN_SECRET_CHARS), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Returns the text with `[redacted]` in place of each secret."""
        return self._pattern.sub(REDACTED, text) if self._pattern else text

    def tree(self, value: Any) -> Any:
        """Returns JSON data with every string and key treated as by `text`."""
        return mapped(value, self.text, keys=True)


def redacting(servers: Iterable[ServerConfig]) -> Callable[[Any], Any]:
    """Returns what gives JSON data without the secrets of all these servers."""
    redactors = [Redactor(server) for server in servers]

    def redacted(value: Any) -> Any:
        for redactor in redactors:
            value = redactor.tree(value)
        return value

    return redacted


class BareUrls(logging.Filter):
    """Shortens URLs for the loggers of the HTTP library and the SDK, which write whole ones: scheme, host and path
    stay.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Shortens the URLs in a log record; drops no record."""
        record.msg, record.args = _URL.sub(r"\1\2", record.getMessage()), ()
        return True


class NoTracebacks(logging.Filter):
    """Drops tracebacks for the SDK's logger of logins, which quote states and a server's own words: the caller says
    why.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Drops records with a traceback."""
        return not record.exc_info


def guard_loggers() -> None:
    """Puts the filters on the loggers that are known to need them; once is enough, more often does no harm."""
    logins = logging.getLogger("mcp.client.auth.oauth2")
    if not any(isinstance(known, NoTracebacks) for known in logins.filters):
        logins.addFilter(NoTracebacks())
    for name in ("httpx2", "mcp.client.streamable_http", "mcp.client.sse", "mcp.client.auth.oauth2"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, BareUrls) for known in logger.filters):
            logger.addFilter(BareUrls())


def _forms(secret: str) -> tuple[str, ...]:
    """Returns how a secret may be written: as configured, percent-encoded, decoded."""
    return secret, quote(secret, safe=""), quote_plus(secret), unquote(secret)
