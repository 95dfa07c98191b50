"""Runs that are recorded, replayed by another worker, resumed and changed: real workers, real Python tools.

With the public servers, what is recorded is replayed and gone on with, and nothing is called twice.
"""

import asyncio
import contextlib
import json
import random
import re
import shlex
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, Certainty, Grantee, RunResponse
from cellblock.app.replay import Live, replay
from cellblock.record.journal import Journal
from cellblock.record.recording import Recording, UnreadableRecording
from cellblock.run.policy.asking import Caller, Question, Verdict
from cellblock.testing import read_recording
from support.brokers import host_of, ready
from support.cellblock_zygote import forked_python, started
from support.entries import ledger, plain_server, settings
from support.params import mostly
from support.processes import kill_family
from support.public_servers import ServerEntry
from support.replaying import Tally, World, changed, cuts, pieces, prove, world
from support.waits import until, within

TOOLS = 'import { answer, refuse } from "@codemode/servers/local";\n'
END = "\nglobalThis.__codemode_result__ = out;"


@pytest.fixture(scope="module")
async def place() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def codes(response: RunResponse) -> list[str]:
    return [found.code for found in response.diagnostics]


async def cancelled(task: asyncio.Task[RunResponse]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def limited(place: World, code: str, **limits: int) -> tuple[Journal, RunResponse]:
    """A run under these limits, with its journal."""
    journal = Journal()
    request = {"code": code, "limits": limits}
    return journal, await within(place.live.run_request(request, journal=journal))


async def both(place: World, code: str) -> tuple[Recording, RunResponse]:
    """Records a script, and holds its replay against the recording."""
    recording = await within(place.record(code))
    response, differing = await within(place.replay(recording))
    assert differing == [], (recording.response, response)
    assert "REPLAY_DIVERGED" not in codes(response)
    return recording, response


async def test_generated_scripts_are_replayed_cut_and_changed(place: World) -> None:
    total = Tally()
    for number in range(12):
        total.add(await within(prove(place, number, all_of_it=False)))
    assert total.said == ""
    assert total["calls"] > 40 and total["cut"] > 8 and total["mutants"] > 6
    assert place.user.answers > 3, "servers have asked"


async def test_answers_that_come_together_are_seen_one_after_the_other(place: World) -> None:
    """What comes of one, however many microtasks that takes, has been before the next is seen."""
    code = """import { answer } from "@codemode/servers/local";
const seen = [];
await Promise.all(Array.from({ length: 40 }, async (_, index) => {
    await answer({ key: `together/${index}`, site: index, ms: 0 });
    seen.push(index);
    for (let turn = 0; turn < 50; turn++) await null;
    seen.push(index);
}));
globalThis.__codemode_result__ = seen;
"""
    _, response = await both(place, code)
    seen = response.result
    assert seen[::2] == seen[1::2] and sorted(seen[::2]) == list(range(40))


@pytest.mark.parametrize(
    "code",
    [
        "out.push(Date.now(), new Date().getTime(), Date(), new (class extends Date {})().toISOString());",
        "out.push(performance.now(), `${Temporal.Now.plainDateTimeISO()}`, Temporal.Now.plainTimeISO('UTC').hour);",
        "out.push(new Intl.DateTimeFormat('en', { timeStyle: 'medium' }).format(), "
        "new Intl.DateTimeFormat().formatToParts().length);",
        "out.push(Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint16Array(9))]);",
        "const end = Date.now() + 30; let n = 0; while (Date.now() < end) n++; out.push(n);",
        "const c = new AbortController(); const s = AbortSignal.any([AbortSignal.timeout(3), c.signal]); "
        "await new Promise((r) => s.addEventListener('abort', r)); out.push(s.reason.name);",
        "setTimeout(() => out.push('b'), 4); setTimeout(() => out.push('a'), 2); "
        "await new Promise((r) => setTimeout(r, 9)); out.push('c');",
        "const two = await Promise.all(['errors', 'discovery'].map((n) => import(`@codemode/${n}`))); "
        "out.push(two.map((m) => Object.keys(m).length)); "
        "await import('@codemode/none').catch((e) => out.push(e.message));",
        "let seen = null; new FinalizationRegistry((v) => { seen = v; }).register({}, 1); const w = new WeakRef({}); "
        "for (let i = 0; i < 200; i++) { new Array(1e5).fill(i); await null; } "
        "out.push(seen, w.deref() !== undefined);",
        "try { WeakRef({}); } catch (e) { out.push(e.name); } "
        "out.push(WeakRef.name, Date.length, Date.name, Date.UTC(2020));",
        "try { crypto.getRandomValues(new Float64Array(1)); } catch (e) { out.push(e.name); }"
        "try { crypto.getRandomValues(new Uint8Array(65537)); } catch (e) { out.push(e.name); }",
        "setTimeout(() => { throw new RangeError('in a timer'); }, 1); await new Promise((r) => setTimeout(r, 50));",
        "Promise.reject(new TypeError('nobody'));",
        "void answer({ key: 'k', site: 1, ms: 300 }).then(() => out.push('late'));",
        "await refuse({ key: 'k', site: 1, ms: 1 });",
        "out.push(nothing.at.all);",
        "out.push(() => 1, undefined, 2n);",
        "for (let i = 0; i < 40; i++) console.log(i, new Date(), 'x'.repeat(5000)); "
        "out.push(await answer({ key: 'l', site: 1, ms: 0 }));",
        "let depth = 0; const nested = async (n) => n ? await nested(n - 1) : "
        "(await answer({ key: 'd', site: n, ms: 1 })).key; "
        "out.push(await Promise.race([nested(100), nested(3)]));",
    ],
    ids=lambda code: code[:24],
)
async def test_what_a_script_sees_it_sees_again(place: World, code: str) -> None:
    recording, _ = await both(place, f"{TOOLS}const out = [];\n{code}{END}")
    assert recording.ended == "finished"


async def test_the_limits_of_a_recording_hold_up_to_this_machines(place: World, tmp_path: Path) -> None:
    """A file may say any number."""
    code = "const all = []; for (let i = 0; i < 96; i++) all.push(new Uint8Array(1 << 20).fill(1));"
    recording = await within(place.record(f"{code} globalThis.__codemode_result__ = all.length;"))
    recording.limits |= {"max_memory_bytes": 15 << 30, "timeout_ms": 1 << 40}
    recording.message_bytes = 1 << 40
    assert (await within(replay(recording))).same
    limits = {"max_memory_bytes": [16 << 20, 48 << 20]}
    machine = settings(tmp_path, limits=limits, pool={"total_memory_bytes": 300 << 20})
    assert codes((await within(replay(recording, settings=machine))).response) == ["SANDBOX_LIMIT"]
    del recording.limits["max_memory_bytes"]
    assert not (await within(replay(recording, settings=machine))).same


async def test_a_recording_of_an_earlier_release_is_replayed(place: World) -> None:
    """Made by 0.1.0, whose sandbox made the plan that is in it, too. Each format keeps its file."""
    recording = read_recording(Path(__file__).parents[1] / "fixtures" / "recordings" / "format-1.cellrun")
    assert recording.made_by == "0.1.0" and len(recording.calls) == 9
    response, differing = await within(place.replay(recording))
    # How a release words what it finds, and how grave it calls that, is its own: one of them is an info now.
    elsewhere = [one for one in differing if not one["path"].startswith("/diagnostics/0/")]
    assert elsewhere == [] and response.logs[-1].message.endswith("loop 2"), (response, differing)
    assert [entry.code for entry in response.diagnostics] == [
        entry["code"] for entry in (recording.response or {})["diagnostics"]
    ]


async def test_a_clock_that_is_polled_takes_little(place: World) -> None:
    code = "const end = Date.now() + 100; let n = 0; while (Date.now() < end) n++; globalThis.__codemode_result__ = n;"
    recording, response = await both(place, code)
    assert response.result > 1000
    assert len(recording.events) < 101 * len("c1*1234567")


async def test_without_a_journal_randomness_and_clock_are_the_machines(place: World) -> None:
    code = "globalThis.__codemode_result__ = [crypto.randomUUID(), performance.now() % 1];"
    first, second = [await within(place.live.run(code)) for _ in range(2)]
    assert first.result[0] != second.result[0]
    assert any(response.result[1] for response in (first, second, await within(place.live.run(code))))


SLEEP = "const sleep = (ms) => new Promise((r) => setTimeout(r, ms)); const t = Date.now();"
CALL = "await answer({ key: 'limit', site: 1, ms: 1 });"
ENDED = {"timeoutMs": "timeout", "maxCpuMs": "cpu", "maxToolCalls": "stopped"}
# Not memory: at which size an allocation fails is no event, and differs from run to run.
LIMITED = {
    "reads the clock and waits": (
        "console.log(Date.now() - t); await new Promise(() => {});",
        "timeoutMs",
        700,
    ),
    "has seen timers": (
        "setTimeout(() => console.log('guard'), 8000); await sleep(5); await sleep(5); await sleep(9000);",
        "timeoutMs",
        700,
    ),
    "would have waited a bit longer": (
        f"setTimeout(() => console.log('guard'), 1500); {CALL} await sleep(400); await sleep(5000);",
        "timeoutMs",
        900,
    ),
    "polls the clock": (f"{CALL} while (Date.now() < t + 20000); console.log('passed');", "timeoutMs", 700),
    "polls it a bit longer": ("while (Date.now() < t + 1200); console.log('passed');", "timeoutMs", 800),
    "calls": ("for (let i = 0; ; i++) await answer({ key: `m${i}`, site: i, ms: 0 });", "maxToolCalls", 3),
    "races and blocks": (
        f"{CALL} const w = await Promise.race([sleep(7).then(() => 'a'), answer({{ key: 'r', site: 2, ms: 5 }})]);"
        "console.log(w, Math.random()); for (;;);",
        "maxCpuMs",
        500,
    ),
}


def a_day_earlier(recording: Recording) -> Recording:
    """The recording, as if it were of the day before."""
    events = re.sub(r"c(\d{10,})", lambda found: f"c{int(found[1]) - 86_400_000}", recording.events, count=1)
    return replace(recording, events=events, started_at=recording.started_at - 86_400)


@pytest.mark.parametrize("name", mostly(["has seen timers", "calls", "races and blocks"], list(LIMITED)))
async def test_a_run_that_a_limit_has_ended_is_replayed_to_it(place: World, name: str) -> None:
    code, limit, most = LIMITED[name]
    journal, first = await limited(place, f"{TOOLS}{SLEEP}{code}", **{limit: most})
    recording = journal.snapshot()
    assert (codes(first), recording.ended) == (["SANDBOX_LIMIT"], ENDED[limit])
    assert (await within(replay(a_day_earlier(recording)))).differences == []


async def test_what_a_script_has_seen_is_known_though_it_asks_for_nothing(place: World) -> None:
    journal = Journal()
    code = f"{SLEEP} await sleep(3); const out = [Math.random()]; await new Promise(() => {{}});"
    task = asyncio.create_task(place.live.run_request({"code": code}, journal=journal))
    await until(lambda: journal.events_from(0)[0].endswith("t1"), "its timer is known")
    await cancelled(task)


async def test_what_led_to_an_entry_is_known_with_it(place: World) -> None:
    journal, response = await limited(place, f"{TOOLS}{CALL} console.log('now'); for (;;);", maxCpuMs=300)
    assert [entry.message for entry in response.logs] == ["now"]
    assert "a1" in journal.events_from(0)[0]


async def test_a_resumed_run_has_the_machines_clock(place: World) -> None:
    code = f"{TOOLS}const t = Date.now(); {CALL} globalThis.__codemode_result__ = Date.now() - t;"
    part = next(cut for cut in cuts(await within(place.record(code))) if cut.events.endswith("a1"))
    assert (await within(place.resume(a_day_earlier(part)))).response["result"] >= 86_400_000


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("site: 1,", "site: 2,", "call 1, local.answer, has another input"),
        ("answer({", "refuse({", "call 1 was local.answer, and is now call local.refuse"),
        (
            "out.push('more')",
            "await answer({ key: 'x', site: 9, ms: 0 })",
            "was not made in the recorded run",
        ),
        (
            "ready = await answer({ key: 'a', site: 1, ms: 1 })",
            "const value = 1",
            "has not asked for answer 1",
        ),
        ("out.push('more')", "await new Promise((r) => setTimeout(r, 1))", "does not end where it has ended"),
        ("const value = 0;", "Date.now(); Date.now(); Date.now();", "it reads the clock more often"),
        ("out.push('more')", "out.push('mo' + 're')", ""),
        ("setTimeout(r, 2)", "queueMicrotask(r)", "has not set timer 1"),
    ],
    ids=range(8),
)
async def test_another_script_is_found_out(place: World, before: str, after: str, said: str) -> None:
    code = (
        f"{TOOLS}const out = [];\nlet ready; const value = 0; ready = await answer({{ key: 'a', site: 1, ms: 1 }});\n"
        f"await new Promise((r) => setTimeout(r, 2)); out.push('more');{END}"
    )
    recording = await within(place.record(code))
    assert before in code
    response, differing = await within(place.replay(changed(recording, code.replace(before, after))))
    assert codes(response) == (["REPLAY_DIVERGED"] if said else []), response
    assert said in response.diagnostics[0].message if said else differing == []


