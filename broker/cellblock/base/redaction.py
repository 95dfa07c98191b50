"""Keeps the secrets of a server's configuration out of what others read: errors, reasons, logs.

A server, its SDK or an HTTP library may quote a URL, a header or a key in an error. Which values are secrets is told
by where they stand in the configuration; a tool's ordinary results are data and are left alone.

A tool in Python runs in the broker's process, so its exceptions may quote the broker's environment, a URL with a
password or a header: of those a script gets kind and text, without what looks like a credential (`safe_text`), and the
log the traceback.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

from cellblock.base.json import mapped
from cellblock.base.secret_values import secrets_of
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.visible import visible

REDACTED: Final = "[redacted]"

MIN_SECRET_CHARS: Final = 6
"""Leaves shorter values alone, which are too likely to be words of their own."""

MAX_FORMS: Final = 4_096
"""Caps the forms of all secrets that came later: of a thousand logins, an access and a refresh token each."""

MAX_LATER: Final = 144
"""Caps the forms of one server's secrets that came after its configuration: eight renewals of access token, refresh
token and client, in six forms each."""

FEW_FORMS: Final = 64
"""Up to so many, to look for one after the other is faster than to look for what begins like one."""

_URL: Final = re.compile(r"""(https?://)(?:[^\s/?#@"']*@)?([^\s?#"']*)(?:[?#][^\s"']*)?""")

MAX_CHARS: Final = 2_000
"""Caps an exception's text: it ends up in a model's context."""

_MAX_FRAMES: Final = 10
"""Caps the innermost frames of a traceback in the log."""

_MAX_READ: Final = 8_000
"""Caps the characters that are looked at; longer texts are cut before the patterns see them."""

_MAX_HALF: Final = 4_000
"""Hides so many characters before the cut of a long text: half a secret may stand there, which nothing recognises."""

# Each of these is linear, whatever the text: one beginning of a match each few characters, and a bound on the way.
_WORD: Final = r"(?:api[_-]?key|secret|passw(?:or)?d|pwd|credential|authorization"
_REST: Final = r"[\w-]{0,64}+"
_VALUE: Final = rf"(?!{re.escape(REDACTED)})[\"']?[^\s\"'&,;)}}\]]{{3,}}"

_PATTERNS: Final = (
    # user:password@ of any URL
    (re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)[^\s/?#@\"']{1,500}@", re.I), rf"\1{REDACTED}@"),
    # Authorization: Bearer abc
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.I), rf"\1 {REDACTED}"),
    # password=abc, "token": "abc"
    (re.compile(rf"({_WORD}|token){_REST}(?:[\"']\s?:|[\"']?\s?=)\s?){_VALUE}", re.I), rf"\1{REDACTED}"),
    # password: abc, but not a parser's "unexpected token: abc"
    (re.compile(rf"({_WORD}){_REST}:\s?){_VALUE}", re.I), rf"\1{REDACTED}"),
    # a JSON Web Token; keys with a well-known beginning
    (re.compile(r"\beyJ[\w-]{10,500}+\.[\w-]{10,}+\.[\w-]*"), REDACTED),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|xox[abp]|glpat|AKIA)[-_]?[A-Za-z0-9_-]{16,}"), REDACTED),
)

_ENV_SECRET: Final = re.compile(r"key|token|secret|passw|pwd|cred", re.I)


