"""Finds what is wrong with a policy that only shows in view of the servers, or when its schemas are made: with its
place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cellblock.base.errors import InvalidRequest
from cellblock.base.settings.policy import Grant, PolicySettings
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.run.policy.grants import Layer


class Fault(NamedTuple):
    """Describes one fault in the policy of a configuration. `grant` is `default` or `clients.NAME`, `path` the keys
    below `cellblock.policy`."""

    grant: str
    path: tuple[str | int, ...]
    message: str
    """Says what is wrong, without a full stop."""
    hint: str
    at_key: bool = False


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


def unknown_servers(settings: PolicySettings, server_ids: Sequence[str]) -> Iterator[Fault]:
    """Yields patterns that name no server. Arguments as for `faults`."""
    for place, path, where, pattern, at_key in _all_patterns(settings):
        server = pattern.partition(".")[0]
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
