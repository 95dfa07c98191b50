"""The books of runs that wait for people: what clients and scripts were told, against what was written down and made.

Pure; knows no process. `scripts/soak --alone` keeps them for one daemon, and `--fleet` for a fleet.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cellblock.record.rows import Head
from cellblock.record.store import MAX_ADOPTED
from cellblock.run.hook import LOST

NO_RUN_WAITS: Final = "There is no run that waits for this answer"
NOT_WRITTEN: Final = "END_NOT_WRITTEN"
"""Names the warning of a run with which another broker may go on, calls that were refused among what it makes."""

LOSSES: Final = frozenset({"HOST_LOST", "WORKER_CRASHED"})
"""Names the ends of a run that has lost more processes than it may."""

APPROVE: Final = ["ledger.give"]
"""Is the policy under which `script` asks."""

SCRIPT: Final = """import { echo, give } from "@codemode/servers/ledger";
IMPORT
const told = {};
const call = async (tool, n) => {
    try {
        const found = await tool({ id: "RUN/" + n });
        told[n] = "made";
        return found;
    } catch (error) {
        told[n] = error.certainty;
    }
};
await call(echo, 0);
await Promise.all([call(give, 1), call(give, 2)]);
const said = ASK;
await call(give, 3);
globalThis.__codemode_result__ = { run: RUN, told, said: said ?? null };
"""
"""The first call needs no approval, the next two are asked about together, and the server of the next one asks, where
there is one."""

ASKED: Final = "4"
"""Names the call whose server asks."""


def script(number: int, *, asks: bool = False) -> str:
    """Returns the script of a run; `asks` is one that calls a server which asks, too."""
    imports = 'import { elicit } from "@codemode/servers/asking";' if asks else ""
    ask = f"await call(elicit, {ASKED})" if asks else "null"
    return SCRIPT.replace("RUN", str(number)).replace("IMPORT", imports).replace("ASK", ask)


class RunBooks:
    """Holds what was told against what was done.

    Args:
        losses: The codes of errors with which a run may end.
        unheard: Those with which one may end whose client had gone, for good or for a while.

    Attributes:
        wrong: What is not as it should be.
        counts: What there was.
        written: The runs of which somebody was told that they wait.
        given: Who was named to the server that asks, and for which call: each answer is another one.
        came: What came to the server that asks, by call.
    """

    def __init__(self, losses: Collection[str] = LOSSES, unheard: Collection[str] = ()) -> None:
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.written: set[str] = set()
        self.given: dict[str, str] = {}
        self.came: dict[str, list[str]] = {}
        self._losses = frozenset(losses)
        self._unheard = self._losses | frozenset(unheard)
        self._told: dict[str, Any] = {}
        """Holds what clients were answered, by run."""
        self._gone: set[str] = set()

    def take(self, message: Any, *, had_gone: bool = False) -> None:
        """Takes the answer that a client has got; `had_gone` is one whose connection was lost while it waited."""
        if "error" in message:
            self.counts["told_no_run_waits"] += 1
            if NO_RUN_WAITS not in message["error"]["message"]:
                self.wrong.append(f"an answer: {message}")
            return
        self.answered(message["result"]["structuredContent"], had_gone=had_gone)

    def answered(self, response: Any, *, had_gone: bool = False) -> None:
        """Takes the response that a client has got."""
        run_id = response["usage"].get("runId") if "usage" in response else None
        if any(entry["code"] == "RUN_PARKED" for entry in response["diagnostics"]):
            self.counts["left"] += 1
            self.written.add(run_id)
            return
        self.counts["answered"] += 1
        if run_id in self._told:
            self.wrong.append(f"two answers for run {run_id}: {response}")
        key = run_id or f"not kept {self.counts['answered']}"
        self._told[key] = response
        if had_gone:
            self._gone.add(key)

    def name(self, call: str) -> str:
        """Returns what a server that asks in a call is answered, and in no other."""
        name = f"N{len(self.given)}"
        self.given[f"accept {name}"] = call
        return name

    def settle(
        self, events: Sequence[Mapping[str, Any]], heads: Iterable[Head], response_of: Callable[[str], Any]
    ) -> None:
        """Judges all, at the end.

        Args:
            events: The ledgers of the servers.
            heads: What is written down of the runs.
            response_of: Gives the response of a run that is written down; None where there is none.
        """
        made = Counter(str(event["arguments"]["id"]) for event in events if event["event"] == "call")
        for event in events:
            if "text" in event:
                self.came.setdefault(event["arguments"]["id"], []).append(event["text"])
        self.judge_answers()
        self.wrong += [f"call {call} was made {count} times" for call, count in made.items() if count > 1]
        by_id = {head.id: head for head in heads}
        self.wrong += [f"run {run_id} waited, and is lost" for run_id in self.written - by_id.keys()]
        self.counts["written_down"], self.counts["calls"] = len(by_id), made.total()
        for run_id, head in by_id.items():
            response = response_of(run_id)
            is_told = run_id in self._told and run_id not in self._gone
            told = self._told.pop(run_id, response)
            self.counts["resumed"] += head.resumed
            is_lost = head.outcome == LOST and head.resumed >= MAX_ADOPTED
            if response is None and (is_lost or (told is None and head.outcome in self._unheard)):
                self.counts["died_too_often"] += 1
            elif response is None or told["result"] != response["result"]:
                self.wrong.append(f"run {head}: its client was told {told}, and kept is {response}")
            else:
                self.judge(response, made, is_told=is_told)
        for run_id, response in self._told.items():
            self.judge(response, made, is_told=run_id not in self._gone)

    def judge(self, response: Any, made: Counter[str], *, is_told: bool = True) -> None:
        """Holds what a script was told of its calls against the ledger."""
        result = response["result"]
        if result is None:
            codes = {entry["code"] for entry in response["diagnostics"] if entry["severity"] == "error"}
            self.counts["died_too_often"] += 1
            if not codes or codes - (self._losses if is_told else self._unheard):
                self.wrong.append(f"it has ended so: {response}")
            return
        self.counts["ended_well"] += 1
        is_elsewhere = any(entry["code"] == NOT_WRITTEN for entry in response["diagnostics"])
        self.counts["end_not_written"] += is_elsewhere
        words = {f"{result['run']}/{call}": word for call, word in result["told"].items()}
        self.counts["may_have_run"] += list(words.values()).count("may_have_run")
        self.wrong += [
            f"call {call} was made, and its script knows nothing of it: {response}"
            for call in made
            if call.startswith(f"{result['run']}/") and call not in words and not is_elsewhere
        ]
        times = {"made": [1], "may_have_run": [0, 1], "not_started": [0, 1] if is_elsewhere else [0]}
        self.wrong += [
            f"told {word} of call {call}, which was made {made[call]} times: {response}"
            for call, word in words.items()
            if made[call] not in times.get(word, [])
        ]
        asked = f"{result['run']}/{ASKED}"
        came = self.came.get(asked, [])
        if len(came) > 1 or (words.get(asked) == "made" and came != [result["said"]]):
            self.wrong.append(f"to the server of call {asked} came {came}: {response}")

    def judge_answers(self) -> None:
        """Holds what came to the server that asks against what was said: each answer is for one call, once."""
        came = [(call, text) for call, texts in self.came.items() for text in texts]
        named = Counter(text for _, text in came if text.startswith("accept"))
        if self.given:
            self.counts["came_to_the_server"] = named.total()
        self.wrong += [
            f"{text} came to the server {count} times" for text, count in named.items() if count > 1
        ]
        self.wrong += [
            f"to the server of call {call} came {text}, which was for {self.given.get(text)}"
            for call, text in came
            if text.startswith("accept") and self.given.get(text) != call
        ]
