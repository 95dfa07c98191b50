"""Decides what is taken for a secret, by its name or by its looks, and finds the secrets in a server's configuration.

Told by place and name: values of variables, headers and options named like a secret, also as `NAME=value` or
`Name: value` in any argument, in connection strings and in JSON; users, passwords and queries of URLs. Without a name,
only by a well-known beginning: a package or an image's digest is no secret, and says which server it is (`pins`). Of a
URL's path, words that look made by chance; a UUID there is taken for an address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from cellblock.base.json import is_array, is_object
from cellblock.base.settings.settings import ServerConfig

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
_KIND_OF: Final = re.compile(r"(?:[Tt]ype|TYPE|[Mm]ethod|METHOD)$")
_KIND: Final = re.compile(r"[a-z]{2,16}(?:[-_][a-z]{2,16}){0,3}")
"""Matches how something is done, where the name asks that: `oauth-personal`."""
_PATH: Final = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@ +-]*)+")
_RANDOM: Final = re.compile(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)[\w+-]+", re.ASCII)

MIN_PATH_TOKEN_CHARS: Final = 20
"""Takes shorter words of a URL's path for names."""

MAX_NESTED: Final = 3
"""Bounds the names that may stand before one value: `--env=HEADER=X-Key:value`."""

_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>]+", re.I)
_PAIR: Final = re.compile(r"(-{0,2}[\w.-]++)(=|:\s+)(.+)", re.DOTALL)
_HEADER: Final = re.compile(r"(-{0,2}[\w.-]++)([=:])\s*+(.+)", re.DOTALL)
_PIECE: Final = re.compile(r"(?<![\w.-])([\w.-]++)=(\"[^\"]*\"|'[^']*'|[^\s;&,\"']+)")

_HEADER_OPTIONS: Final = frozenset({"-H", "--header", "--headers"})
_USER_OPTIONS: Final = frozenset({"-u", "--user", "--username"})
_WEB: Final = frozenset({"http", "https", "ws", "wss"})


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
    if _KIND_OF.search(name) and _KIND.fullmatch(value):
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


def secrets_of(config: ServerConfig) -> Iterator[str]:
    """Returns every secret as it is configured; some more than once, some short."""
    yield from config.referenced
    if config.url is not None:
        yield from _in_url(config.url)
    for name, value in [*config.inherited().items(), *config.env.items(), *config.headers.items()]:
        if is_secret(name, value):
            yield from _spoken(value)
        yield from _in_text(value)
    yield from _in_arguments(config.args)


def _in_arguments(arguments: Sequence[str]) -> Iterator[str]:
    option, has_user = "", False
    for argument in arguments:
        yield from _in_text(argument, header=option in _HEADER_OPTIONS)
        if option in _USER_OPTIONS:
            has_user = True
            yield argument.partition(":")[2]
        # `-p` alone may be a port or a package; beside a user it is a password.
        elif option == "-p" and has_user and not is_harmless(argument):
            yield argument
        elif option and not argument.startswith("--") and is_named_secret(option, argument):
            yield from _spoken(argument)
        option = argument if argument.startswith("-") and "=" not in argument else ""


def _in_text(text: str, *, header: bool = False) -> Iterator[str]:
    """Returns what an argument or a value holds besides being one.

    Args:
        text: It.
        header: Whether it is a header, whose colon needs no space; elsewhere that might be an image's tag.
    """
    for name, value in _pairs(text, header=header):
        # An option may say which package or image is run; a variable or a header does not.
        if (is_named_secret if name.startswith("-") else is_secret)(name, value):
            yield from _spoken(value)
    if "://" in text:
        for url in _URL.findall(text):
            yield from _in_url(url)
    yield from (found[0] for found in KNOWN_TOKEN.finditer(text))


def _pairs(text: str, *, header: bool) -> Iterator[tuple[str, str]]:
    if text[:1] == "{":
        yield from _json_pairs(text)
        return
    rest = text
    for _ in range(MAX_NESTED):
        found = _HEADER.match(rest) if header else _PAIR.match(rest)
        if found is None or found[3].startswith("//"):
            break
        name, rest = found[1], found[3]
        header = header or name in _HEADER_OPTIONS
        yield name, rest.strip("\"'")
        if rest[:1] == "{":
            yield from _json_pairs(rest)
    if ";" in text:
        for part in text.split(";"):
            name, _, value = part.partition("=")
            yield name.strip().rpartition("=")[2], value.strip().strip("\"'")
    # A URL's query has its own rules.
    for name, value in _PIECE.findall(_URL.sub(" ", text) if "://" in text else text):
        yield name, value.strip("\"'")


def _json_pairs(text: str) -> Iterator[tuple[str, str]]:
    try:
        waiting: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while waiting:
        value = waiting.pop()
        if is_array(value):
            waiting.extend(value)
        elif is_object(value):
            yield from ((name, item) for name, item in value.items() if isinstance(item, str))
            waiting.extend(item for item in value.values() if not isinstance(item, str))


def _in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield from (part for part in (parts.username, parts.password) if part)
    except ValueError:
        return
    of_web = parts.scheme in _WEB
    for name, value in parse_qsl(parts.query):
        # `sslmode` of a database is none; what a server is asked with may be, by any name.
        if is_named_secret(name, value) or (of_web and not is_harmless(value)):
            yield value
    if of_web:
        yield from (word for word in parts.path.split("/") if is_random(word, MIN_PATH_TOKEN_CHARS))


def _spoken(value: str) -> Iterator[str]:
    """Returns a secret and, for `Bearer TOKEN`, the token, which is also said without its scheme."""
    yield value
    yield value.rpartition(" ")[2]
