"""Secrets finds what looks like a secret in a server's entry, and puts a reference to a variable in its place."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from cellblock.app.config.references import input_variable
from cellblock.base.json import is_array, is_object
from cellblock.base.secret_values import looks_secret

_SCHEME: Final = re.compile(r"(Bearer|Basic|Token|ApiKey)\s+", re.I)


@dataclass(slots=True)
class Secrets:
    """Holds the variables that stand for secrets: their values by name, over all servers that are imported together.

    Args:
        kind: The kind of reference that is put in their place, `env` or `keyring`.
        kept: Gives the value that a name has there already.
    """

    kind: str = "env"
    kept: Callable[[str], str | None] = lambda _: None
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def taken_out(self, server: str, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns an entry with references in place of its secrets, and the variables that those name."""
        written, used = dict(entry), list[str]()

        def replaced(value: str, wanted: str) -> str:
            name = self._variable(value, wanted, server)
            used.append(name)
            return f"${{{self.kind}:{name}}}"

        for key in ("env", "headers"):
            if is_object(pairs := entry.get(key)):
                written[key] = {
                    name: _named(name, value, server, key, replaced) for name, value in pairs.items()
                }
        if is_array(args := entry.get("args")):
            written["args"] = _options(args, server, replaced)
        if isinstance(entry.get("url"), str):
            written["url"] = _address(entry["url"], server, replaced)
        return written, list(dict.fromkeys(used))

    def _variable(self, value: str, wanted: str, server: str) -> str:
        numbered = (f"{wanted}_{number}" for number in itertools.count(2))
        for name in itertools.chain((wanted, input_variable(f"{server}_{wanted}")), numbered):
            if name not in self.variables and self.kept(name) not in (None, value):
                continue
            if self.variables.setdefault(name, value) == value:
                return name
        raise AssertionError  # the numbers do not end


# ---- inside ------------------------------------------------------------------------------------------


def _named(name: str, value: Any, server: str, kind: str, replaced: Any) -> Any:
    if not isinstance(value, str) or not looks_secret(name, value):
        return value
    if kind == "env":
        return replaced(value, input_variable(name))
    scheme = _SCHEME.match(value)
    prefix = scheme[0] if scheme else ""
    return prefix + replaced(value[len(prefix) :], input_variable(f"{server}_{name}"))


def _options(args: list[Any], server: str, replaced: Any) -> list[Any]:
    written: list[Any] = []
    option = ""
    for arg in args:
        if not isinstance(arg, str):
            written.append(arg)
            option = ""
            continue
        name, equals, value = arg.partition("=")
        if equals and name.startswith("-") and looks_secret(name, value):
            arg = f"{name}={replaced(value, input_variable(f'{server}_{name}'))}"
        elif "://" in arg:
            arg = _address(arg, server, replaced)
        elif not arg.startswith("-") and looks_secret(option, arg):
            arg = replaced(arg, input_variable(f"{server}_{option}" if option else f"{server}_SECRET"))
        option = arg if arg.startswith("-") and "=" not in arg else ""
        written.append(arg)
    return written


def _address(url: str, server: str, replaced: Any) -> str:
    """Returns a URL with references for its password and for query values that are secrets."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return url
    if password and looks_secret("password", password):
        # By its place: the same word may stand elsewhere in the URL.
        user, _, rest = parts.netloc.rpartition("@")
        name, _, written = user.partition(":")
        netloc = f"{name}:{replaced(written, input_variable(f'{server}_PASSWORD'))}@{rest}"
        url = url.replace(f"//{parts.netloc}", f"//{netloc}", 1)
    for pair in parts.query.split("&") if parts.query else ():
        name, _, written = pair.partition("=")
        if looks_secret(unquote(name), unquote(written)):
            # As it is written: what a variable holds is put in without encoding.
            reference = replaced(written, input_variable(f"{server}_{unquote(name)}"))
            url = url.replace(pair, f"{name}={reference}", 1)
    return url