async def test_divergence_names_the_place(place: World) -> None:
    code = f"{TOOLS}\n  await answer({{ key: 'a', site: 1, ms: 1 }});\n"
    recording = await within(place.record(code))
    response, _ = await within(place.replay(changed(recording, code.replace("site: 1", "site: 3"))))
    assert response.diagnostics[0].path == "script.js:3:9"
    polls = code.replace("  await", "for (let n = 0; n < 9; n++) Date.now(); await")
    response, _ = await within(place.replay(changed(recording, polls)))
    assert "it reads the clock more often" in response.diagnostics[0].message
    assert response.diagnostics[0].path == "script.js:3:34"


async def test_limits_of_another_release_are_told(place: World) -> None:
    recording = await within(place.record("1"))
    newer = replace(recording, made_by="9.9", limits=recording.limits | {"max_sockets": 1})
    with pytest.raises(UnreadableRecording, match=r"Cellblock 9.9 .* no limit 'max_sockets'"):
        await within(replay(newer))


@pytest.mark.parametrize("verdict", [Verdict.ACCEPTED, Verdict.DECLINED])
async def test_a_call_without_an_answer_is_asked_about(tmp_path: Path, verdict: Verdict) -> None:
    asked: list[str] = []

    async def approver(question: Question) -> Verdict:
        asked.append(question.tool_name)
        return verdict

    seen = tmp_path / "ledger"
    made = settings(tmp_path / "state", {"plain": plain_server("--ledger", seen)}, typecheck="off")
    code = 'import { echo, give } from "@codemode/servers/plain"; await echo({ a: 1 });'
    async with ready(made) as broker:
        journal = Journal()
        await within(broker.run_request({"code": code}, journal=journal))
    script = f"{code} globalThis.__codemode_result__ = await give({{ b: 2 }}).catch((error) => error.name);"
    found = await within(replay(journal.snapshot(), script=script, live=Live(made, Grantee("cli", approver))))
    assert (asked, found.missed) == (["give"], (2,))
    called = [event["tool"] for event in ledger(seen) if event.get("event") == "call"]
    is_made = verdict is Verdict.ACCEPTED
    assert found.response.result == ({"b": 2} if is_made else "ToolCallError")
    assert called == (["echo", "give"] if is_made else ["echo"])


