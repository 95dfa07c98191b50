"""What files of 0.1.0 say otherwise: settings in another form, and settings that are no more.

Of the latter each is told, and ignored where that changes nothing of what is allowed. What does not fit is left for the
validation to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.base.settings.problems import Problem
from cellblock.base.settings.sections import ALL

BY_SERVER_BEFORE: Final = (("pins", "servers"), ("upstream", "servers"), ("schemas", "servers"))
"""Names where exceptions for servers stood, by the keys in the section."""

_UPSTREAM: Final = {
    "connect_timeout_ms": "connect_timeout_ms",
    "call_timeout_ms": "call_timeout_ms",
    "max_concurrent_calls": "max_calls",
}
"""Maps what was said of each server to the setting that has a map of servers now."""

_SCHEMAS: Final = {"learn": "learn", "unwrap": "unwrap", "keep_samples": "keep_samples"}


def in_new_form(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section of a file as it is written now."""
    made = dict(section)
    old = {name: dict(part) for name, part in section.items() if is_object(part)}
    for name, settings in (("upstream", _UPSTREAM), ("schemas", _SCHEMAS)):
        if name in old:
            made[name] = _by_setting(old[name], settings)
    if is_object(schemas := made.get("schemas")) and "keep_samples" in schemas:
        made["schemas"] = _with_samples(schemas)
    if _has_only(old, "pins", "reaction", "servers"):
        made["pins"] = _by_name(old["pins"], "reaction", "servers")
    if _has_only(old, "isolation", "mode"):
        made["isolation"] = old["isolation"].get("mode", "auto")
    if _has_only(old, "traces", "endpoint"):
        made["traces"] = old["traces"].get("endpoint")
    pool = section.get("pool", {})
    if is_object(reuse := old.get("policy", {}).get("reuse")) and is_object(pool):
        every = pool.get("reuse", "never")
        made["pool"] = pool | {"reuse": (every if is_object(every) else {ALL: every}) | reuse}
        made["policy"] = {key: value for key, value in old["policy"].items() if key != "reuse"}
    if _has_only(old, "metrics", "token"):
        shown = old["metrics"].get("token", True)
        made["metrics"] = ("token" if shown else "open") if isinstance(shown, bool) else shown
    if _has_only(old, "dashboard", "enabled", "logs", "show_scripts"):
        made["dashboard"] = _dashboard(old["dashboard"], old.get("http", {}))
    if _has_only(old, "outputs", "inline_bytes") and is_object(section.get("frontend", {})):
        made["frontend"] = old.get("frontend", {}) | made.pop("outputs")
    if "allowed_origins" in old.get("http", {}):
        made["http"] = _with_origins(old["http"])
    if is_object(ray := old.get("hosts", {}).get("ray")):
        made["hosts"] = old["hosts"] | {"ray": _ray(ray)}
    if isinstance(strict := old.get("frontend", {}).get("strict"), bool):
        frontend = {key: value for key, value in made["frontend"].items() if key != "strict"}
        # In the profile `proxy` there are no scripts.
        is_strict = strict and frontend.get("profile") != "proxy"
        made["frontend"] = frontend | ({"profile": "strict"} if is_strict else {})
    if is_object(logins := old.get("auth", {}).get("servers")):
        servers = {name: _login(own) if is_object(own) else own for name, own in logins.items()}
        made["auth"] = old["auth"] | {"servers": servers}
    if "audit" in old:
        made["audit"] = _audit(old["audit"])
    if "clients" in old.get("journal", {}):
        journal = old["journal"]
        made["journal"] = journal | {"mode": _by_name(journal, "mode", "clients")}
        del made["journal"]["clients"]
    if {"key", "other_key"} <= old.get("state", {}).keys():
        state = old["state"]
        keys = [state["key"], state.pop("other_key")]
        made["state"] = state | {"key": [key for key in keys if key is not None]}
    return made


# ---- inside ------------------------------------------------------------------------------------------


