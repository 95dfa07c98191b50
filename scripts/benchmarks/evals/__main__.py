"""Gives a model the same tasks through several set-ups of the same servers, and judges what it has done.

    bash scripts/evals                           the tasks' reference scripts, in every arm
    EVALS_KEY=… bash scripts/evals --url https://api.example.com/v1/chat/completions --model NAME --repeats 3
    bash scripts/evals --by-hand DIR             writes DIR/ARM/TASK/turn-1.md; write reply-1.md beside it, and call
                                                 this again until no task waits
    bash scripts/evals --config cellblock.json --tasks mine.toml --url …    your own servers and tasks

*First*: right, and no call had failed. *Tools* are the tokens of the tools and the task, *answers* of what calls gave,
*out* of what the model wrote, *again* of all that a client sends a second time, with each further turn; for one task,
in o200k_base. *Results*: the share of the scripts' results (of single calls: what they gave) in the answers' tokens.
The interval is Wilson's, of 95 %.

The tasks of an arm share one state directory of the broker, as those of a daemon do, anew for each repeat; not by hand.
Each task is a session of its own, over new data. So a later task has what earlier ones taught: which tools come first
in the description, and types of results (names of fields, no values) in checks of scripts and in answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.evals.arms import ARMS, FASTMCP, SCRIPTED, Arm, opened
from benchmarks.evals.models import Behind, ByHand, Model, Reference, Said, Waiting
from benchmarks.evals.world import TASKS, is_right, servers_in
from benchmarks.harness import parser, say, table
from benchmarks.tokens import Tokens
from cellblock import Broker
from cellblock.app.config.load import parse_settings
from cellblock.run.events import CallFacts, RunFacts, Watcher

MOST_TURNS: Final = 60
FIGURES: Final = ("calls", "tools", "answers", "out", "again", "seconds")

count: Final = Tokens("o200k_base")


class _Calls(Watcher):
    """Writes down the calls of a script."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def call_begun(self, run: RunFacts, call: CallFacts) -> None:
        arguments = json.loads(call.arguments or b"{}")
        self.made.append({"server": call.server, "tool": call.tool, "arguments": arguments})


async def reference(arm: str, task: dict[str, Any], folder: Path, servers: dict[str, Any]) -> Reference:
    """The task's own script, or what it calls where no tool runs scripts."""
    if arm in SCRIPTED:
        tool, key = SCRIPTED[arm]
        return Reference([{"name": tool, "arguments": {"code": task[key]}}])
    calls = _Calls()
    settings = parse_settings({"mcpServers": servers}).with_state_dir(folder / "state")
    async with Broker(settings) as broker:
        await broker.settled()
        response = await broker.run(task["script"], observer=calls)
    # The profile proxy leaves the tools of an only server their own names.
    of_proxy = "mcp__{server}__{tool}" if len(servers) > 1 else "{tool}"
    named = "{server}__{tool}" if arm == "direct" else of_proxy
    there = json.loads(json.dumps(calls.made).replace(str(folder), str(folder.parent)))
    made = [{"name": named.format(**one), "arguments": one["arguments"]} for one in there]
    return Reference(made, json.dumps(response.result))


