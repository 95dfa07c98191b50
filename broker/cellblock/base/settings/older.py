"""Reads what files of 0.1.0 say in another form; what does not fit is left for the validation to refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cellblock.base.json import is_object
from cellblock.base.settings.sections import ALL

BY_SERVER_BEFORE: Final = (("pins", "servers"), ("upstream", "servers"), ("schemas", "servers"))
"""Names where exceptions for servers stood, by the keys in the section."""

_UPSTREAM: Final = {
    "connect_timeout_ms": "connect_timeout_ms",
    "call_timeout_ms": "call_timeout_ms",
    "max_concurrent_calls": "max_calls",
}
"""Maps what was said of each server to the setting that has a map of servers now."""

_SCHEMAS: Final = {"learn": "learn", "unwrap": "unwrap"}


def in_new_form(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section of a file as it is written now."""
    made = dict(section)
    old = {name: dict(part) for name, part in section.items() if is_object(part)}
    for name, settings in (("upstream", _UPSTREAM), ("schemas", _SCHEMAS)):
        if name in old:
            made[name] = _by_setting(old[name], settings)
    if _has_only(old, "pins", "reaction", "servers"):
        made["pins"] = _by_name(old["pins"], "reaction", "servers")
    if _has_only(old, "isolation", "mode", "seccomp"):
        names = {"mode": "isolation", "seccomp": "seccomp"}
        made |= {names[key]: value for key, value in made.pop("isolation").items()}
    if _has_only(old, "metrics", "token"):
        shown = old["metrics"].get("token", True)
        made["metrics"] = ("token" if shown else "open") if isinstance(shown, bool) else shown
    if _has_only(old, "dashboard", "enabled", "logs", "show_scripts"):
        made["dashboard"] = _dashboard(old["dashboard"], old.get("http", {}))
    if _has_only(old, "outputs", "inline_bytes") and is_object(section.get("frontend", {})):
        made["frontend"] = old.get("frontend", {}) | made.pop("outputs")
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


def _audit(part: dict[str, Any]) -> dict[str, Any]:
    given = {key: part[key] for key in ("inputs", "outputs") if isinstance(part.get(key), bool)}
    if not given:
        return part
    rest = {key: value for key, value in part.items() if key not in given}
    return rest | {"values": [*part.get("values", []), *(key for key, wanted in given.items() if wanted)]}


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
