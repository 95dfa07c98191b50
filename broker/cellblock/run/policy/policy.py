"""Policy is the policy of one broker: which grants a run has, by whom it is for and what it asks for itself."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cellblock.base.errors import ConfigError, InvalidRequest
from cellblock.base.kept import KeptByIdentity, Newest
from cellblock.base.settings.policy import DEFAULT, EXACTLY, Grant, PolicySettings, is_of_embedder
from cellblock.base.settings.problems import SECTION_KEY, dotted
from cellblock.base.settings.server import ServerConfig
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.run.flows.rules import FlowRules, OnAlways, validator_of
from cellblock.run.flows.secrets import Secrets
from cellblock.run.policy.asking import EMBEDDING
from cellblock.run.policy.counts import Counts, Quotas
from cellblock.run.policy.grants import Grants, Layer, fits
from cellblock.run.policy.named_tokens import NOTHING, NamedTokens
from cellblock.tools.catalog.model import Catalog

logger = logging.getLogger("cellblock.policy")

MAX_ASKED_CHARS: Final = 128 * 1024
"""Bounds a request's own grants: its schemas are compiled while other runs wait."""

MAX_ASKED_SCHEMAS: Final = 20
"""Bounds the schemas under `arguments` of a request's own grants: each call of a tool is checked against all that fit
it."""

KEPT_CATALOGS: Final = 64
"""Bounds the catalogs, those narrowed by grants too, whose idle patterns are kept."""

KEPT_TOKENS: Final = 4_096
"""Bounds the grants of named tokens that are kept ready to be asked."""

KEPT_GRANTS: Final = 64
"""Bounds the grants of requests whose narrowed catalogs are kept; scripts of one agent bring the same few."""

_NO_WISH: Final = Grant()
"""Holds the grants of a request that narrows nothing. Made once: that takes longer than all else that a run without
grants asks here."""


