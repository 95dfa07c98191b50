"""Decides what is taken for a secret, by its name or by its looks: for what is imported, and for what is kept out of
texts.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

ORDINARY: Final = frozenset(
    [
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "PATH",
        "LANG",
        "LANGUAGE",
        "LC_ALL",
        "TERM",
        "TZ",
        "TMPDIR",
        "HOSTNAME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
    ]
)
"""Names variables that hold no secret: a path under `${HOME}` is not to be blotted out of every error."""

SECRET_NAME: Final = re.compile(
    r"key|token|secret|pass|pwd|auth(?!or(?!i))|cred|cookie|session|private|signature|bearer|jwt|dsn|webhook"
    r"|conn(?:ection)?[_-]?str|(?<![a-z])(?:pat|sas)(?![a-z])|(?-i:(?<=[a-z])Pat(?![a-z]))",
    re.I,
)
"""Matches names of variables, headers, options and query parameters whose values are taken for secrets."""

KNOWN_TOKEN: Final = re.compile(
    r"(?<![\w-])(?:(?=[\w-]{0,60}\d)"
    r"(?:sk|pk|rk|gh[pousr]|xox[abp]|glpat|github_pat|AKIA|AIza|npm_|hf_|pypi-)[-_]?[A-Za-z0-9_-]{12,}"
    r"|eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Matches well-known beginnings, tokens and keys, tried at the beginning of a word alone. Packages have names like
`npm-check-updates` and `risk-assessment-server`."""

_LONG_WORD: Final = re.compile(r"(?<![\w+=])(?=[\w+=]*\d)(?=[\w+=]*[A-Za-z])[\w+=]{28,}")
"""Matches long words of letters and digits. Tried at the beginning of a word alone: a repository's file may be made to
take long."""

_REFERENCE: Final = re.compile(r"\$\{[^{}]+\}")
_PLAIN: Final = re.compile(
    r"true|false|yes|no|on|off|none|null|auto|default|enabled|disabled|required|optional|oauth2?|\d{1,5}|",
    re.I,
)
_NUMBER_OF: Final = re.compile(r"tokens|max|limit|timeout|ttl", re.I)
_PATH: Final = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@ +-]*)+")
_RANDOM: Final = re.compile(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)[\w+-]+", re.ASCII)


def looks_secret(name: str, value: str) -> bool:
    """Says whether a value is taken for a secret, by its name or by its looks. A reference is none."""
    rest = _REFERENCE.sub("", value)
    if rest != value and not _looks(rest):
        return False
    return is_secret(name, value)


def is_secret(name: str, value: str) -> bool:
    """Says whether a value in which no reference stands is taken for a secret."""
    if name in ORDINARY or is_harmless(value):
        return False
    return is_named_secret(name, value) or _looks(value) or has_password(value)


def is_named_secret(name: str, value: str) -> bool:
    """Says whether the name alone makes a secret of the value; not of a number of tokens, say, nor of a path."""
    if name in ORDINARY or is_harmless(value) or (value.isdigit() and _NUMBER_OF.search(name)):
        return False
    return bool(SECRET_NAME.search(name))


def is_harmless(value: str) -> bool:
    """Says whether a value can be no secret whatever its name: a word like `true`, a port, a path, a reference."""
    if _PLAIN.fullmatch(value) or _REFERENCE.fullmatch(value):
        return True
    # A path to a key is no key; one key of base64 in 64 begins like a path.
    return _PATH.fullmatch(value) is not None and not any(is_random(part, 12) for part in value.split("/"))


def is_random(word: str, least: int) -> bool:
    """Says whether a word of `least` characters or more has small and capital letters and digits, as tokens do."""
    return len(word) >= least and _RANDOM.fullmatch(word) is not None


def has_password(value: str) -> bool:
    """Says whether a value is a URL with a password."""
    if "://" not in value or "@" not in value:
        return False
    try:
        return bool(urlsplit(value).password)
    except ValueError:
        return False


def _looks(value: str) -> bool:
    return bool(KNOWN_TOKEN.search(value)) or bool(_LONG_WORD.search(value))