async def test_a_run_is_cut_while_it_waits_and_goes_on_elsewhere(place: World) -> None:
    code = (
        f"{TOOLS}const first = await answer({{ key: 'p1', site: 1, ms: 1 }});\nconst noise = Math.random();\n"
        "const second = await answer({ key: 'p2', site: 2, ms: 60000 });\n"
        "globalThis.__codemode_result__ = [first.count, second, noise];"
    )
    journal = Journal()
    task = asyncio.create_task(place.live.run_request({"code": code}, journal=journal))
    await within(_asked(place, "p2"))
    recording = Recording.unpack(journal.snapshot().pack())
    await cancelled(task)
    assert [call.ok for call in recording.calls] == [True, None]
    assert recording.calls[1].certainty is Certainty.MAY_HAVE_RUN
    # Nobody knows whether it ran: the script is told.
    told = await within(place.resume(recording))
    assert "was under way when the run was interrupted" in str(told.response["diagnostics"][0]["message"])
    # Its answer has come meanwhile.
    answered = replace(
        recording, calls=[recording.calls[0], replace(recording.calls[1], ok=True, answer=b'"yes"')]
    )
    assert (await within(place.resume(answered))).response["result"][:2] == [1, "yes"]
    # It certainly was not made: it is made now.
    calls = [recording.calls[0], replace(recording.calls[1], certainty=Certainty.NOT_STARTED)]
    journal = Journal(replace(recording, calls=calls))
    task = asyncio.create_task(place.live.run_request(journal.request, journal=journal))
    await within(_asked(place, "p2", times=2))
    await cancelled(task)
    assert place.tools.ledger["p1"] == 1