class Policy:
    """Says for every client what its runs may call.

    Args:
        settings: The `policy` section.
        server_ids: Every server of the configuration, for patterns that name one that is not there; None: not known.
        tokens: The named tokens, which have grants of their own; None: there are none.
        asks: Whether the servers' own entries want the user asked about tools.
        counts: Counts what clients use; None: nobody has a quota.
        servers: The configuration's servers, by name; what flows know of them.
        on_always: As for `FlowRules`.
        secrets: As below.

    Attributes:
        flows: Says where data may go; None: anywhere.
        secrets: Keeps the secrets of servers with them; None: they may go anywhere.

    Raises:
        ConfigError: A pattern names no server, or a JSON Schema cannot be checked against.
    """

    def __init__(
        self,
        settings: PolicySettings,
        server_ids: Iterable[str] | None = None,
        tokens: NamedTokens | None = None,
        *,
        asks: bool = False,
        counts: Counts | None = None,
        servers: Mapping[str, ServerConfig] | None = None,
        on_always: OnAlways | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.settings = settings
        self._counts = counts
        self._asks = asks
        self._server_ids = None if server_ids is None else list(server_ids)
        self._tokens = tokens
        self._of_tokens = KeptByIdentity[Grant, Layer | None](self._made_for_token, KEPT_TOKENS)
        if self._server_ids is not None:
            for fault in unknown_servers(settings, self._server_ids):
                raise ConfigError(f"cellblock.policy.{fault.grant}: {fault.message}.", hint=fault.hint)
        self.secrets = secrets
        self.flows = None if settings.flows == "off" else FlowRules(settings, servers or {}, on_always)
        self._default = _layer("default", settings.default)
        self._clients = {name: _layer(f"clients.{name}", grant) for name, grant in settings.clients.items()}
        self._grants = Newest[tuple[int, int, str], Grants](KEPT_GRANTS)
        # Each run asks, and a catalog stays until a server changes.
        self._idle = KeptByIdentity[Catalog, tuple[Fault, ...]](
            lambda catalog: tuple(idle_patterns(settings, catalog)), KEPT_CATALOGS
        )

    def principal_of(self, client: str) -> str:
        """Returns the principal of a client of a program that embeds the broker: its own where it has a grant under
        its name, else `embedding`."""
        return client if client in self._clients and is_of_embedder(client) else EMBEDDING.principal

    def grants_of(self, principal: str, asked: Grant | None = None) -> Grants | None:
        """Returns the grants of a run; None when nothing is restricted, and nobody is asked.

        Args:
            principal: Whom the run is for: a name of `PolicySettings.clients`.
            asked: The request's own.

        Raises:
            InvalidRequest: The request's own is too large or too deep, or has too many JSON Schemas, or one that cannot
                be checked.
        """
        own = self._clients.get(principal, self._default)
        issued = self._layer_of_token(principal)
        if asked is not None and asked == _NO_WISH:
            asked = None
        if own is None and issued is None and asked is None and not self._asks:
            return None
        if asked is not None and len(asked.arguments) > MAX_ASKED_SCHEMAS:
            raise InvalidRequest(
                f"`grants.arguments` has {len(asked.arguments)} schemas, over {MAX_ASKED_SCHEMAS}.",
                hint="Give one schema to several tools with a pattern, or narrow `grants.tools` instead.",
            )
        text = _as_text(asked)
        if len(text) > MAX_ASKED_CHARS:
            raise InvalidRequest(
                f"`grants` has {len(text)} characters as JSON, over {MAX_ASKED_CHARS}.",
                hint="Name fewer tools, or give shorter schemas.",
            )
        key = (id(own), id(issued), text)
        grants = self._grants.get(key)
        if grants is not None:
            self._grants.move_to_end(key)
            return grants
        layers = [layer for layer in (own, issued) if layer is not None]
        if asked is not None:
            layers.append(Layer(asked, of_request=True))
        grants = self._grants[key] = Grants(tuple(layers), asks=self._asks)
        return grants

    def quotas_of(self, principal: str) -> Quotas | None:
        """Returns what a client may call in a period; None where that is not bounded."""
        of = self.settings.quotas
        found = of.get(principal, of.get(DEFAULT))
        return Quotas(principal, found, self._counts) if found and self._counts is not None else None

    def slips(self, principal: str, catalog: Catalog, servers: Collection[str]) -> str:
        """Says which tools of these servers the policy for a client names that they do not have: it guards nothing."""
        client = f"clients.{principal}" if principal in self.settings.clients else "default"
        whose = {
            client,
            f"quotas.{principal if principal in self.settings.quotas else DEFAULT}",
            "labels",
            "flows",
        }
        found = self._idle.get_or_make(catalog)
        return "; ".join(one.sentence for one in found if one.slip_at in servers and one.grant in whose)

    def _layer_of_token(self, principal: str) -> Layer | None:
        """Returns the grant that a named token has brought, which can only take away from the policy's."""
        grant = self._tokens.grant_of(principal) if self._tokens is not None else None
        return None if grant is None else self._of_tokens.get_or_make(grant, principal)

    def _made_for_token(self, grant: Grant, principal: str) -> Layer | None:
        return _layer(principal, grant if self._fits(principal, grant) else NOTHING)

    def _fits(self, principal: str, grant: Grant) -> bool:
        """Says whether a token's grant still means what it meant: it was made with another state of the configuration,
        and what it forbids at a server that has another name now would be forbidden nowhere."""
        try:
            check_grant(grant, self._server_ids or [])
        except ConfigError as error:
            logger.warning("%s is granted nothing: %s", principal, error)
            return False
        return True


def check_grant(grant: Grant, server_ids: Sequence[str]) -> None:
    """Looks whether a token's grant can be used. Raises ConfigError: A pattern names no server, or a JSON Schema cannot
    be checked against.
    """
    for fault in faults(PolicySettings(default=grant), server_ids):
        raise ConfigError(f"The token's grants cannot be used: {fault.message}.", hint=fault.hint)


def _as_text(asked: Grant | None) -> str:
    if asked is None:
        return ""
    try:
        return asked.model_dump_json()
    except ValueError:
        raise InvalidRequest(
            "`grants` cannot be written as JSON: it is nested too deep, or a text in it is no Unicode.",
            hint="Give simpler schemas, and texts without lone surrogates.",
        ) from None


def _layer(place: str, grant: Grant) -> Layer | None:
    try:
        return Layer(grant, of_request=False) if grant != Grant() else None
    except InvalidRequest as error:
        raise ConfigError(f"cellblock.policy.{place}: {error.message}", hint=error.hint) from None


class Fault(NamedTuple):
    """Describes one fault in the policy of a configuration. `grant` is `default` or `clients.NAME`, `path` the keys
    below `cellblock.policy`."""

    grant: str
    path: tuple[str | int, ...]
    message: str
    """Says what is wrong, without a full stop."""
    hint: str
    at_key: bool = False
    slip_at: str = ""
    """Names the connected server that lacks the one tool that is named here."""

    @property
    def sentence(self) -> str:
        return f"{dotted((SECTION_KEY, 'policy', *self.path))}: {self.message}. {self.hint}"


def faults(settings: PolicySettings, server_ids: Sequence[str]) -> Iterator[Fault]:
    """Yields everything that `Policy` refuses; `server_ids` has every server of the configuration, as scripts import
    it."""
    yield from unknown_servers(settings, server_ids)
    for place, path, grant in _grants(settings):
        for pattern, schema in grant.arguments.items():
            try:
                Layer(Grant(arguments={pattern: schema}), of_request=False)
            except InvalidRequest as error:
                where = (*path, "arguments", pattern)
                yield Fault(place, where, error.message.removesuffix("."), error.hint)
    for index, rule in settings.flow_rules.items():
        try:
            validator_of(rule, index + 1)
        except ConfigError as error:
            said = error.message.removesuffix(".").partition(": ")[2]
            yield Fault("flows", ("flows", index, "arguments"), said, error.hint)


def idle_patterns(settings: PolicySettings, catalog: Catalog) -> Iterator[Fault]:
    """Yields patterns that fit no tool of a connected server: they withhold, ask and label nothing."""
    for place, path, where, pattern, at_key in _all_patterns(settings):
        server_id, _, wanted = pattern.removeprefix(EXACTLY).partition(".")
        server = catalog.servers.get(server_id)
        if server is None or not server.tools or not wanted or "/" in wanted:
            continue
        if server.withheld_as(wanted) is None and not any(
            fits(pattern, server_id, tool) for tool in server.callable
        ):
            near = nearest_names(wanted, [tool.tool_name for tool in server.callable], 1)
            hint = did_you_mean(near, "Take it out, or correct it.")
            # A pattern with a star may be meant for tools to come.
            slip_at = "" if "*" in wanted and not pattern.startswith(EXACTLY) else server_id
            yield Fault(place, (*path, *where), f"{server_id} has no tool {wanted!r}", hint, at_key, slip_at)


def unknown_servers(settings: PolicySettings, server_ids: Sequence[str]) -> Iterator[Fault]:
    """Yields patterns that name no server. Arguments as for `faults`."""
    for place, path, where, pattern, at_key in _all_patterns(settings):
        server = pattern.partition(".")[0].removeprefix(EXACTLY)
        if "*" in server or server in server_ids:
            continue
        known = f"Servers, as scripts import them: {', '.join(server_ids)}."
        hint = did_you_mean(nearest_names(server, server_ids, 1), known)
        message = f"{pattern!r} names no server of the configuration"
        yield Fault(place, (*path, *where), message, hint, at_key)


def _all_patterns(
    settings: PolicySettings,
) -> Iterator[tuple[str, tuple[str, ...], tuple[str | int, ...], str, bool]]:
    """Yields every pattern: of which part of the policy, its keys there, and its place in that."""
    for place, path, grant in _grants(settings):
        for where, pattern, at_key in _patterns(grant):
            yield place, path, where, pattern, at_key
    for name, quotas in settings.quotas.items():
        for pattern in quotas:
            yield f"quotas.{name}", ("quotas", name), (pattern,), pattern, True
    for pattern in settings.labels:
        yield "labels", ("labels",), (pattern,), pattern, True
    for index, server in enumerate(settings.trust_ifc):
        yield "trustIfc", ("trustIfc",), (index,), server, False
    for index, rule in settings.flow_rules.items():
        if (pattern := rule.pattern) is not None:
            yield "flows", ("flows",), (index, "to"), pattern, False


def _grants(settings: PolicySettings) -> Iterator[tuple[str, tuple[str, ...], Grant]]:
    yield "default", ("default",), settings.default
    for name, grant in settings.clients.items():
        yield f"clients.{name}", ("clients", name), grant


def _patterns(grant: Grant) -> Iterator[tuple[tuple[str | int, ...], str, bool]]:
    """Yields every pattern with its place, and whether it is a key there."""
    for index, pattern in enumerate(grant.tools or ()):
        yield ("tools", index), pattern, False
    for key, patterns in (("budgets", grant.budgets), ("arguments", grant.arguments)):
        for pattern in patterns:
            yield (key, pattern), pattern, True
    for index, pattern in enumerate(grant.approve):
        yield ("approve", index), pattern, False