class SecretForms:
    """Knows secrets as they may be written, and which servers they are for.

    Args:
        most: Caps the forms: of more, the last that were added are known.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._known: tuple[Mapping[str, frozenset[str]], Mapping[str, list[str]]] = ({}, {})
        """Holds the servers of each form, and the forms that begin alike."""

    def add(self, secrets: Iterable[str], server: str = "") -> None:
        """Adds secrets of a server."""
        before = self._known[0]
        forms = [form for secret in secrets for form in _forms(secret) if len(form) >= MIN_SECRET_CHARS]
        new = {form: before.get(form, frozenset()) | {server} for form in forms}
        kept = [(form, servers) for form, servers in before.items() if form not in new]
        servers, alike = dict([*kept, *new.items()][-self._most :]), dict[str, list[str]]()
        for form in servers:
            alike.setdefault(form[:MIN_SECRET_CHARS], []).append(form)
        # Others each time: threads look through those that were there.
        self._known = servers, alike

    def __contains__(self, secret: str) -> bool:
        return secret in self._known[0]

    def found(self, text: str, besides: str | None = None) -> list[str]:
        """Returns the forms that stand in a text, but those of one server."""
        servers, alike = self._known
        forms: Iterable[str] = servers
        if len(servers) > FEW_FORMS:
            # What begins like none is not held: a text may have 16 MiB.
            begun = {start for i in range(len(text)) if (start := text[i : i + MIN_SECRET_CHARS]) in alike}
            forms = chain.from_iterable(alike[start] for start in begun)
        return [form for form in forms if form in text and besides not in servers[form]]


def redacted(text: str, known: Iterable[SecretForms], besides: str | None = None) -> str:
    """Returns the text with `[redacted]` in place of each secret, but those of one server."""
    found = [form for forms in known for form in forms.found(text, besides)]
    # The longest first: one secret may be a part of another.
    for form in sorted(found, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text


class Redactor:
    """Replaces the secrets of one server's configuration (`secret_values`), and whatever was put in there for a
    reference such as `${env:NAME}`. `tell` hears of secrets that are added."""

    def __init__(
        self, config: ServerConfig, tell: Callable[[Iterable[str]], object] = lambda _: None
    ) -> None:
        self._tell = tell
        self._later = SecretForms(MAX_LATER)
        self._known = SecretForms(), self._later
        self._known[0].add(secrets_of(config))

    def add(self, secrets: Iterable[str]) -> None:
        """Adds more secrets, such as a renewed token; of those the last `MAX_LATER` forms are known."""
        new = [secret for secret in secrets if secret not in self._later]
        if new:
            self._tell(new)
            self._later.add(new)

    def text(self, text: str) -> str:
        """Returns the text with `[redacted]` in place of each secret."""
        return redacted(text, self._known)

    def tree(self, value: Any) -> Any:
        """Returns JSON data with every string and key treated as by `text`."""
        return mapped(value, self.text, keys=self.text)


def redacting(servers: Iterable[ServerConfig]) -> Callable[[Any], Any]:
    """Returns what gives JSON data without the secrets of all these servers."""
    forms = SecretForms()
    for server in servers:
        forms.add(secrets_of(server))

    def text(value: str) -> str:
        return redacted(value, [forms])

    return lambda value: mapped(value, text, keys=text)


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
    """Returns how a secret may be written: as configured, percent-encoded, decoded, within JSON."""
    in_json = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
    return secret, quote(secret, safe=""), quote_plus(secret), unquote(secret), *in_json


def safe_text(text: str) -> str:
    """Returns the text without credentials, control characters and what is over `MAX_CHARS`."""
    whole = len(text) <= _MAX_READ
    text = text[:_MAX_READ]
    # Read anew each time: a module may load its keys into the environment when it is first used.
    secrets = {name: value for name, value in os.environ.items() if _ENV_SECRET.search(name)}
    text = Redactor(ServerConfig(command="-", env=secrets)).text(text)
    text = without_credentials(text)
    if not whole:
        text = text[:-_MAX_HALF]
    text = visible(text, keep="\n\t")
    return text if whole and len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"


def without_credentials(text: str) -> str:
    """Returns the text, of any length, without what looks like a credential."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def describe_exception(error: BaseException) -> str:
    """Returns the kind and text of an exception, safe to show to a script."""
    try:
        text = safe_text(str(error)).strip()
    except Exception:  # noqa: BLE001 - an exception of a tool may have a __str__ that raises
        text = ""
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def safe_traceback(error: BaseException, description: str) -> str:
    """Returns where an exception was raised, for the log: file names and lines without their source, and its
    description, as `describe_exception` made it.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    places = "".join(f"  {frame.filename}:{frame.lineno} in {frame.name}\n" for frame in frames)
    return places + description
