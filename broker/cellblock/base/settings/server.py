"""An entry of `mcpServers` configures one server, and the section `auth` the logins to all of them: what `cellblock
auth login` and the daemon need to know."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic.config import JsonDict

from cellblock.base.settings.sections import HttpUrl, Secret, Section, secret_of

_NO_NUL: Final[JsonDict] = {"pattern": "^[^\\u0000]*$"}
"""Tells editors what `_without_nul` checks."""

_T = TypeVar("_T", str, Path)

Scope = Annotated[str, Field(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$")]


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
"""Holds a string that a program is given: C strings end at a NUL character."""

_Variable = Annotated[str, Field(pattern="^[^=\\u0000]+$")]

_Program = Annotated[str, AfterValidator(_named), Field(json_schema_extra={"minLength": 1, **_NO_NUL})]


_Url = Annotated[str, AfterValidator(_reachable)]


OWN_SECRET: Final = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_.-]{0,99})\}")
"""Matches what stands for a principal's own secret in a header."""


def _tool_name(name: str) -> str:
    # Gemini takes `run(ls)` for `run`.
    name = name.partition("(")[0].strip()
    if not name:
        raise ValueError("it is empty, and names no tool")
    return name


_ToolName = Annotated[str, AfterValidator(_tool_name), Field(json_schema_extra={"minLength": 1})]


def _named_in(names: Iterable[str], *tool: str) -> bool:
    """Says whether one of the patterns, with `*` for any characters, fits one of a tool's names."""
    return any(
        pattern == name
        or ("*" in pattern and re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.S))
        for pattern in names
        for name in tool
    )