async def attempt(arm: Arm, model: Model, task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Lets a model try a task to its end. Raises Waiting."""
    turns: list[Said] = [{"role": "user", "text": task["prompt"]}]
    tools = context = count(json.dumps(arm.tools)) + count(task["prompt"])
    found: dict[str, float] = {
        "tools": tools,
        **dict.fromkeys(("answers", "results", "out", "again", "calls", "failed"), 0),
    }
    began = time.perf_counter()
    for turn in range(MOST_TURNS):
        found["again"] += context if turn else 0
        turns.append(await asyncio.to_thread(model.say, arm.tools, turns))
        out = count(turns[-1]["text"]) + sum(
            count(json.dumps(one["arguments"])) for one in turns[-1]["calls"]
        )
        results: list[dict[str, Any]] = []
        for call in turns[-1]["calls"]:
            text, result, failed = await arm.call(call["name"], call["arguments"])
            results.append(
                {
                    "id": call["id"],
                    "text": text,
                    "failed": failed,
                    "answers": count(text),
                    "results": 0 if failed else count(result),
                }
            )
        found["out"] += out
        if not results:
            break
        turns.append({"role": "tools", "results": results})
        context += out + sum(one["answers"] for one in results)
        for name in ("answers", "results", "failed"):
            found[name] += sum(one[name] for one in results)
        found["calls"] += len(results)
    last = is_right(task, folder, turns[-1].get("text", ""))
    found["seconds"] = time.perf_counter() - began
    return {**found, "first": last and not found["failed"], "last": last, "turns": turns}


def interval(right: int, of: int) -> str:
    """A share with Wilson's interval of 95 %."""
    share, z = right / of, 1.96
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    wide = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return f"{right}/{of} ({max(0.0, middle - wide):.0%} to {min(1.0, middle + wide):.0%})"


def row_of(arm: str, found: Sequence[dict[str, Any]]) -> list[str]:
    """The figures of an arm."""
    sums = {name: sum(one[name] for one in found) for name in ("first", "last", "results", *FIGURES)}
    rights = [interval(sums[name], len(found)) for name in ("first", "last")]
    means = [sums[name] / len(found) for name in FIGURES]
    return [
        arm,
        *rights,
        *(f"{one:,.0f}" if one >= 100 else f"{one:.2f}" for one in means),
        f"{sums['results'] / max(1, sums['answers']):.0%}",
    ]


async def measure(options: argparse.Namespace) -> None:
    """Prints the table, and how many attempts wait for somebody's reply."""
    found: dict[str, list[dict[str, Any]]] = {}
    waiting = 0
    for arm, _ in product(
        options.arm or [one for one in ARMS if one != "fastmcp" or FASTMCP.exists()], range(options.repeats)
    ):
        with tempfile.TemporaryDirectory(prefix="evals-", dir="/tmp") as place:
            # The world is at one place: a broker tells its user of servers that begin otherwise than before.
            folder, other = Path(place) / "world", Path(place) / "world/reference"
            for task in options.tasks:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                if options.url:
                    model: Model = Behind(options.url, options.model)
                elif options.by_hand:
                    model = ByHand(options.by_hand / arm / task["name"], str(folder))
                else:
                    model = await reference(arm, task, other, options.servers or servers_in(other))
                # By hand, what was learnt when a turn was written is not there any more.
                async with opened(
                    arm, options.servers or servers_in(folder), folder if options.by_hand else Path(place)
                ) as made:
                    try:
                        one = await attempt(made, model, task, folder)
                    except Waiting:
                        waiting += 1
                        continue
                say(f"{arm}, {task['name']}: {'right' if one['last'] else 'WRONG'}, {one['calls']} calls")
                found.setdefault(arm, []).append({"task": task["name"], **one})
    print(
        table(
            ("arm", "right at first", "right at last", *FIGURES, "results"),
            [row_of(arm, every) for arm, every in found.items()],
        )
    )
    if waiting:
        print(f"\n{waiting} attempts wait for a reply in {options.by_hand}.")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when every attempt has been made, or waits."""
    arguing = parser("evals", __doc__)
    arguing.add_argument("--arm", action="append", choices=ARMS, help="one; again for more (all)")
    arguing.add_argument("--task", action="append", metavar="NAME", help="one; again for more (all)")
    arguing.add_argument("--tasks", type=Path, default=TASKS, metavar="FILE", help="other tasks")
    arguing.add_argument("--config", type=Path, metavar="FILE", help="has the mcpServers to use instead")
    arguing.add_argument("--url", help="of the model's API, with /chat/completions or /messages")
    arguing.add_argument("--model", default="", help="its name there")
    arguing.add_argument("--by-hand", type=Path, metavar="DIR", help="turns and replies are files")
    arguing.add_argument("--repeats", type=int, default=1, help="attempts of each task (1)")
    arguing.add_argument("--json", type=Path, metavar="FILE", help="writes every attempt, with its turns")
    options = arguing.parse_args(arguments)
    options.tasks = [
        one
        for one in tomllib.loads(options.tasks.read_text("utf-8"))["task"]
        if one["name"] in (options.task or [one["name"]])
    ]
    options.servers = json.loads(options.config.read_text("utf-8"))["mcpServers"] if options.config else None
    asyncio.run(measure(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
