"""Scripts for the journal, made of a number: calls in a row, beside each other, raced and in loops; timers, randomness,
dates, errors, nested promises; and the tools that they call, one of a server that asks its user meanwhile."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

from cellblock import tool

PRELUDE: Final = """import { answer, refuse } from "@codemode/servers/local";
import { input } from "@codemode/servers/asking";
import { CodemodeError } from "@codemode/errors";
import { listServers, listTools } from "@codemode/discovery";
const out = [];
let made = 0;
const note = (...values) => { out.push(values); };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const ask = (site, ms, more = null) => answer({ key: `RUN/${++made}`, site, ms, more });
const consult = (site) => input({ key: `RUN/${++made}`, site });
const bad = (site, ms) => refuse({ key: `RUN/${++made}`, site, ms });
"""

MAX_MS: Final = 6
"""Sets the longest delay of a tool and of a timer: they are to overtake each other."""

CONSULTED: Final = 0.15
"""Sets how many of the calls are of the server that asks."""


class Tools:
    """Has the tools, and the ledger of what they were asked: how often, by key.

    Args:
        answers: The ledger of the server that asks.
    """

    def __init__(self, answers: Path) -> None:
        self._ledger: Counter[str] = Counter()
        self._answers, self._read = answers, 0

    @property
    def ledger(self) -> Counter[str]:
        """How often each key was asked by now."""
        if self._answers.exists():
            with self._answers.open("rb") as file:
                file.seek(self._read)
                for line in file.read().splitlines():
                    event = json.loads(line)
                    # A call that asks in rounds comes twice.
                    self._ledger[event["arguments"]["key"]] += event["event"] == "answer"
                self._read = file.tell()
        return self._ledger

    def functions(self) -> list[Any]:
        """The tools. What `answer` gives is a function of its input and of how often that key was asked."""
        ledger = self._ledger

        @tool()
        async def answer(key: str, site: int, ms: int, more: Any = None) -> dict[str, Any]:
            ledger[key] += 1
            count = ledger[key]
            await asyncio.sleep(ms / 1000)
            return {"key": key, "count": count, "more": more}

        @tool()
        async def refuse(key: str, site: int, ms: int) -> str:
            ledger[key] += 1
            await asyncio.sleep(ms / 1000)
            raise ValueError(f"refused {key} at {site}")

        return [answer, refuse]


class Generated:
    """A script, and the sites of its calls, each a number in its text as `/*N*/N`."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self.name = f"s{number}"
        self._sites = 0
        lines = [self._statement(0) for _ in range(self._random.randint(3, 8))]
        lines.append(self._end())
        self.code = PRELUDE.replace("RUN", self.name) + "\n".join(lines) + "\n"

    def mutant(self, site: int) -> str:
        """The script with another input in the call of a site."""
        return self.code.replace(f"/*{site}*/{site}", f"/*{site}*/{site + 1000}")

    def _ms(self) -> int:
        return self._random.randint(0, MAX_MS)

    def _site(self) -> str:
        self._sites += 1
        return f"/*{self._sites}*/{self._sites}"

    def _call(self) -> str:
        more = self._random.choice(
            [
                "",
                "",
                ", Math.random()",
                ", crypto.randomUUID()",
                ", Date.now()",
                ", new Date()",
                ", out.length",
            ]
        )
        if self._random.random() < CONSULTED:
            return f"consult({self._site()})"
        return f"ask({self._site()}, {self._ms()}{more})"

    def _maybe(self) -> str:
        return f"bad({self._site()}, {self._ms()})" if self._random.random() < 0.3 else self._call()

    def _promise(self) -> str:
        kind = self._random.randrange(5)
        if kind == 0:
            return f'sleep({self._ms()}).then(() => "slept")'
        if kind == 1:
            return f"{self._call()}.then((first) => {self._call()}.then((second) => [first.key, second.key]))"
        if kind == 2:
            return f"{self._call()}.finally(() => note('finally', Math.random()))"
        if kind == 3:
            return (
                f"(async () => {{ await null; await sleep({self._ms()}); return await {self._call()}; }})()"
            )
        return self._call()

    def _promises(self) -> str:
        return ", ".join(self._promise() for _ in range(self._random.randint(2, 4)))

    def _statement(self, depth: int) -> str:
        makers = [
            lambda: f"note(await {self._call()});",
            lambda: (
                f"note(await Promise.all([{self._promises()}].map(async (one, index) => "
                "{ const value = await one; note(index, value, Date.now()); return value; })));"
            ),
            lambda: f"note('race', await Promise.race([{self._promises()}]));",
            lambda: (
                f"note('any', await Promise.any([{self._maybe()}, {self._promise()}]).catch((e) => e.name));"
            ),
            lambda: (
                f"note((await Promise.allSettled([{self._maybe()}, {self._maybe()}]))"
                ".map((one) => one.value ?? one.reason.message));"
            ),
            lambda: (
                f"try {{ note(await {self._maybe()}); }} catch (error) "
                "{ note(error instanceof CodemodeError, error.name, error.message); }"
            ),
            lambda: (
                f"setTimeout(() => note('timer', new Date().toISOString()), {self._ms()}); "
                f"clearTimeout(setTimeout(() => note('never'), {self._ms()}));"
            ),
            lambda: (
                "note(Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint8Array(3))]);"
            ),
            lambda: (
                "note(Date(), performance.now(), Temporal.Now.instant().epochMilliseconds, "
                "new Intl.DateTimeFormat('en', { timeStyle: 'medium' }).format());"
            ),
            lambda: (
                "{ const start = Date.now(); let turns = 0; while (Date.now() < start + 2) turns++; note(turns); }"
            ),
            lambda: "note((await import(`@codemode/servers/${'local'}`)).answer.length);",
            lambda: f"void {self._call()}.then((value) => note('late', value), () => note('lost'));",
            lambda: (
                "note((await Promise.all([listServers(), listTools('local')])).map((list) => list.length));"
            ),
            lambda: "console.log('so far', out.length, new Date());",
            lambda: (
                f"for await (const value of (async function* () {{ yield {self._call()}; await sleep(1); "
                f"yield {self._call()}; }})()) note('yielded', value);"
            ),
            lambda: "queueMicrotask(() => note('microtask', out.length));",
            lambda: (
                "note(new WeakRef(out).deref() === out, await new Promise((r) => setTimeout(r, 1, 'argument')));"
            ),
        ]
        if depth < 2:
            makers += [lambda: self._loop(depth), lambda: self._branch(depth)]
        return self._random.choice(makers)()

    def _loop(self, depth: int) -> str:
        body, turns = self._statement(depth + 1), self._random.randint(1, 3)
        return f"for (let turn = 0; turn < {turns}; turn++) {{ {body} await sleep({self._ms()}); }}"

    def _branch(self, depth: int) -> str:
        return f"if (Math.random() < 0.5) {{ {self._statement(depth + 1)} }} else {{ {self._statement(depth + 1)} }}"

    def _end(self) -> str:
        result = "globalThis.__codemode_result__ = out;"
        kind = self._random.randrange(10)
        if kind == 0:
            return f"{result} throw new Error(`at the end ${{out.length}}`);"
        if kind == 1:
            return f"{result} void bad({self._site()}, 0).then(note); await sleep({MAX_MS + 2});"
        if kind == 2:
            return f"{result} setTimeout(() => {{ throw new TypeError('in a timer'); }}, 1); await sleep(20);"
        if kind == 3:
            return "export default async () => { await sleep(1); return out; };"
        return result
