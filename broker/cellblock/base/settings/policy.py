"""Settings of the policy say what the scripts of one client may call, and what the user is asked about first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

MAX_PATTERN_CHARS: Final = 600
"""Bounds `server.tool` of the longest names there can be."""

EXACTLY: Final = "="
"""Begins a pattern that is one tool by its server and its own name, in which `*` is a star."""

MAX_PATTERNS: Final = 500
"""Caps one list of patterns; a request may bring lists of its own."""

DEFAULT: Final = "default"
"""Names, among quotas, those of each client without its own."""

PROVEN: Final = "oauth:"
NAMED: Final = "token:"
CLAIMED: Final = "stdio:"
THE_USER: Final = frozenset({"cli", "embedding", "token"})
"""Names principals that are the user of this machine, as those that begin with `CLAIMED` are."""

PLAIN_NAMES: Final = ("cli", "embedding", "token", "anybody")
"""Matches clients by name: the command line, `Broker.run`, who shows the token of the token file, and with `--no-auth`
everybody. `token:NAME` is who shows a named token, `oauth:SUBJECT` the subject of a token, `stdio:NAME` what a client
at our own pipes calls itself."""

KINDS: Final = (*PLAIN_NAMES, PROVEN[:-1], CLAIMED[:-1])
"""Names kinds of clients that Cellblock knows by itself: no embedder can call a client of its own so."""


_AUDIENCE: Final = re.compile(r"[a-z][a-z0-9_-]*:[^\s,]+")


def person_of(principal: str) -> str:
    """Returns whose logins, and whose knowledge, a principal has: itself, or nothing for the user of this machine."""
    is_user = not principal or principal in THE_USER or principal.startswith(CLAIMED)
    return "" if is_user else principal


def is_of_embedder(name: str) -> bool:
    """Says whether a name is one that a program gives its own clients: `KIND:NAME`, of a kind of the program's."""
    kind, colon, own = name.partition(":")
    return bool(kind and colon and own) and kind not in KINDS


def check_clients(names: Iterable[str]) -> None:
    """Raises ValueError for a name that can be no client's: what is said of it would hold for nobody."""
    from cellblock.base.settings.problems import nearest

    for name in names:
        named = any(name.startswith(kind) and len(name) > len(kind) for kind in (PROVEN, NAMED, CLAIMED))
        # A misspelt kind must not pass for an embedder's own: its restriction would hold for nobody.
        own = is_of_embedder(name) and nearest(name.partition(":")[0], KINDS) is None
        if name not in PLAIN_NAMES and not named and not own:
            raise ValueError(
                f"{name!r} is no client: write {', '.join(PLAIN_NAMES)}, {NAMED}NAME, {PROVEN}SUBJECT, "
                f"{CLAIMED}NAME, or KIND:NAME for the clients of a program that embeds Cellblock"
            )


def of_clients(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a map of values by client, or by `*`, as it is. Raises ValueError as `check_clients`."""
    check_clients(values.keys() - {"*"})
    return values


def check_pattern(pattern: str) -> str:
    """Returns a valid pattern as it is. Raises ValueError with what is wrong and what is meant."""
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise ValueError(f"a pattern has 1 to {MAX_PATTERN_CHARS} characters")
    server, dot, tool = pattern.partition(".")
    if pattern != "*" and not (server and dot and tool):
        raise ValueError(f"{pattern[:100]!r} is no pattern: write server.tool, server.* or *")
    return pattern


Pattern = Annotated[StrictStr, AfterValidator(check_pattern)]
"""Names tools as `server.tool`; `*` stands for any characters within either part. The server is the id that scripts
import, the tool its name at the server or its function's name. `=server.tool` is the tool of this very name alone."""

Patterns = Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)]


