"""An entry of `mcpServers` configures one server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic.config import JsonDict

_NO_NUL: Final[JsonDict] = {"pattern": "^[^\\u0000]*$"}
"""Tells editors what `_without_nul` checks."""

_T = TypeVar("_T", str, Path)


def _reachable(url: str) -> str:
    # What refers to something still is of a server that is left out. A URL may hold a secret: it is not quoted.
    if "${" in url:
        return url
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("this is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL with http:// or https:// and a host is needed")
    return url


def _without_nul(text: _T) -> _T:
    # The value may be a secret: it is not quoted.
    if "\0" in str(text):
        raise ValueError("a NUL character is in it, which no program can be given")
    return text


def _named(program: str) -> str:
    if not program:
        raise ValueError("it is empty, and names no program")
    return _without_nul(program)


def _with_names(variables: dict[str, str]) -> dict[str, str]:
    if any("=" in name or "\0" in name for name in variables):
        raise ValueError("a variable's name has `=` or a NUL character in it")
    return variables


_Word = Annotated[str, AfterValidator(_without_nul), Field(json_schema_extra=_NO_NUL)]
"""Is a string that a program is given: C strings end at a NUL character."""

_Program = Annotated[str, AfterValidator(_named), Field(json_schema_extra={"minLength": 1, **_NO_NUL})]


_Url = Annotated[str, AfterValidator(_reachable)]


class ServerConfig(BaseModel):
    """An entry of `mcpServers` is a command to start, or a URL to connect to."""

    # Clients put keys of their own beside the standard ones; `entry_problems` knows them.
    model_config = ConfigDict(extra="ignore", frozen=True)

    command: _Program | None = None
    """Names the program that is the server, found on PATH or by its path; it speaks MCP over stdio."""

    args: list[_Word] = []
    """Holds the program's arguments."""

    env: Annotated[dict[str, _Word], AfterValidator(_with_names)] = {}
    """Holds the program's environment variables, beside a few that every program needs, such as PATH and HOME."""

    cwd: Annotated[Path, AfterValidator(_without_nul)] | None = None
    """The folder it is started in; Cellblock's own when absent."""

    url: _Url | None = None
    """Names where a server is reached over HTTP, instead of `command`. `serverUrl` and `httpUrl` are taken for it,
    too."""

    headers: dict[str, str] = {}
    """HTTP headers of every request."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    """Says how a `url` is spoken to: streamable HTTP unless it says `sse`."""

    disabled: bool = False
    """Says whether the server is left out."""

    _referenced: frozenset[str] = PrivateAttr(default=frozenset())

    _missing: str | None = PrivateAttr(default=None)

    @property
    def referenced(self) -> frozenset[str]:
        """Values that references such as `${env:NAME}` stood for: secrets, wherever they are quoted."""
        return self._referenced

    @property
    def missing(self) -> str | None:
        """Says which references stand for nothing: such a server is there by its name, and is not started."""
        return self._missing

    def hold(self, referenced: frozenset[str], missing: str | None = None) -> None:
        """Notes those values, and what is missing; for who reads the configuration."""
        self._referenced = referenced
        self._missing = missing

    @model_validator(mode="after")
    def _one_transport(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("exactly one of `command` and `url` is needed")
        return self


SERVER_KEYS: Final = tuple(field.alias or name for name, field in ServerConfig.model_fields.items())
"""Names the keys of a server's entry that Cellblock reads."""