async def _asked(place: World, key: str, times: int = 1) -> None:
    await until(lambda: place.tools.ledger[key] >= times, f"{key} was asked")


async def test_a_cut_run_keeps_its_randomness_and_waits_the_rest_of_its_timers(place: World) -> None:
    code = (
        f"{TOOLS}const out = [Math.random()]; setTimeout(() => out.push('timer'), 5);\n"
        "const one = await answer({ key: 'k1', site: 1, ms: 1 }); out.push(one.key, Math.random());\n"
        f"await answer({{ key: 'k2', site: 2, ms: 0 }}); await new Promise((r) => setTimeout(r, 8));{END}"
    )
    whole = await within(place.record(code))
    part = next(cut for cut in cuts(whole) if cut.events.endswith("a1"))
    resumed = await within(place.resume(part))
    assert resumed.response["result"] == whole.response["result"]
    response, differing = await within(place.replay(resumed))
    assert (codes(response), differing) == ([], [])


async def test_a_run_that_is_cut_at_a_reading_of_the_clock_goes_on(place: World) -> None:
    code = (
        f"{TOOLS}const out = [Date.now()]; await answer({{ key: 'c1', site: 1, ms: 3 }});\n"
        f"out.push(Date.now()); while (Date.now() < out[1] + 3); out.push(Date.now());{END}"
    )
    whole = await within(place.record(code))
    parts = [cut for cut in cuts(whole) if pieces(cut.events)[-1].startswith("c")]
    assert len(parts) >= 3, whole.events
    for part in parts:
        resumed = await within(place.resume(part))
        assert resumed.ended == "finished" and resumed.events.startswith(part.events), (part, resumed)
        assert (await within(place.replay(resumed)))[1] == []
    assert place.tools.ledger["c1"] == 1 + sum("a1" not in part.events for part in parts)