def _has_only(old: Mapping[str, Any], part: str, *keys: str) -> bool:
    return part in old and old[part].keys() <= {*keys}


def _by_name(part: Mapping[str, Any], every: str, names: str) -> Any:
    """Returns a map of values by name, of a value for all and of exceptions."""
    exceptions = part.get(names, {})
    if not is_object(exceptions):
        # `servers` may be the name of a server.
        return part
    return ({ALL: part[every]} if every in part else {}) | exceptions


def _by_setting(part: dict[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns a part of the section with the exceptions for servers below the settings."""
    servers = part.get("servers", {})
    if not is_object(servers) or not all(
        is_object(own) and own.keys() <= settings.keys() for own in servers.values()
    ):
        return part
    made = {key: value for key, value in part.items() if key != "servers"}
    for server, own in servers.items():
        for key, value in own.items():
            if value is not None:
                name = settings[key]
                before = made.get(name, {})
                made[name] = (before if is_object(before) else {ALL: before}) | {server: value}
    return made


def _with_samples(part: dict[str, Any]) -> dict[str, Any]:
    """Returns the part where `learn` says whether samples are kept."""
    kept, learn = (
        {ALL: value, **(given if is_object(given) else {ALL: given})}
        for value, given in ((False, part["keep_samples"]), (True, part.get("learn", True)))
    )
    if not all(isinstance(value, bool) for value in kept.values()):
        return part
    values = {name: (kept.get(name, kept[ALL]), learn.get(name, learn[ALL])) for name in {**kept, **learn}}
    made = {name: "samples" if value == (True, True) else value[1] for name, value in values.items()}
    return {key: value for key, value in part.items() if key != "keep_samples"} | {"learn": made}


def _with_origins(part: dict[str, Any]) -> dict[str, Any]:
    """Returns the part with the origins among the hosts; what is no origin must not pass for a host."""
    origins, hosts = part["allowed_origins"], part.get("allowed_hosts", [])
    if not is_array(origins) or not is_array(hosts) or not all("//" in str(origin) for origin in origins):
        return part
    rest = {key: value for key, value in part.items() if key != "allowed_origins"}
    return rest | {"allowed_hosts": [*hosts, *origins]}


def _ray(part: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(part)
    if not {"min", "max"}.isdisjoint(part) and "hosts" not in part:
        made["hosts"] = [made.pop("min", 1), made.pop("max", 8)]
    if not {"resources", "runtime_env"}.isdisjoint(part) and "options" not in part:
        made["options"] = {key: made.pop(key) for key in ("resources", "runtime_env") if key in part}
    return made


def _login(own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a login with one name of the client, and one place of the secret; several are left to be
    refused."""
    if own.get("client_id") is None and (document := own.get("client_metadata_url")) is not None:
        own = {key: value for key, value in own.items() if key != "client_metadata_url"} | {
            "client_id": document
        }
    places = {
        key: own[key] for key in ("client_secret_env", "client_secret_file") if own.get(key) is not None
    }
    rest = {
        key: value for key, value in own.items() if key not in ("client_secret_env", "client_secret_file")
    }
    if own.get("client_secret") is not None or len(places) != 1:
        return rest | places
    [(key, value)] = places.items()
    return rest | {"client_secret": {key.removeprefix("client_secret_"): value}}


def _audit(part: dict[str, Any]) -> Any:
    enabled, values = part.get("enabled"), part.get("values", [])
    if enabled is False:
        return "off"
    if part.keys() - {"enabled", "values", "inputs", "outputs"} or not is_array(values):
        return part
    named = [key for key in ("inputs", "outputs") if part.get(key) is True]
    return [*(["calls"] if enabled else []), *values, *named]


def _dashboard(part: Mapping[str, Any], http: Mapping[str, Any]) -> Any:
    """Returns what the dashboard shows."""
    enabled, logs, scripts = part.get("enabled"), part.get("logs", True), part.get("show_scripts", False)
    if not all(isinstance(value, bool | None) for value in (enabled, logs, scripts)):
        return part
    if enabled is False or (enabled is None and http.get("oauth") is not None):
        return "off"
    if not logs:
        return "runs"
    return "scripts" if scripts else "logs"


class AlwaysIs(NamedTuple):
    """Says what is always in force of a setting that may have restricted or opened something, and what to do where a
    file says otherwise: an error."""

    value: object
    hint: str


REMOVED: Final[Mapping[str, str | AlwaysIs]] = {
    "ignored_server_keys": "a key that nobody is known to read is a warning",
    "pool.realtime": "no process has real-time priority",
    "max_code_bytes": "Cellblock uses 1,048,576",
    "typecheck_hold_ms": "Cellblock uses typecheck_timeout_ms, else 30",
    "frontend.progress_interval_ms": "Cellblock uses 1,000",
    "outputs.preview_bytes": "Cellblock uses 2,000",
    "outputs.page_bytes": "Cellblock uses 32,768",
    "outputs.client_bytes": "Cellblock uses 67,108,864",
    "outputs.expire_ms": "Cellblock uses 1,800,000",
    "outputs.total_bytes": "Cellblock uses 268,435,456",
    "log.max_bytes": "Cellblock uses 10,485,760",
    "log.keep": "Cellblock uses 3",
    "audit.max_value_bytes": "Cellblock uses 16,384",
    "audit.max_bytes": "Cellblock uses 10,485,760",
    "audit.keep": "Cellblock uses 9",
    "metrics.max_tools": "Cellblock uses 1,000",
    "dashboard.recent_runs": "Cellblock uses 100",
    "traces.service_name": "the environment variable OTEL_SERVICE_NAME says it",
    "traces.sample_ratio": "the environment variables OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say it",
    "traces.export_timeout_ms": "Cellblock uses 5,000",
    "traces.headers": "the environment variable OTEL_EXPORTER_OTLP_HEADERS says it",
    "auth.keyring_timeout_ms": "Cellblock uses 5,000",
    "auth.token_timeout_ms": "Cellblock uses 30,000",
    "auth.servers.*.client_key_algorithm": "a key signs with what is its own: RS256, ES256, ES384, ES512 or EdDSA",
    "policy.approval_total_ms": "Cellblock uses 600,000",
    "policy.max_questions": "Cellblock uses 20",
    "schemas.stable_after": "Cellblock uses 20",
    "schemas.sample_every": "Cellblock uses 16",
    "schemas.servers.*.tools": AlwaysIs({}, "Say it for the whole server."),
    "schemas.servers.*.unbox": "schemas.unbox holds for all servers",
    "metrics.enabled": AlwaysIs(True, "Take it out: /metrics asks for the token."),
    "frontend.first_reference_chars": "Cellblock uses 12,000",
    "journal.parked_ttl_ms": "Cellblock uses journal.expire_ms",
    "replicas": "a balancer finds the broker of a session by state.broker (docs/howto-replicas.md)",
    "upstream.servers.*.single": AlwaysIs(
        False,
        "Run this server once, behind HTTP, and give all brokers its url (docs/howto-replicas.md).",
    ),
    "pool.max_warm": "Cellblock uses twice pool.warm",
    "pool.idle_after_ms": "Cellblock uses 60,000",
    "pool.client_queue_size": "Cellblock uses half of pool.queue_size",
    "pool.principal_warm": "Cellblock uses 1",
    "pool.idle_ms": "Cellblock uses 300,000",
    "pool.max_runs": "Cellblock uses 200",
    "pool.max_age_ms": "Cellblock uses 3,600,000",
    "hosts.ray.capacity": "Cellblock uses pool.capacity",
    "hosts.ray.warm": "Cellblock uses pool.warm",
    "hosts.ray.shrink_after_ms": "Cellblock uses 60,000",
    "hosts.ray.drain_ms": "Cellblock uses 60,000",
    "upstream.max_message_bytes": "Cellblock uses twice max_message_bytes",
    "upstream.retry_first_ms": "Cellblock uses 500",
    "upstream.retry_max_ms": "Cellblock uses 30,000",
    "upstream.servers.*.retry_first_ms": "Cellblock uses 500",
    "upstream.servers.*.retry_max_ms": "Cellblock uses 30,000",
    "upstream.tool_threads": "Cellblock uses 32",
    "upstream.list_timeout_ms": "Cellblock uses 20,000",
    "upstream.max_pages": "Cellblock uses 500",
    "upstream.max_tools": "Cellblock uses 2,000",
    "upstream.max_tool_bytes": "Cellblock uses 131,072",
    "upstream.max_definition_bytes": "Cellblock uses 8,388,608",
    "upstream.max_tool_depth": "Cellblock uses 100",
    "upstream.max_tool_values": "Cellblock uses 10,000",
    "upstream.max_name_chars": "Cellblock uses 256",
    "journal.park_after_ms": "a run is parked as soon as nobody who is there can answer",
    "journal.park_tools_after_ms": "a run has its process while tools are at work",
    "upstream.max_description_chars": "Cellblock uses 32,768",
    "http.max_body_bytes": "Cellblock uses 8,388,608",
    "http.max_held_bytes": "Cellblock uses 1 MiB for each of http.max_sessions, at least 128 MiB",
    "http.max_connections": "Cellblock uses twice http.max_sessions, at least 256",
    "http.burst": "Cellblock uses 4,000",
    "http.requests_per_second": "Cellblock uses 2,000",
    "pool.reserved_places": "Cellblock keeps one place in sixteen",
    "seccomp": "system calls that Deno was not seen to need are refused",
    "isolation.seccomp": "system calls that Deno was not seen to need are refused",
    "http.session_idle_ms": "Cellblock uses 1,800,000",
    "http.header_timeout_ms": "Cellblock uses 10,000",
    "http.body_timeout_ms": "Cellblock uses 30,000",
    "http.stall_timeout_ms": "Cellblock uses 60,000",
    "policy.retry": "a tool's overlay says `retry = true` (docs/knowledge.md)",
    "policy.approval_timeout_ms": "Cellblock uses 120,000",
    "http.idle_stop_ms": "Cellblock uses 1,800,000",
    "pool.idle_warm": "Cellblock uses pool.warm",
    "upstream.max_concurrent_calls": "Cellblock uses 32; upstream.max_calls bounds a server",
    "upstream.startup_wait_ms": "Cellblock uses 10,000",
}
"""Maps settings of the section to what Cellblock does instead; `*` stands for any name."""


def without_removed(section: object, at: Sequence[str]) -> tuple[object, list[Problem]]:
    """Returns the section of a file, which stands at a path, without settings that are no more, and what is to be said
    of these."""
    problems: list[Problem] = []
    for setting, said in REMOVED.items():
        section = _without(section, setting.split("."), tuple(at), said, problems)
    return section, problems


def _without(
    value: object,
    keys: Sequence[str],
    path: tuple[str, ...],
    said: str | AlwaysIs,
    problems: list[Problem],
) -> object:
    if not is_object(value):
        return value
    left: dict[str, Any] = dict(value)
    first, *below = keys
    for key in [*left] if first == "*" else [first] if first in left else []:
        if below:
            left[key] = _without(left[key], below, (*path, key), said, problems)
        else:
            problems.append(_problem((*path, key), said, left.pop(key)))
    return left


def _problem(path: tuple[str, ...], said: str | AlwaysIs, value: object) -> Problem:
    if isinstance(said, str):
        return Problem(path, f"no longer a setting; {said}", "Take it out.", "warning", at_key=True)
    severity = "warning" if value == said.value else "error"
    return Problem(path, "no longer a setting", said.hint, severity, at_key=True)
