"""Replay runs a recording again, in a broker of its own that has no server and no tool, and tells in what the response
is not the recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cellblock.app.broker import Broker
from cellblock.app.config.load import parse_settings
from cellblock.base.json import is_array, is_object
from cellblock.base.platforms import installed
from cellblock.base.settings.sections import LimitSettings
from cellblock.base.settings.settings import Settings
from cellblock.record.journal import Journal
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording
from cellblock.run.policy.asking import COMMAND_LINE, Caller, Grantee
from cellblock.run.response import RunResponse

MAX_DIFFERENCES: Final = 20
"""Bounds the differences that are told: the first ones say enough."""

PARTS: Final = ("logs", "result", "diagnostics", "toolTrace")
"""Names the parts of a response that a replay must give again to the byte; `usage` is of the machine and the moment."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Holds what came of a replay.

    Args:
        response: The response, as a run gives it.
        differences: The first places at which it is not the recorded one: `path`, `recorded`, `replayed`. None where
            there is nothing to compare with: another script, a stop before a call, a recording of a run that goes on.
        trace: The script's requests, each with its place in the script.
        missed: The ids of those that had no recorded answer, and were made (`Live`).
        reason: The versions that the run was recorded and replayed with, where the replay is not the recorded run and
            they are not the same.
    """

    response: RunResponse
    differences: list[dict[str, Any]] | None
    trace: list[tuple[RecordedCall, str | None]] = field(
        default_factory=list[tuple[RecordedCall, str | None]]
    )
    missed: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def same(self) -> bool | None:
        """Says whether the response is the recorded one; None where there is nothing to compare with."""
        return None if self.differences is None else not self.differences


@dataclass(frozen=True, slots=True)
class Live:
    """Says how calls of another script are made that have no recorded answer.

    Args:
        settings: Of the broker that makes them.
        grantee: For whom; its user is asked before each call.
        asks: Whether the user is asked; False where that was done.
    """

    settings: Settings
    grantee: Grantee
    asks: bool = True


async def replay(
    recording: Recording,
    *,
    script: str | None = None,
    until: int | None = None,
    live: Live | None = None,
    script_name: str = "",
    settings: Settings | None = None,
) -> Replayed:
    """Runs a recording again: offline, under the limits that it was made with, or this machine's where those are lower;
    its calls are answered from it.

    Args:
        recording: What to run.
        script: Another script, to be run in place of the recorded one: its calls get the recorded answers by tool and
            input.
        until: Number of the call, from 1, to stop before.
        live: Makes the calls of another script that have no recorded answer; None: they end the run.
        script_name: What places in another script are told by; empty: it is no file.
        settings: Have this machine's limits and isolation; None: the standard ones. Those of `live` hold for it.

    Raises:
        ConfigError: The limits of the recording are none.
        UnreadableRecording: Another release has made it, which has other limits.
        HostUnavailable: The worker host cannot be started.
    """
    on_miss = "no" if live is None else "asks" if live.asks else "yes"
    journal = Journal(recording, offline=True, other_script=script, until=until, live_on_miss=on_miss)
    own = _settings(recording, settings or Settings()) if live is None else live.settings
    async with Broker(own) as broker:
        if live is not None:
            await broker.settled()
        response = await broker.run_request(
            journal.request,
            Caller(grantee=Grantee(COMMAND_LINE) if live is None else live.grantee),
            journal=journal,
            script_name=script_name,
        )
    compared = None
    if script is None and until is None and recording.response is not None:
        again = None if journal.lost is not None else journal.snapshot().response
        compared = differences(recording.response, again or response.as_json())
    is_another = script is None and (
        compared or any(one.code == "REPLAY_DIVERGED" for one in response.diagnostics)
    )
    return Replayed(
        response.decoded(),
        compared,
        journal.trace,
        tuple(journal.missed),
        _other_versions(recording) if is_another else None,
    )


def is_well(found: Replayed, recording: Recording) -> bool:
    """Says whether a replay came to the recorded response, as far as that can be said; or another script to its end."""
    codes = {diagnostic.code for diagnostic in found.response.diagnostics}
    if found.same is None:
        return found.response.ok or "REPLAY_STOPPED" in codes
    return found.same or (not recording.exact and not any(code.startswith("REPLAY_") for code in codes))


def _other_versions(recording: Recording) -> str | None:
    """Says that other versions have made a recording; None where that is not known, or not so."""
    packages = {"Cellblock": recording.made_by, "Deno": recording.deno}
    here = {name: installed(name.lower()) for name in packages}
    if not any(there and there != here[name] for name, there in packages.items()):
        return None
    made, replays = (
        " with ".join(f"{name} {version or 'of an unknown version'}" for name, version in versions.items())
        for versions in (packages, here)
    )
    return f"Recorded by {made}; replayed by {replays}. Another Deno has another V8, which may compute something else."


def _settings(recording: Recording, machine: Settings) -> Settings:
    if unknown := sorted(recording.limits.keys() - LimitSettings.model_fields.keys()):
        raise UnreadableRecording(
            f"Cellblock {recording.made_by} has made the recording; this release has no limit {unknown[0]!r}.",
            hint="Replay it with the release that made it, or record the run again.",
        )
    own = machine.cellblock
    most = {name: getattr(own.limits, name).maximum for name in LimitSettings.model_fields}
    section = {
        "limits": {name: min(recording.limits.get(name, value), value) for name, value in most.items()},
        "max_message_bytes": min(recording.message_bytes, own.max_message_bytes),
        "pool": {"total_memory_bytes": own.pool.total_memory_bytes},
        "isolation": own.isolation,
        "frontend": {"profile": "default" if recording.conventions else "strict"},
        "typecheck": "off",
    }
    return parse_settings({"cellblock": section}, source="the recording").for_one_run()


def differences(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists the first places at which two responses differ: a JSON pointer, and what is there in each."""
    found: list[dict[str, Any]] = []
    for part in PARTS:
        _compare(_own(recorded.get(part)), _own(replayed.get(part)), f"/{part}", found)
    return found[:MAX_DIFFERENCES]


def _own(part: Any) -> Any:
    """Returns a part of a response without the calls of kept scripts: a replay has their results, and runs none."""
    return [one for one in part if not (is_object(one) and "within" in one)] if is_array(part) else part


def _compare(before: Any, after: Any, path: str, found: list[dict[str, Any]]) -> None:
    if len(found) >= MAX_DIFFERENCES:
        return
    already = len(found)
    if is_object(before) and is_object(after):
        for name in [*before, *(name for name in after if name not in before)]:
            _compare(before.get(name), after.get(name), f"{path}/{name}", found)
        if len(found) == already and list(before) != list(after):
            # The same members in another order, or a null in place of none, are other bytes.
            found.append({"path": path, "recorded": list(before), "replayed": list(after)})
    elif is_array(before) and is_array(after):
        for index in range(max(len(before), len(after))):
            one, other = (items[index] if index < len(items) else None for items in (before, after))
            _compare(one, other, f"{path}/{index}", found)
        if len(found) == already and len(before) != len(after):
            found.append({"path": path, "recorded": before, "replayed": after})
    elif repr(before) != repr(after):
        # Equal numbers may have other bytes: 1 and 1.0, 0.0 and -0.0.
        found.append({"path": path, "recorded": before, "replayed": after})
