"""Sections holds sections of the configuration: every cap and bound with its unit, default and reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic.config import JsonDict

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.settings.policy import Reuse, of_clients

SecretPlace = Annotated[dict[Literal["env", "file"], str], Field(min_length=1, max_length=1)]

Secret = SecretStr | SecretPlace

MAX_SECRET_CHARS: Final = 16 * 1024
"""Caps what is read of a file with a client secret."""


def secret_of(place: Secret | None) -> str | None:
    """Returns a client's secret, read where it is kept; None without one.

    Raises:
        ConfigError: The variable is not set, or the file cannot be read.
    """
    if place is None:
        return None
    if isinstance(place, SecretStr):
        return place.get_secret_value()
    if (name := place.get("env")) is not None:
        value = os.environ.get(name)
        if not value:
            raise ConfigError(
                f"The environment variable {name} is not set.", hint=f"Set {name} to the client's secret."
            )
        return value
    file = Path(place["file"])
    try:
        with file.expanduser().open(encoding="utf-8") as opened:
            return opened.read(MAX_SECRET_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The client secret cannot be read: {type(error).__name__} at {file}.",
            hint="Correct client_secret in the configuration.",
        ) from None


MIB = 1024 * 1024

Positive = Annotated[int, Field(ge=1)]

T = TypeVar("T")

ALL: Final = "*"
"""Stands, in a map of values by name, for all servers or clients that it does not name."""

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+[^\s]*$", examples=["https://host/path"])]


class Section(BaseModel):
    """A section of the configuration has known keys, and its values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def by_name(default: object) -> Callable[[Any], Any]:
    """Returns what reads a value for all, or a map of values by name; those that it does not name have the default."""
    return lambda given: {ALL: default, **given} if is_object(given) else {ALL: given}


def value_for(name: str, values: Mapping[str, T]) -> T:
    """Returns the value of one server or client in a map of values by name."""
    return values.get(name, values[ALL])


class LimitRange(NamedTuple):
    """A per-run limit has what a run gets when it asks for nothing, and the most that it may ask for."""

    default: Annotated[int, Field(ge=0)]
    maximum: Annotated[int, Field(ge=0)]


def _ordered(limit: LimitRange) -> LimitRange:
    if limit.default > limit.maximum:
        raise ValueError(f"default {limit.default} is over maximum {limit.maximum}")
    return limit


Limit = Annotated[LimitRange, AfterValidator(_ordered)]


def _with_short_forms(schema: JsonDict) -> None:
    """Tells editors that `LimitSettings` reads numbers."""
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for one in properties.values():
        assert isinstance(one, dict)
        one["anyOf"] = [{"type": "integer", "minimum": 0}, {"$ref": one.pop("$ref")}]


class LimitSettings(Section):
    """Sets the per-run limits (Code Mode specification, section 3.2.4), each as `[DEFAULT, MAXIMUM]`: what a run gets
    that asks for none, and the most that it may ask for. A number alone is the default, and raises the maximum where it
    must."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_with_short_forms)

    timeout_ms: Limit = LimitRange(55_000, 600_000)
    """Bounds the wall time in milliseconds, from the moment a worker has the script, or, where a run has the default,
    from the moment it is queued: many clients give up after a minute."""

    max_cpu_ms: Limit = LimitRange(30_000, 600_000)
    """Caps the CPU time of all the worker's threads in milliseconds; waiting for tools costs none."""

    max_memory_bytes: Limit = LimitRange(256 * MIB, 256 * MIB)
    """Caps the memory over an idle worker's, in bytes. The maximum also sizes V8's heap, so raising it makes V8
    collect garbage later in every run."""

    max_log_bytes: Limit = LimitRange(64 * 1024, 4 * MIB)
    """Caps the console output in UTF-8 bytes: it ends up in a model's context."""

    max_tool_calls: Limit = LimitRange(200, 10_000)
    """Caps the tool calls of one run."""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, data: Any) -> Any:
        if not is_object(data):
            return data
        whole = dict(data)
        for name, given in data.items():
            field = cls.model_fields.get(name)
            said = {"default": given} if isinstance(given, int) and not isinstance(given, bool) else given
            if field is None or not is_object(said) or not said.keys() < {"default", "maximum"}:
                continue
            standard: LimitRange = field.default
            number = next(iter(said.values()), None)
            if isinstance(number, int):
                highest, least = max(standard.maximum, number), min(standard.default, number)
                whole[name] = {"default": least, "maximum": highest} | said
        return whole


