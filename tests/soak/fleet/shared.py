"""What the brokers of a fleet have together, under the same faults: a client's quota.

Scripts call a server whose calls a quota counts. The books hold what they were told of each call against the servers'
ledger, as for any other; here is what must be so beyond that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

METERED: Final = "metered"

ONE_IN: Final = 2.0
"""Is for how many seconds of load the quota has a call: about the half of what is asked for."""

LEAST: Final = 20
PERIOD_MS: Final = 31 * 86_400_000
"""The longest that a quota may have, so that a soak is hardly ever in two."""

COUNTED: Final = 5
"""Numbers a script's first call that the quota counts."""

SCRIPT: Final = """import { echo as metered } from "@codemode/servers/metered";
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
for (let n = COUNTED; n < COUNTED + TIMES; n++) await call(metered, n);
globalThis.__codemode_result__ = { run: RUN, told, codes };
"""


def script(number: int, *, times: int = 1) -> str:
    """Returns the script of a run that makes so many calls which the quota counts."""
    said = SCRIPT.replace("RUN", str(number)).replace("TIMES", str(times))
    return said.replace("COUNTED", str(COUNTED))


def quota_of(seconds: float) -> int:
    """Returns how many calls the client of a soak of so many seconds has."""
    return max(LEAST, round(seconds / ONE_IN))


def quotas(most: int) -> dict[str, Any]:
    """Returns the quota, as the policy has it: strict, as no other kind is never exceeded."""
    return {"default": {f"{METERED}.*": {"calls": most, "per_ms": PERIOD_MS, "strict": True}}}


def breaches(events: Iterable[Mapping[str, Any]], most: int, counts: Counter[str]) -> list[str]:
    """Returns what is not so by the servers' ledger, and counts what there was."""
    for event in events:
        if event["event"] == "call":
            counts["quota_calls"] += int(str(event["arguments"]["id"]).partition("/")[2]) >= COUNTED
    if counts["quota_calls"] > most:
        return [f"{counts['quota_calls']} calls were made of a quota of {most}"]
    return []