class ServerConfig(BaseModel):
    """An entry of `mcpServers` is a command to start, or a URL to connect to."""

    # Clients put keys of their own beside the standard ones; `entry_problems` knows them.
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    command: _Program | None = None
    """Names the program that is the server, found on PATH or by its path; it speaks MCP over stdio."""

    args: list[_Word] = []
    """Holds the program's arguments."""

    env: Annotated[dict[str, _Word], AfterValidator(_with_names)] = {}
    """Holds the program's environment variables, beside a few that every program needs, such as PATH and HOME."""

    cwd: Annotated[Path, AfterValidator(_without_nul)] | None = None
    """Names the folder that the program is started in; Cellblock's own when absent."""

    url: _Url | None = None
    """Names the URL of a server that is reached over HTTP, instead of `command`. `serverUrl` and `httpUrl` mean the
    same."""

    headers: dict[str, str] = {}
    """Holds the HTTP headers of every request. With `login`, `${secret:NAME}` stands for a secret of each principal's
    own (`cellblock secret set NAME --principal PRINCIPAL`)."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    """Says how a `url` is spoken to: streamable HTTP unless it says `sse`. `transport` and `transportType` mean the
    same."""

    disabled: bool = False
    """Says whether the server is left out. `enabled` and `isActive` mean the opposite."""

    env_file: Annotated[Path, AfterValidator(_without_nul)] | None = Field(default=None, alias="envFile")
    """Names a file with further variables, one `NAME=value` a line; `env` overrides it."""

    inherit_env: bool | list[_Variable] = Field(default=False, alias="inheritEnv")
    """Names variables of Cellblock's own environment that the program gets, too; true: all of them."""

    enabled_tools: list[_ToolName] | None = Field(default=None, alias="enabledTools")
    """Names the only tools that scripts see, as the server calls them; `*` stands for any characters. `includeTools`,
    `enabled_tools`, `available_tools` and a list under `tools` mean the same."""

    disabled_tools: list[_ToolName] = Field(default=[], alias="disabledTools")
    """Names tools that scripts do not see, whatever `enabledTools` says. `excludeTools` and `disabled_tools` mean the
    same."""

    ask_tools: list[_ToolName] = Field(default=[], alias="askTools")
    """Names tools that the user is asked about before each call."""

    auto_approve: list[_ToolName] = Field(default=[], alias="autoApprove")
    """Names the tools that need no question: Cellblock asks the user about all others. An empty list has no effect.
    `alwaysAllow` means the same."""

    login: Literal["shared", "each", "each-public-tools"] = "shared"
    """Says whose login a server with a `url` is used with: one that all share, or that of each principal
    (`cellblock.policy`), who has a session of its own. With `each-public-tools` those without a login see the tools as
    they are for others."""

    _referenced: frozenset[str] = PrivateAttr(default=frozenset())

    _missing: str | None = PrivateAttr(default=None)

    @property
    def referenced(self) -> frozenset[str]:
        """Returns the values that references such as `${env:NAME}` stood for: secrets, wherever they are quoted."""
        return self._referenced

    @property
    def missing(self) -> str | None:
        """Says which references stand for nothing: such a server is there by its name, and is not started."""
        return self._missing

    def hold(self, referenced: frozenset[str], missing: str | None = None) -> None:
        """Notes the values that references stand for, and what is missing; for who reads the configuration."""
        self._referenced = referenced
        self._missing = missing

    def inherited(self) -> dict[str, str]:
        """Returns what `inheritEnv` names of this process's environment, as far as it is there."""
        if isinstance(self.inherit_env, bool):
            return dict(os.environ) if self.inherit_env else {}
        return {name: os.environ[name] for name in self.inherit_env if name in os.environ}

    @property
    def is_personal(self) -> bool:
        """Says whether each principal has a session of its own."""
        return self.login != "shared"

    @property
    def own_headers(self) -> dict[str, str]:
        """Returns the headers in which each principal has secrets of its own."""
        return {name: text for name, text in self.headers.items() if OWN_SECRET.search(text)}

    @property
    def asks(self) -> bool:
        """Says whether the user is asked about any tool."""
        return bool(self.ask_tools or self.auto_approve) and not self.disabled

    def refusal(self, tool: str, export: str) -> str | None:
        """Says which key leaves a tool out, by its name and its function's; None when none does."""
        if _named_in(self.disabled_tools, tool, export):
            return "disabledTools"
        if self.enabled_tools is not None and not _named_in(self.enabled_tools, tool, export):
            return "enabledTools"
        return None

    def asks_about(self, tool: str, export: str) -> bool:
        if self.auto_approve and not _named_in(self.auto_approve, tool, export):
            return True
        return _named_in(self.ask_tools, tool, export)

    def idle_names(self, tools: Collection[tuple[str, str]]) -> list[str]:
        """Returns the names in the entry's lists that are of none of these tools, each with its key."""
        lists = {
            "enabledTools": self.enabled_tools or [],
            "disabledTools": self.disabled_tools,
            "askTools": self.ask_tools,
            "autoApprove": self.auto_approve,
        }
        return [
            f"{key} names {name}"
            for key, names in lists.items()
            for name in names
            if name != "*" and not any(_named_in([name], *tool) for tool in tools)
        ]

    def under_rules_of(self, other: ServerConfig) -> ServerConfig:
        """Returns the same server with another entry's lists of tools."""
        fields = ("enabled_tools", "disabled_tools", "ask_tools", "auto_approve")
        return self.model_copy(update={name: getattr(other, name) for name in fields})

    @model_validator(mode="after")
    def _one_transport(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            has = "there is neither" if self.url is None else "there are both"
            raise ValueError(f"exactly one of `command` and `url` is needed, and {has}")
        if self.is_personal and self.url is None:
            raise ValueError("`login` is for servers with a `url`: a program that is started is everybody's")
        if self.own_headers and not self.is_personal:
            raise ValueError('`${secret:NAME}` is each principal\'s own, and needs `"login": "each"`')
        # What is no name there would be sent as it stands.
        rest = [OWN_SECRET.sub("", text) for text in self.headers.values()]
        if any(
            "${secret:" in text
            for text in (self.url, self.command, *self.args, *self.env.values(), *rest)
            if text
        ):
            raise ValueError(
                "`${secret:NAME}` stands in `headers` alone, and NAME has letters, digits, `_`, `-`, `.`"
            )
        return self


SERVER_KEYS: Final = tuple(field.alias or name for name, field in ServerConfig.model_fields.items())
"""Names the keys of a server's entry that Cellblock reads."""


class ServerAuthSettings(Section):
    """Configures OAuth for one upstream server. None of it is needed where the authorization server registers clients
    itself.
    """

    grant: Literal["authorization_code", "client_credentials", "identity_assertion", "token_exchange"] = (
        "authorization_code"
    )
    """Says who logs in: a person in a browser (`cellblock auth login`), or Cellblock itself with the client's
    secret. The last two, with `"login": "each"`, go by who a person is at `http.oauth.issuer`: by its assertion
    (ID-JAG), or by an exchange of its ID token (RFC 8693)."""

    issuer: HttpUrl | None = None
    """Names the authorization server that the client is registered with; its secret goes to no other. Needed with
    one."""

    client_id: str | None = None
    """Names a client that is registered already, or its metadata document by the URL, where the authorization server
    takes such. Absent: dynamic registration."""

    client_secret: Secret | None = None
    """Holds the client's secret: itself, or `{"env": NAME}` or `{"file": PATH}`, which hold it. With `private_key_jwt`
    it is the client's private key (PEM). `client_secret_env` and `client_secret_file` mean the same."""

    client_auth_method: Literal["client_secret_basic", "client_secret_post", "private_key_jwt"] = (
        "client_secret_basic"
    )
    """Says how the secret is shown to the token endpoint; a private key is not, but signs (RFC 7523, section 2.2)."""

    redirect_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Sets the port of the redirect to this machine, where the registered client names one; absent: any free one."""

    scopes: list[Scope] = Field(default_factory=list[Scope])
    """Lists the scopes to ask for beside those that the server asks for."""

    @model_validator(mode="after")
    def _consistent(self) -> ServerAuthSettings:
        given = self.client_secret is not None
        if given and (self.client_id is None or self.issuer is None):
            raise ValueError("a client secret needs `client_id`, and `issuer`: whom it may be shown to")
        if self.grant != "authorization_code" and not given:
            raise ValueError(f"the grant {self.grant} needs `client_id`, `issuer` and a client secret")
        if self.client_auth_method == "private_key_jwt" and self.grant != "client_credentials":
            raise ValueError("private_key_jwt needs the grant client_credentials")
        return self

    @property
    def goes_by_identity(self) -> bool:
        """Says whether it is enough to know who a person is."""
        return self.grant in ("identity_assertion", "token_exchange")

    def secret(self) -> str | None:
        """Returns the client's secret, read where it is kept; None without one.

        Raises:
            ConfigError: The variable is not set, or the file cannot be read.
        """
        return secret_of(self.client_secret)


class AuthSettings(Section):
    """Sets how Cellblock logs in to upstream servers."""

    keyring: Literal["auto", "off"] = "auto"
    """Says where tokens are kept. `auto` uses the system's keyring where there is one, else files of the state
    directory that only their owner can read. `off` uses those files."""

    servers: dict[str, ServerAuthSettings] = Field(default_factory=dict[str, ServerAuthSettings])
    """Holds settings of single servers, by their names in `mcpServers`."""

    def for_server(self, server: str) -> ServerAuthSettings:
        return self.servers.get(server, DEFAULT_SERVER_AUTH)


DEFAULT_SERVER_AUTH: Final = ServerAuthSettings()