class Grant(BaseModel):
    """A grant says what scripts may call. A request's own grant has the same fields, in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    tools: Patterns | None = None
    """Lists the tools that scripts can see; absent: every one."""

    read_only: StrictBool = False
    """Leaves only tools that are known to change nothing. The user's own statement about a tool counts first, else
    the server's annotation. A tool without either is left out."""

    budgets: Annotated[
        dict[Pattern, Annotated[StrictInt, Field(ge=0, le=1_000_000)]], Field(max_length=MAX_PATTERNS)
    ] = {}
    """Caps the calls in one run, of all tools together that a pattern fits."""

    arguments: Annotated[dict[Pattern, dict[str, Any] | StrictBool], Field(max_length=MAX_PATTERNS)] = {}
    """Holds the JSON Schemas that inputs must fit, in addition to the tool's own."""

    approve: Patterns = []
    """Lists the tools that the user is asked about before each call."""

    destructive: Literal["allow", "approve", "deny"] = "allow"
    """Says what happens to tools that destroy something, by the server's statement or the user's: `allow` treats them
    as others, `approve` asks the user, `deny` leaves them out."""


class Quota(BaseModel):
    """Caps the calls of one client in a period of time, of all its runs at all brokers that share a state."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: Annotated[StrictInt, Field(ge=0, le=1_000_000_000)]
    """Sets the number of calls, of all tools together that the pattern fits."""

    per_ms: Annotated[StrictInt, Field(ge=1_000, le=31 * 86_400_000)]
    """Sets the length of the period, in milliseconds. Periods follow each other from 1970 on: a day begins at
    midnight UTC."""

    strict: StrictBool = False
    """Asks the database before each call, which takes a few milliseconds, and denies the call while the database
    cannot be reached. Otherwise brokers tell each other once a second, and continue with what they know while it
    cannot be reached. All together may then exceed the quota by the calls of that time."""


Reuse = Literal["never", "principal"]
"""Says whether each run has a process of its own, or one principal's runs have one after the other."""


def _check_audience(name: str) -> str:
    if not 3 <= len(name) <= MAX_PATTERN_CHARS or not _AUDIENCE.fullmatch(name):
        raise ValueError(f"{name[:100]!r} names nobody: write KIND:NAME, such as repo:acme, in a list")
    return name


Secrecy = (
    Literal["public", "private"]
    | Annotated[
        list[Annotated[StrictStr, AfterValidator(_check_audience)]], Field(min_length=1, max_length=50)
    ]
)
"""Says who may know something: everybody, the person alone, or named groups, such as `["repo:acme"]`."""

Trust = Literal["trusted", "untrusted"]
"""Says whether something may have been written by strangers."""

TRUSTS: Final = frozenset(get_args(Trust))

FlowWord = Literal["public", "private"] | Trust | Annotated[StrictStr, AfterValidator(_check_audience)]
"""Is one word of a label in a rule."""


def _listed(words: Any) -> Any:
    return [words] if isinstance(words, str) else words


class FlowLabel(BaseModel):
    """Says of a tool what its results are, and what a call of it tells to whom."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secrecy: Secrecy | None = None
    """Says who may know what its results say; without it, the person alone."""

    trust: Trust | None = None
    """Says whether its results are written by strangers; without it, they are."""

    sink: Secrecy | None = None
    """Says who sees what a call's arguments say: `private` the person alone; without it, everybody."""

    destructive: StrictBool | None = None
    """Says whether a call destroys something; without it, an overlay, the server and the tool's name say it."""