@pytest.mark.parametrize(
    "code",
    [
        "Promise.prototype.then = () => 1; Promise.resolve = Promise.all = null; Promise.prototype.finally = 3;",
        "Object.prototype.events = 'a1'; Object.prototype.next = {}; Object.prototype.kind = 't';",
        "Map.prototype.get = Map.prototype.set = Map.prototype.delete = () => 5; "
        "String.prototype.charCodeAt = () => 97;",
        "Object.defineProperty(Object.prototype, 'go', { set() { throw 1; } }); Array.prototype.push = () => 0;",
        "globalThis.Date = globalThis.setTimeout = globalThis.Math = undefined;",
        "Date.now = () => 5; Math.random = () => 5; performance.now = () => 5; Temporal.Now.instant = () => 5;",
        "setTimeout = null; Uint8Array.prototype.set = () => 0; Uint32Array.prototype = 0;",
    ],
    ids=range(7),
)
async def test_a_script_that_tampers_is_recorded_as_it_is(place: World, code: str) -> None:
    text = (
        f"{TOOLS}const {{ setTimeout: later }} = globalThis;\n{code}\n"
        "const [a, b] = [answer({ key: 't', site: 1, ms: 2 }), answer({ key: 'u', site: 2, ms: 1 })];\n"
        "const out = [(await b).key, (await a).key, crypto.randomUUID()];\n"
        f"await new Promise((r) => later(r, 2));{END}"
    )
    recording, response = await both(place, text)
    assert recording.ended == "finished"
    assert response.result is not None or codes(response)


