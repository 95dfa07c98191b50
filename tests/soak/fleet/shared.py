"""What the brokers of a fleet have together, under the same faults: a server that exists once, and a client's quota.

Scripts call the server that exists once, and one whose calls a quota counts. The books hold what they were told of
each call against the servers' ledger, as for any other; here is what must be so beyond that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from support.entries import Entry, plain_server
from support.fleet.fleet import Fleet
from support.fleet.parts import Broker

SINGLE: Final = "single"
METERED: Final = "metered"

CALL_MS: Final = 8_000
"""Bounds a call of the server that exists once, which waits for its next broker: less than a run may take."""

ONE_IN: Final = 2.0
"""Is for how many seconds of load the quota has a call: about the half of what is asked for."""

LEAST: Final = 20
PERIOD_MS: Final = 31 * 86_400_000
"""The longest that a quota may have, so that a soak is hardly ever in two."""

CALLED: Final = 5
COUNTED: Final = 6
"""Number a script's call of the server that exists once, and the first one that the quota counts."""

AWAY: Final = "IMPORT_FAILURE"
"""Names the end of a run at a broker that does not know the tools yet."""

SCRIPT: Final = """import { echo as single } from "@codemode/servers/single";
import { echo as metered } from "@codemode/servers/metered";
const told = {}, codes = {};
const call = async (tool, n) => {
    try {
        await tool({ id: "RUN/" + n });
        told[n] = "made";
    } catch (error) {
        told[n] = error.certainty;
        codes[n] = error.code;
    }
};
await call(single, CALLED);
for (let n = COUNTED; n < COUNTED + TIMES; n++) await call(metered, n);
globalThis.__codemode_result__ = { run: RUN, told, codes };
"""


TAKEN: Final = f"SELECT epoch FROM cellblock.claims WHERE name = '{SINGLE}'"
"""Counts how often a broker has taken the server that exists once."""


def script(number: int, *, times: int = 1) -> str:
    """Returns the script of a run that makes so many calls which the quota counts."""
    said = SCRIPT.replace("RUN", str(number)).replace("TIMES", str(times))
    return said.replace("CALLED", str(CALLED)).replace("COUNTED", str(COUNTED))


def quota_of(seconds: float) -> int:
    """Returns how many calls the client of a soak of so many seconds has."""
    return max(LEAST, round(seconds / ONE_IN))


def servers(ledger: Any, alone: Any) -> dict[str, Entry]:
    """Returns both servers; the one that exists once holds the lock of `alone`, and notes who else has it."""
    return {
        SINGLE: plain_server("--ledger", ledger, "--alone", alone),
        METERED: plain_server("--ledger", ledger),
    }


UPSTREAM: Final[Mapping[str, Any]] = {"servers": {SINGLE: {"single": True, "call_timeout_ms": CALL_MS}}}


def quotas(most: int) -> dict[str, Any]:
    """Returns the quota, as the policy has it: strict, as no other kind is never exceeded."""
    return {"default": {f"{METERED}.*": {"calls": most, "per_ms": PERIOD_MS, "strict": True}}}


def owner(fleet: Fleet) -> Broker:
    """Returns the broker that has the server that exists once; blocks."""
    ((url,),) = fleet.database.rows(f"SELECT url FROM cellblock.claims WHERE name = '{SINGLE}'")
    return fleet.broker_at(url)


def is_away(response: Any) -> bool:
    """Says whether a run has ended at its imports."""
    return any(entry["code"] == AWAY for entry in response["diagnostics"])


def breaches(
    events: Iterable[Mapping[str, Any]], most: int, absent: Collection[int], counts: Counter[str]
) -> list[str]:
    """Returns what is not so by the servers' ledger, and counts what there was; `absent` are runs without a server."""
    found: list[str] = []
    for event in events:
        if event["event"] == "double":
            found.append(f"two processes of the server that exists once were alive: {event}")
        elif event["event"] == "call":
            run, _, call = str(event["arguments"]["id"]).partition("/")
            counts["single_calls"] += int(call) == CALLED
            counts["quota_calls"] += int(call) >= COUNTED
            if int(run) in absent:
                found.append(f"a call was made by a run that had no server: {event}")
    if counts["quota_calls"] > most:
        found.append(f"{counts['quota_calls']} calls were made of a quota of {most}")
    return found