class FlowRule(BaseModel):
    """Says what happens to calls that would carry some data somewhere. The first rule that fits counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    source: Annotated[
        list[FlowWord],
        BeforeValidator(_listed, json_schema_input_type=FlowWord | list[FlowWord]),
        Field(alias="from", max_length=50),
    ] = []
    """Says which data it is for, by words of labels (`private`, `untrusted`, `repo:acme`): `allow` for what is at most
    so secret and no less trusted, `ask` and `deny` for what is at least so secret and no more trusted."""

    to: Pattern | Secrecy | None = None
    """Names tools, or who sees it. `allow` is for calls that no others see, `ask` and `deny` for calls that all of
    those see."""

    arguments: dict[str, Annotated[list[Any], Field(min_length=1)] | dict[str, Any]] | None = None
    """Lists the values that arguments must have, or a JSON Schema for each. With it, `allow` is for no call that has
    another argument which names a receiver."""

    then: Literal["allow", "ask", "deny"]
    """Says what happens: the call is made, the user is asked first, or it is denied."""

    @field_validator("source")
    @classmethod
    def _one_of_a_kind(cls, source: list[FlowWord]) -> list[FlowWord]:
        secrecy = [word for word in source if word not in TRUSTS]
        if len(source) - len(secrecy) > 1 or (len(secrecy) > 1 and {"public", "private"} & {*secrecy}):
            raise ValueError(
                "name one of `trusted` and `untrusted`, and one of `public`, `private` and groups"
            )
        return source

    @property
    def secrecy(self) -> Secrecy | None:
        """Gives who may know the data, by `from`; None where it does not say."""
        words = [word for word in self.source if word not in TRUSTS]
        if words in (["public"], ["private"]):
            return cast("Secrecy", words[0])
        return words or None

    @property
    def trust(self) -> Trust | None:
        """Gives who has written the data, by `from`; None where it does not say."""
        return cast("Trust | None", next((word for word in self.source if word in TRUSTS), None))

    @property
    def pattern(self) -> str | None:
        """Gives the pattern of tools in `to`; None where it says who sees it, or nothing."""
        return self.to if isinstance(self.to, str) and self.to not in ("public", "private") else None


class PolicySettings(BaseModel):
    """Sets grants by client. Without any, every client may call every tool."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    default: Grant = Grant()
    """Applies to clients without an entry of their own."""

    clients: dict[str, Grant] = {}
    """Holds grants for single clients, in place of the default. Names are `cli`, `embedding`, `token`, `anybody`,
    `token:NAME`, `oauth:SUBJECT`, `stdio:NAME`, or what a program calls its own clients, such as `team:readers`."""

    quotas: dict[str, Annotated[dict[Pattern, Quota], Field(max_length=MAX_PATTERNS)]] = {}
    """Holds, by the same names, the calls that a client may make in a period. `default` applies to each client
    without an entry of its own. Calls are counted in the PostgreSQL of `state.url`, or in a file of the state
    directory."""

    flows: (
        Literal["off", "guard"] | Annotated[list[FlowRule | Literal["guard"]], Field(max_length=MAX_PATTERNS)]
    ) = "off"
    """Says where data may go (docs/howto-flows.md). `guard` asks before private data goes to others, and before a call
    destroys something after untrusted input. Rules say more: a list of them, in which `"guard"` stands for its own,
    which count where no other fits."""

    labels: Annotated[dict[Pattern, FlowLabel], Field(max_length=MAX_PATTERNS)] = {}
    """Says, by patterns of tools, what results are and who sees calls. Of two patterns the longer one counts."""

    trust_ifc: Annotated[list[StrictStr], Field(alias="trustIfc", max_length=MAX_PATTERNS)] = []
    """Lists servers whose own labels (`_meta.ifc`) count where `labels` says nothing; those of others only tighten."""

    secrets: Literal["off", "mask", "deny"] = "off"
    """Says what becomes of secrets of the configuration in calls of servers that they are not for, and in results:
    `mask` replaces them, `deny` refuses such a call, and masks results."""

    @property
    def flow_rules(self) -> Mapping[int, FlowRule]:
        """Gives the rules for flows by their places in the list."""
        rules = [] if isinstance(self.flows, str) else self.flows
        return {place: rule for place, rule in enumerate(rules) if isinstance(rule, FlowRule)}

    @field_validator("clients", "quotas")
    @classmethod
    def _known_kinds(cls, clients: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        check_clients(name for name in clients if (info.field_name, name) != ("quotas", DEFAULT))
        return clients