async def test_who_ran_it_under_which_grants_is_recorded(place: World) -> None:
    journal = Journal()
    request = {"code": "1", "grants": {"tools": ["local.answer"]}}
    await within(place.live.run_request(request, Caller(grantee=Grantee("team:ci")), journal=journal))
    recording = Recording.unpack(journal.snapshot().pack())
    assert recording.principal == "team:ci"
    assert [grant["tools"] for grant in recording.grants] == [["local.answer"]]


async def test_snapshots_need_a_run_that_has_begun(place: World) -> None:
    journal = Journal()
    with pytest.raises(ValueError, match="has not begun"):
        journal.snapshot()
    response = await within(place.live.run_request({"code": "import 'nowhere';"}, journal=journal))
    assert codes(response) == ["IMPORT_FAILURE"]
    with pytest.raises(ValueError, match="has not begun"):
        journal.snapshot()


FOUR_SERVERS = """import { read_text_file, write_file } from "@codemode/servers/files";
import { git_log } from "@codemode/servers/git";
import { create_entities, read_graph } from "@codemode/servers/memory";
import { echo, get_structured_content } from "@codemode/servers/everything";
const [text, log, weather] = await Promise.all([
  read_text_file({ path: `FOLDER/hello.txt` }),
  git_log({ repo_path: `REPOSITORY`, max_count: 3 }),
  get_structured_content({ location: "New York" }),
]);
console.log(JSON.stringify(text).length, new Date().getFullYear() > 2000);
await create_entities({ entities: [{ name: crypto.randomUUID(), entityType: "apple", observations: ["one"] }] });
const path = `FOLDER/${crypto.randomUUID()}.txt`;
await write_file({ path, content: JSON.stringify(log) });
const said = await Promise.race([echo({ message: path }), read_graph()]);
globalThis.__codemode_result__ = { text, weather, said, graph: await read_graph() };
"""


def changed_at(folder: Path, file: Path) -> dict[str, int]:
    """When each file was written last: both servers write anew what they are told again."""
    return {one.name: one.stat().st_mtime_ns for one in [*folder.iterdir(), file]}


@pytest.mark.servers
@pytest.mark.thorough
async def test_runs_with_real_servers_are_replayed_and_gone_on_with(
    server_filesystem: ServerEntry,
    server_git: ServerEntry,
    server_memory: ServerEntry,
    server_everything: ServerEntry,
    git_repository: Path,
    tmp_path: Path,
) -> None:
    folder = Path(server_filesystem["args"][-1])
    code = FOUR_SERVERS.replace("FOLDER", str(folder)).replace("REPOSITORY", str(git_repository))
    servers: dict[str, Any] = {
        "files": server_filesystem,
        "git": server_git,
        "memory": server_memory,
        "everything": server_everything,
    }
    async with ready(settings(tmp_path / "state", servers, typecheck="off")) as broker:
        journal = Journal()
        response = await within(broker.run_request({"code": code}, journal=journal))
        assert response.ok, response.diagnostics
        recording = journal.snapshot()
        assert (await within(replay(recording))).differences == []
        before = changed_at(folder, tmp_path / "memory.jsonl")
        # At a cut after the write: what was written is not written again, and the rest is called.
        written = next(call.id for call in recording.calls if call.tool == "write_file")
        part = next(cut for cut in cuts(recording) if cut.events.endswith(f"a{written}"))
        resumed = Journal(part)
        response = await within(broker.run_request(resumed.request, journal=resumed))
        assert response.ok, response.diagnostics
        assert changed_at(folder, tmp_path / "memory.jsonl") == before
    assert (await within(replay(resumed.snapshot()))).differences == []


ROUNDS = 6
WRITES = """import { edit_file } from "@codemode/servers/files";
import { create_entities } from "@codemode/servers/memory";
const told = {};
const write = async (name, call) => {
  try {
    await call();
    told[name] = "made";
  } catch (error) {
    told[name] = error.certainty;
  }
};
for (let round = 0; round < ROUNDS; round++) {
  const [entity, line] = [`entity ${round};`, `line ${round};`];
  await Promise.all([
    write(entity, () => create_entities({ entities: [{ name: entity, entityType: "e", observations: [] }] })),
    write(line, () => edit_file({ path: `FOLDER/lines.txt`, edits: [{ oldText: "END", newText: `${line}\\nEND` }] })),
  ]);
}
globalThis.__codemode_result__ = told;
"""
"""Both servers write at once. A line that is written again stands there twice; of an entity only what came tells it."""