class PoolSettings(Section):
    """Sets up workers on this machine and the queue in front of them."""

    warm: Annotated[int, Field(ge=0, le=1024)] = Field(default_factory=lambda: min(4, os.cpu_count() or 1))
    """Sets how many workers are kept booted and waiting; each costs about 9 MiB. Absent: one for each core, at most
    four, and a single one until the first run. After a burst as many more are kept for five minutes as it took, up to
    twice this number."""

    capacity: Annotated[int, Field(ge=1, le=1024)] = 16
    """Caps the runs at the same time; more wait in the queue. One place in sixteen is kept for clients without a
    running run."""

    queue_size: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Caps the runs that may wait; one more is refused at once. One client may have half of them."""

    queue_wait_ms: Positive = 30_000
    """Bounds the wait for a place, in milliseconds; then the run is refused."""

    reuse: Annotated[
        dict[str, Reuse],
        BeforeValidator(by_name("never"), json_schema_input_type=Reuse | dict[str, Reuse]),
        AfterValidator(of_clients),
    ] = Field(default={ALL: "never"})
    """Says whether one principal's runs may use one process, one after the other, each in a V8 context of its own. A
    context separates honest runs; it is not a security boundary. An object has a value for each client, by its name in
    `policy.clients`; `*` stands for all others."""

    total_memory_bytes: Annotated[int, Field(ge=256 * MIB)] | None = None
    """Caps the memory of all workers and their host together, in bytes. A cgroup keeps it where the machine offers
    one. Absent: capacity × the maximum of `limits.max_memory_bytes`, plus 64 MiB for each worker, plus 256 MiB."""


PassedOn = Literal["elicitation", "sampling", "roots"]


class ServerBounds(NamedTuple):
    """Holds what one server may take, in milliseconds, and the calls that it may have at the same time."""

    connect_timeout_ms: int
    call_timeout_ms: int
    max_calls: int | None
    passed_on: Sequence[PassedOn]


Bound = Annotated[
    dict[str, Positive],
    BeforeValidator(by_name(30_000), json_schema_input_type=Positive | dict[str, Positive]),
]


class UpstreamSettings(Section):
    """Bounds what upstream servers may take, in milliseconds. In the place of a number, an object has one for each
    server, by its name in `mcpServers`; `*` stands for all others."""

    connect_timeout_ms: Bound = {ALL: 30_000}
    """Bounds the time from starting a server to the end of its tool list; what `npx` or `uvx` installs first does not
    count."""

    call_timeout_ms: Bound = {ALL: 30_000}
    """Bounds one tool call, in milliseconds, of an upstream server or of a Python tool. Without it, the SDK's client
    would wait forever for an answer that cannot be parsed."""

    max_calls: dict[str, Positive] = {}
    """Caps the calls that are with single servers at the same time, of all runs, by the servers' names. More wait their
    turn within the call's time. Absent: only each run's own bound holds."""

    list_wait_ms: Annotated[int, Field(ge=0)] = 500
    """Bounds how long `tools/list` waits for servers that are still connecting."""

    passed_on: list[PassedOn] = ["elicitation", "sampling", "roots"]
    """Names what servers may ask of the client whose call they serve. Servers are told that the others are not
    available."""

    def for_server(self, server: str) -> ServerBounds:
        return ServerBounds(
            value_for(server, self.connect_timeout_ms),
            value_for(server, self.call_timeout_ms),
            self.max_calls.get(server, self.max_calls.get(ALL)),
            self.passed_on,
        )


Reaction = Literal["auto", "off", "warn", "quarantine"]
"""Reacts to a tool that is not as pinned: by where its server comes from; not, without pins; usable with a warning;
left out until it is approved."""


Pins = Annotated[
    dict[str, Reaction],
    BeforeValidator(by_name("auto"), json_schema_input_type=Reaction | dict[str, Reaction]),
]


Profile = Literal["default", "strict", "extended", "proxy"]
ToolName = Literal["codemode.run", "codemode_run", "auto"]
IsError = Literal["never", "diagnostics"]


class FrontendSettings(Section):
    """Sets what clients are shown."""

    profile: Profile = "default"
    """Chooses the tools that clients see. `default` is the one tool `codemode.run`. `strict` is that without everything
    that the Code Mode specification does not have: results that a script exports or returns instead of assigning them,
    any other name of the tool, and content blocks for images and sounds in a result. `extended` adds `search_tools`,
    `inspect_tool` and `list_servers`, which show the current knowledge; a client reads its list of tools only once.
    `proxy` runs no scripts. It passes on the servers' own tools as `mcp__SERVER__TOOL`, and resources and prompts of
    servers that the client is given whole. It does not conform to section 2.1 of the Code Mode specification."""

    tool_name: ToolName = "auto"
    """Sets the tool's name in lists: `codemode.run`, as in the Code Mode specification, or `codemode_run`. `auto`
    shows the name without a dot to clients that are known not to accept one, by the name in their `initialize`
    (docs/clients.md). Clients can always call both names."""

    is_error: IsError = "never"
    """Says when the outer tool's result is marked as an error: `never`, as the specification requires; or
    `diagnostics`, when the run failed, for clients that show their model only that mark. A malformed request is
    marked in any case."""

    declaration_chars: Annotated[int, Field(ge=0)] = 16_000
    """Caps the characters of TypeScript declarations in the tool's description: about 4,000 tokens of a model's
    context. Servers that the client has used come first; the others share the rest. Functions that do not fit appear
    by name; 0 shows names only."""

    inline_bytes: Annotated[int, Field(ge=1024)] | None = None
    """Caps what a run's result and logs may take in its response together, in bytes of JSON. The response has a
    preview of what is larger, and an MCP resource has the whole for 30 minutes. Absent: structured content that models
    are not shown is whole, whatever its size."""

    @property
    def strict(self) -> bool:
        """Says whether clients get nothing that the specification does not have."""
        return self.profile == "strict"

    @property
    def outputs(self) -> OutputSettings:
        """Returns what becomes of large results and logs."""
        return OutputSettings(self.inline_bytes, EXPIRE_MS, TOTAL_BYTES)


IsolationMode = Literal["required", "auto", "off"]

PREVIEW_BYTES: Final = 2_000
"""Caps the preview of an output, beside the rest of the response: about 500 tokens."""

ANSWER_BYTES: Final = 50_000
"""Caps result and logs in what a model is shown: with all else in it less than the 25,000 tokens at which clients
cut."""


EXPIRE_MS: Final = 30 * 60_000
"""Bounds how long an output is kept."""

TOTAL_BYTES: Final = 256 * MIB
"""Caps the disk space of all clients' outputs together, over all processes that serve with one state directory. The
oldest outputs are removed first. One client may have a quarter."""


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Says how a front-end treats large results and logs."""

    inline_bytes: int | None = None
    expire_ms: int = EXPIRE_MS
    total_bytes: int = TOTAL_BYTES

    @property
    def shown_bytes(self) -> int:
        """Returns the size of one preview."""
        if self.inline_bytes is None:
            return ANSWER_BYTES // 4
        return min(PREVIEW_BYTES, self.inline_bytes // 2)

    @property
    def client_bytes(self) -> int:
        """Returns what the outputs of one client, as `cellblock.policy` knows clients, may take on disk."""
        return self.total_bytes // 4


Unwrap = Literal["spec", "json", "bigint"]


Learn = bool | Literal["shared", "samples"]

OF_PERSON: Final = "\x1f"
"""Separates a server's name from whose session it is, where what it answers is one person's."""


class SchemaSettings(Section):
    """Sets what Cellblock learns of tool results, and how scripts get them. In the place of a value of `learn` or
    `unwrap`, an object has one for each server, by its name in `mcpServers` (`local` for Python tools); `*` stands for
    all others."""

    learn: Annotated[
        dict[str, Learn], BeforeValidator(by_name(True), json_schema_input_type=Learn | dict[str, Learn])
    ] = Field(default={ALL: True})
    """Says whether the shapes of results are observed and kept in the state directory. With `samples` the newest small
    result of each tool is kept, too, and shown as an example; otherwise no values. Where there are several principals,
    each is shown names of fields that it or two have got; with `shared`, all names."""

    unwrap: Annotated[
        dict[str, Unwrap], BeforeValidator(by_name("spec"), json_schema_input_type=Unwrap | dict[str, Unwrap])
    ] = Field(default={ALL: "spec"})
    """Says how scripts get a result that is a single text block. `spec` gives it as it is (Code Mode specification,
    section 5.3.2). `json` parses it if it is a JSON object or array, and gives the value. `bigint` does so, too, and
    gives integers beyond 2^53 as `BigInt`, with all their digits."""

    unbox: bool = False
    """Gives scripts the scalar or list that a server's SDK has wrapped as `{"result": …}` for structured content."""

    overlays: Path | None = None
    """Names the folder of the overlay files. Absent: `overlays` in the state directory."""

    def learns(self, server: str) -> bool:
        """Says whether the shapes of a server's results are observed."""
        return value_for(server.partition(OF_PERSON)[0], self.learn) is not False

    def keeps_samples(self, server: str) -> bool:
        """Says whether the newest small result of each of a server's tools is kept."""
        return value_for(server.partition(OF_PERSON)[0], self.learn) == "samples"

    def shares(self, server: str) -> bool:
        """Says whether everybody is shown what one principal's results have shown."""
        return value_for(server, self.learn) == "shared"

    def unwraps(self, server: str) -> bool:
        """Says whether scripts get the values of a server's texts that are JSON."""
        return value_for(server, self.unwrap) != "spec"

    def is_exact(self, server: str) -> bool:
        """Says whether scripts get integers that numbers cannot have as bigints."""
        return value_for(server, self.unwrap) == "bigint"


class OAuthSettings(Section):
    """Serves teams with tokens of an authorization server, in place of the token in the token file."""

    issuer: HttpUrl
    """Names the issuer of accepted tokens: their claim `iss`, character by character."""

    audience: HttpUrl
    """Names the audience of accepted tokens: their claim `aud`. It is the URL at which clients reach this front-end
    (RFC 8707)."""

    jwks_url: HttpUrl
    """Names the URL at which the issuer publishes its public keys."""

    scopes: list[str] = Field(default_factory=list[str])
    """Lists the scopes that a token must have, all of them."""

    client_id: str | None = None
    """Names Cellblock's own registration at the issuer: with it, people say there who they are, and log in to servers
    with `"login": "each"` at `/login/SERVER`. Its redirect is `/login/callback` at the origin of `audience`."""

    client_secret: Secret | None = None
    """Holds that client's secret, if it has one: itself, or `{"env": NAME}` or `{"file": PATH}`."""


class HttpSettings(Section):
    """Bounds the resources that clients of `cellblock serve --http` may use."""

    max_sessions: Positive = 128
    """Caps the MCP sessions at the same time. With several principals (`oauth`, named tokens) one may have half of
    them. A further session gets 503. An editor holds one. There may be two connections for each session, at least
    256, and all requests together may take 1 MiB of memory for each, at least 128 MiB."""

    drain_ms: Annotated[int, Field(ge=0)] = 30_000
    """Bounds how long the runs in flight may continue after SIGTERM, in milliseconds; then they are killed."""

    allowed_hosts: list[
        Annotated[str, Field(pattern=r"^(?:https?://)?[^\s/@]+$", examples=["name:port", "https://name"])]
    ] = Field(default_factory=list[str])
    """Lists the `Host` headers (`name` or `name:port`) that are accepted in addition to the address of the daemon:
    the names by which clients or a proxy know this machine; and, with `http://` or `https://`, such `Origin` headers.
    No answer carries CORS headers, so pages of other origins still cannot read any."""

    oauth: OAuthSettings | None = None
    """Has only tokens of this authorization server accepted when given, and the token file not used."""

    @property
    def hosts(self) -> list[str]:
        """Returns the accepted `Host` headers."""
        return [one for one in self.allowed_hosts if "//" not in one]

    @property
    def origins(self) -> list[str]:
        """Returns the accepted `Origin` headers."""
        return [one for one in self.allowed_hosts if "//" in one]


LogLevel = Literal["debug", "info", "warning", "error"]


class LogSettings(Section):
    """Sets the daemon's own log, on stderr or in a file. Secrets of the configuration are redacted."""

    format: Literal["text", "json"] = "text"
    """Sets the form of a line: `text` for people, `json` for a collector, one object a line."""

    level: LogLevel = "error"
    """Names the lowest level that is logged. `info` has one line for each run. The environment variable CELLBLOCK_LOG
    overrides it."""

    file: Path | None = None
    """Names the file that gets the log instead of stderr. Its mode is 0600."""


Audit = Literal["off"] | list[Literal["calls", "inputs", "outputs"]]

Metrics = Literal["token", "open"]

Dashboard = Literal["off", "runs", "logs", "scripts"]
