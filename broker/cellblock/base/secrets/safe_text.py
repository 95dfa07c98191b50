"""Makes what a script may read of an exception: its kind and its text, without what looks like a credential.

A tool in Python runs in the broker's process, so its exceptions may quote the broker's environment, a URL with a
password or a header. A text is for the agent to correct its call with; the log has the traceback.
"""

from __future__ import annotations

import os
import re
import traceback
from typing import Final

from cellblock.base.secrets.redaction import REDACTED, Redactor
from cellblock.base.settings.settings import ServerConfig

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

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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
    text = _CONTROL.sub("\ufffd", text)
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