BROKER = """
import asyncio, json, sys
from pathlib import Path
from cellblock import Broker
from support.entries import settings

async def main():
    folder = Path(sys.argv[1])
    servers = json.loads((folder / "servers.json").read_text())
    async with Broker(settings(folder / "s", servers, auth={"keyring": "off"}, typecheck="off")) as broker:
        await broker.settled()
        await broker.run((folder / "script.js").read_text(), durable=True)

asyncio.run(main())
"""


def noting(entry: ServerEntry, ledger: Path) -> ServerEntry:
    """A server before which stands what writes down all that comes to it."""
    words = shlex.join([entry["command"], *entry["args"]])
    return {**entry, "command": "sh", "args": ["-c", f"tee -a {shlex.quote(str(ledger))} | {words}"]}


def came(ledger: Path) -> Counter[str]:
    """How often each call has come to its server, by the name that its script gave it."""
    found: Counter[str] = Counter()
    for line in ledger.read_text().splitlines() if ledger.exists() else ():
        # The last one may be cut off by a death.
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if message.get("method") == "tools/call":
                arguments = message["params"]["arguments"]
                text = (
                    arguments["entities"][0]["name"]
                    if "entities" in arguments
                    else arguments["edits"][0]["newText"]
                )
                found[text.partition(";")[0] + ";"] += 1
    return found


@pytest.mark.servers
async def test_real_servers_are_called_once_whoever_dies(
    server_filesystem: ServerEntry,
    server_memory: ServerEntry,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    for number in range(pytestconfig.getoption("--deaths")):
        folder = tmp_path / str(number)
        folder.mkdir()
        await _survives(server_filesystem, server_memory, folder, random.Random(number))


async def _survives(files: ServerEntry, memory: ServerEntry, folder: Path, chance: random.Random) -> None:
    """The first broker is killed with all below it, then the host of the second one; each at any call."""
    root, ledger, graph = Path(files["args"][-1]), folder / "came.jsonl", folder / "memory.jsonl"
    (root / "lines.txt").write_text("END\n")
    servers: dict[str, Any] = {
        "files": noting(files, ledger),
        "memory": noting({**memory, "env": {"MEMORY_FILE_PATH": str(graph)}}, ledger),
    }
    (folder / "servers.json").write_text(json.dumps(servers))
    code = WRITES.replace("ROUNDS", str(ROUNDS)).replace("FOLDER", str(root))
    (folder / "script.js").write_text(code)
    first, second = sorted(chance.sample(range(1, 2 * ROUNDS), 2))
    words = ("-c", BROKER, folder)
    process = await started(*words, program=forked_python(), cwd=Path(__file__).parents[1])
    await until(lambda: came(ledger).total() >= first, f"{first} calls have come")
    kill_family(process.pid)
    await within(process.wait())
    async with Broker(settings(folder / "s", servers, auth={"keyring": "off"}, typecheck="off")) as broker:
        await until(lambda: came(ledger).total() >= second, f"{second} calls have come")
        host_of(broker).kill()
        (head,) = await broker.keeper.recent()
        response = await within(broker.parked_runs.outcome(head["id"]), 60)
    assert isinstance(response, RunResponse) and response.ok, response
    _judge(response.result, came(ledger), (root / "lines.txt").read_text(), graph.read_text())


def _judge(told: dict[str, str], calls: Counter[str], lines: str, graph: str) -> None:
    """What the script was told is what has come to the servers, and what they have written."""
    assert len(told) == 2 * ROUNDS and calls.keys() <= told.keys(), (told, calls)
    bounds = {"made": (1, 1), "completed": (1, 1), "may_have_run": (0, 1), "not_started": (0, 0)}
    for name, word in told.items():
        least, most = bounds[word]
        assert least <= calls[name] <= most, (name, word, calls)
        written = lines.count(name) + graph.count(json.dumps(name))
        assert written <= 1 and (written == 1 or word != "made"), (name, word, lines, graph)
