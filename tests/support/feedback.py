"""Scripts and commands for each sentence of what wrong scripts, and tools that are not as declared, are told; what
Cellblock answers them, asked over `serve --stdio`, as clients do; and the page of that,
tests/fixtures/model-feedback.md.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult

from support import commands
from support.entries import SERVERS
from support.http_daemon import TOOL
from support.waits import until_found

MAX_RESULT_CHARS: Final = 250
_DATE: Final = re.compile(r"\b20\d\d-\d\d-\d\d(?: \d\d:\d\d UTC)?\b")


@dataclass(frozen=True, slots=True)
class World:
    """Servers and settings that cases share, with the state that they leave for each other."""

    servers: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sections of `cellblock`."""

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """More files of the working folder, by name."""


@dataclass(frozen=True, slots=True)
class Case:
    """One script, or one command, and the sentence that it shows."""

    world: str
    script: str
    """Without the imports of servers whose ids it has before a dot; or the words of a command, after `cellblock`."""

    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More members of the request."""

    before: Sequence[str] = ()
    """Scripts that run before it, in the same session."""

    as_is: bool = False
    """Whether nothing is imported for it."""

    shows: Literal["response", "message"] = "response"
    """What of the answer counts: the response, or `isError` and how the text begins."""

    until: str = ""
    """A regular expression of the result that is waited for: results are looked at when nothing else is to do."""

    is_command: bool = False
    only: str = ""
    """A regular expression of the lines of a command's output that count; all by default."""

    after: str = ""
    """What ran before it, in words."""


def answers(cellblock: str, worlds: Mapping[str, World], cases: Sequence[Case], folder: Path) -> list[str]:
    """What is answered each case, as one Markdown line.

    Args:
        cellblock: The program.
        worlds: By name.
        cases: In the order in which they are asked, world by world.
        folder: For configurations and state.
    """
    said: dict[int, str] = {}
    for name, world in worlds.items():
        own = {number: case for number, case in enumerate(cases) if case.world == name}
        said |= asyncio.run(_said_in(cellblock, folder / name, world, own))
    return [said[number] for number in range(len(cases))]


async def _said_in(cellblock: str, here: Path, world: World, cases: Mapping[int, Case]) -> dict[int, str]:
    """Asks in one world: scripts first, in one session, then commands."""
    (here / "overlays").mkdir(parents=True)
    for name, text in world.files.items():
        (here / name).write_text(text, "utf-8")
    section = {
        "pool": {"warm": 0},
        "typecheck_timeout_ms": 60_000,
        **world.settings,
        "schemas": {"overlays": str(here / "overlays"), **world.settings.get("schemas", {})},
    }
    config = here / "cellblock.json"
    config.write_text(json.dumps({"mcpServers": dict(world.servers), "cellblock": section}), "utf-8")
    place = ["--config", str(config), "--state-dir", str(here / "state")]
    environment = {**os.environ, "PYTHONPATH": str(here), "NO_COLOR": "1"}
    serve = StdioServerParameters(command=cellblock, args=["serve", "--stdio", *place], env=environment)
    said: dict[int, str] = {}
    async with Client(serve, mode="legacy") as client:
        for number, case in cases.items():
            if not case.is_command:
                said[number] = await _script(client, world, case)
    for number, case in cases.items():
        if case.is_command:
            words = (*case.script.split(), *place)
            done = await commands.cellblock(*words, program=Path(cellblock), env=environment, cwd=here)
            said[number] = _command(case, done.out, done.err, here)
    return said


async def _script(client: Client, world: World, case: Case) -> str:
    for code in case.before:
        await client.call_tool(TOOL, {"code": code, "limits": {"maxToolCalls": 1000}})
    asked = {"code": case.script if case.as_is else _imports(world, case.script) + case.script, **case.limits}
    found: list[CallToolResult] = []

    async def is_there() -> object:
        found.append(await client.call_tool(TOOL, asked))
        return re.search(case.until, json.dumps((found[-1].structured_content or {}).get("result")))

    await until_found(is_there, f"{case.script} comes to {case.until}", 60.0, pause=0.2)
    return _opening(found[-1]) if case.shows == "message" else _response(found[-1].structured_content or {})


def _imports(world: World, script: str) -> str:
    servers = [*world.servers, *(["local"] if "tools" in world.settings else [])]
    named = [name for name in servers if re.search(rf"\b{name}\.", script)]
    return "".join(f'import * as {name} from "@codemode/servers/{name}";\n' for name in named)


def _command(case: Case, out: str, errors: str, folder: Path) -> str:
    if case.script.startswith("run "):
        return _response(json.loads(out))
    lines = [line for line in (out + errors).splitlines() if re.search(case.only or r"\S", line)]
    told = [line.replace(f"{folder}/", "") for line in lines]
    return _escaped("\n".join(_DATE.sub("YYYY-MM-DD", line) for line in told)) or "(nothing)"


def _response(response: Mapping[str, Any]) -> str:
    """The result, and each diagnostic with its hint."""
    parts = [code_cell(json.dumps(response["result"], ensure_ascii=False))]
    for found in response["diagnostics"]:
        place = f" at {found['path']}" if found.get("path") else ""
        kind = f" ({found['errorClass']})" if found.get("errorClass") else ""
        hint = f" *{_escaped(found['hint'])}*" if found.get("hint") else ""
        parts.append(
            f"**{found['severity']}** `{found['code']}`{kind}{_escaped(place)}: {_escaped(found['message'])}{hint}"
        )
    return "<br>".join(parts)


def _opening(result: CallToolResult) -> str:
    """`isError`, and how the text begins that models are shown."""
    (text, *_) = result.content
    return f"`isError: {json.dumps(bool(result.is_error))}`; the text begins {code_cell(text.text[:120])}"


def code_cell(text: str) -> str:
    """A text as code in a cell of a table."""
    text = _DATE.sub("YYYY-MM-DD", text)
    text = text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + "…"
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{_cell(text)}{ticks}"


def _escaped(text: str) -> str:
    """A text for a cell: as it is where it is code, else with what Markdown would read escaped."""
    pieces = _DATE.sub("YYYY-MM-DD", text).split("`")
    if len(pieces) % 2 == 0:
        pieces = ["'".join(pieces)]
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([*_\[\]\\])", r"\\\1", pieces[at]).replace("<", "&lt;")
    return _cell("`".join(pieces))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


ROOT: Final = SERVERS.parents[1]
TRACKER: Final = {
    "command": sys.executable,
    "args": ["-I", str(ROOT / "broker" / "cellblock" / "app" / "cli" / "demo" / "tracker.py")],
}

TEXT: Final = {"type": "string"}
STATUS: Final = {
    "type": "object",
    "properties": {"status": {"enum": ["open", "closed"]}},
    "required": ["status"],
}
PAGE: Final = {
    "type": "object",
    "properties": {"issues": {"type": "array", "items": {"type": "object"}}},
    "required": ["issues"],
}
PERSON: Final = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
EVENT: Final = {
    "type": "object",
    "properties": {"start_date": TEXT, "start_time": TEXT},
    "required": ["start_date", "start_time"],
}
ROWS: Final = [{"id": 1, "title": "first"}, {"id": 2, "title": "second"}]
TAGS: Final = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": TEXT, "minItems": 1}},
    "required": ["tags"],
}


def _structured(value: Any) -> dict[str, Any]:
    return {"content": [], "structuredContent": value}


def _text(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


TOOLS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "rows": ({}, _text(ROWS)),
    "record": ({}, _text(ROWS[0])),
    "page": ({"outputSchema": PAGE}, _text({"issues": ROWS})),
    "ticket": ({"outputSchema": STATUS}, _structured({"status": "open"})),
    "person": ({"outputSchema": PERSON}, _structured({"name": "Ada"})),
    "nicknamed": ({"outputSchema": PERSON}, _structured({"name": "Ada", "nickname": "A"})),
    "member": ({"outputSchema": {**PERSON, "additionalProperties": False}}, _structured({"name": "Ada"})),
    "tag": ({"inputSchema": TAGS}, _text("tagged")),
    "list": ({}, _structured([1, 2])),
    "number": ({}, _structured(3)),
    "event": ({"outputSchema": EVENT}, _structured({"start_date": "a", "start_time": "b"})),
    "nothing": ({}, _structured(None)),
    "widget": ({}, {"content": [{"type": "widget", "data": 1}]}),
}
"""What the server `texts` lists and answers; the members of `outputSchema` are as the tool declares them."""


def _defined(folder: Path, name: str, tools: list[dict[str, Any]], answers: dict[str, Any]) -> dict[str, Any]:
    """The entry of a server with these tools, which answers with these results, else with its input as JSON text."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"pages": [tools], "answers": answers}), "utf-8")
    return _plain_server("--definitions", str(file))


def _plain_server(*arguments: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(SERVERS / "plain_server.py"), *arguments]}


def _recorded(folder: Path, name: str, answers: dict[str, Any]) -> dict[str, Any]:
    tools = json.loads((ROOT / "tests/fixtures/catalogs" / f"{name}.json").read_text("utf-8"))["tools"]
    return _defined(folder, name, tools, answers)


NOW: Final = {
    "timezone": "UTC",
    "datetime": "2026-11-24T03:00:00+00:00",
    "day_of_week": "Tuesday",
    "is_dst": False,
}
DONE: Final = _structured({"content": "Successfully wrote to /a.txt"})

ADDRESSES: Final = """\
from pydantic import EmailStr

from cellblock import tool


@tool()
def invite(address: EmailStr) -> str:
    return address
"""

LOCAL_TYPES: Final = """\
from dataclasses import dataclass

from cellblock import tool


def made():
    @dataclass
    class Line:
        text: str

    @dataclass
    class Page:
        lines: list[Line]

    @tool()
    def print_page(page: Page) -> int:
        return len(page.lines)

    return print_page


print_page = made()
"""

OVERLAY: Final = """\
[tools.give]
output = '{"type": "array"}'
examples = '[{"input": 7}]'

[tools.giv]
class = "read"
"""


LEARN: Final = {
    **{name: {"learn": True} for name in ("faded", "turns", "given", "pages")},
    "parsed": {"unwrap": "json"},
}
"""What is learnt of a tool would otherwise depend on when its results are looked at."""


def worlds(folder: Path) -> dict[str, World]:
    """The worlds of the cases; `folder` gets files for their servers."""
    tools = [{"name": name, "inputSchema": {"type": "object"}, **more} for name, (more, _) in TOOLS.items()]
    texts = _defined(folder, "texts", tools, {name: answer for name, (_, answer) in TOOLS.items()})
    servers = {
        "tracker": TRACKER,
        "files": _recorded(folder, "filesystem", {"write_file": DONE, "edit_file": DONE}),
        "time": _recorded(folder, "time", {"get_current_time": _structured(NOW)}),
        "git": _recorded(folder, "git", {}),
        "texts": texts,
        "pages": texts,
        "early": {**texts, "args": [*texts["args"], "--protocol", "2024-11-05"]},
        "old": _plain_server("--protocol", "2024-11-05", "--unversioned"),
    }
    return {
        "all": World(
            {**servers, **dict.fromkeys(("plain", "parsed", "faded", "turns", "given"), _plain_server())},
            {"schemas": {"learn": False, "servers": LEARN}, "tools": ["local_types"]},
            files={
                "broken.js": "const a = 1;\nnull.x;\n",
                "local_types.py": LOCAL_TYPES,
                "overlays/given.toml": OVERLAY,
                "overlays/givem.toml": "",
            },
        ),
        "strict": World({"texts": texts}, {"frontend": {"profile": "strict", "is_error": "diagnostics"}}),
        "email": World(
            {},
            {"tools": ["addresses"]},
            files={"addresses.py": ADDRESSES, "email_validator.py": "raise ImportError"},
        ),
    }


def _all(*scripts: str, **more: Any) -> list[Case]:
    return [Case("all", script, **more) for script in scripts]


def _result(value: str) -> str:
    return f"globalThis.__codemode_result__ = {value};"


BEFORE: Final = {"typecheck": "before"}

A: Final = "await SERVER.give({ title: 'a' });"
B: Final = "await SERVER.give({ name: 'b', id: 1 });"


def _shown(server: str, tool: str) -> str:
    """A script that says what agents are told of a tool's output."""
    asked = f"(await getTool('{server}', '{tool}')).outputSchema"
    return f'import {{ getTool }} from "@codemode/discovery"; {_result(asked)}'


def _learnt(server: str, after: str, until: str, *calls: str) -> Case:
    """What agents are told of a tool once these calls were looked at."""
    head = f'import * as {server} from "@codemode/servers/{server}"; '
    before = [head + each.replace("SERVER", server) for each in calls]
    script = (
        'import { getTool } from "@codemode/discovery"; '
        f"const {{ properties, required = [] }} = (await getTool('{server}', 'give')).outputSchema; "
        + _result("{ fields: Object.keys(properties), always: required }")
    )
    return Case("all", script, before=before, after=after, until=until)


def _times(number: int, calls: str) -> str:
    return f"for (let n = 0; n < {number}; n++) {{ {calls} }}"


CASES: Final[dict[str, dict[str, list[Case]]]] = {
    "Wrong scripts are loud": {
        "An input with a key that the schema does not declare, in the call's own literal, runs and brings a warning "
        "with the near miss or the declared keys.": _all(
            _result('(await tracker.list_issues({ state: "open", lable: "bug" })).issues.length'),
            _result("await files.write_file({ path: '/a.txt', content: 'x', append: true })"),
            _result("await files.edit_file({ path: '/a.txt', edits: [], dry_run: true })"),
        ),
        "However the tool is reached.": _all(
            'import * as tracker from "@codemode/servers/tracker"; const { list_issues } = tracker; '
            + _result("(await list_issues({ lable: 'bug' })).issues.length"),
            'import * as tracker from "@codemode/servers/tracker"; '
            + _result("(await tracker['list_issues']({ lable: 'bug' })).issues.length"),
            'const { list_issues: list } = await import("@codemode/servers/tracker"); '
            + _result("(await list({ lable: 'bug' })).issues.length"),
            as_is=True,
        ),
        "Whole objects and spreads that are passed on are quiet.": _all(
            "const { issues } = await tracker.list_issues({ limit: 1 }); "
            + _result("(await tracker.get_issue(issues[0])).id"),
            "const all = { status: 'open', mine: 1 }; "
            + _result("(await tracker.list_issues({ ...all })).issues.length"),
        ),
        'With `typecheck: "before"` a slip refuses the script; what an open schema allows does not.': _all(
            _result('await tracker.list_issues({ status: "open", lable: "bug" })'),
            _result('(await tracker.list_issues({ state: "open" })).issues.length'),
            limits=BEFORE,
        ),
        "A read of a field that the declared, given or observed output does not have brings a warning with the nearest "
        "field, also for open schemas and when the script succeeds.": _all(
            _result("(await tracker.list_issues({})).issues.filter((i) => i.asignee === 'mira').length"),
            _result("[(await time.get_current_time({ timezone: 'UTC' })).dateTime]"),
        ),
        "On success only if no result of this run had the field.": _all(
            _result("[(await texts.nicknamed({})).nickname]"),
            _result("[(await texts.person({})).nickname]"),
        ),
        "A later finding comes with that client's next response; none waits longer than 30 ms; a "
        "repeated script costs nothing.": [],
        "What is legitimate is neither told nor, under `before`, refused.": _all(
            "const r = await texts.member({}); " + _result("r.title ? r.title : r.name"),
            "const r = await texts.member({}); "
            + _result("[r.a && r.a.b, r.c ?? 1, r.d?.e, r.f === undefined, 'g' in r]"),
            "const r = await texts.member({}); "
            + _result("[typeof r.f === 'function' ? r.f() : 1, Object.hasOwn(r, 'h') ? r.h : 2]"),
            "const { title = 'none', due: until = '' } = await texts.member({}); "
            + _result("[title, until]"),
            "const r = await texts.member({}); Object.assign(r, { seen: true }); " + _result("r.seen"),
            "const tags = ['a', 'b'].map((tag) => tag.trim()); " + _result("await texts.tag({ tags })"),
            limits=BEFORE,
        ),
        "JSON text used as if it were parsed gives the `JSON.parse` hint.": _all(
            _result("(await texts.rows({})).map((row) => row.id)"),
            "let n = 0; for (const row of await texts.rows({})) n++; " + _result("n"),
            _result("[(await texts.record({})).title]"),
        ),
        "Behind guards too, which say nothing of texts, and by its characters.": _all(
            "const r = await texts.record({}); " + _result("[(r.labels ?? []).length, r.title ? 1 : 2]"),
            "const { title = 'none' } = await texts.record({}); " + _result("title"),
            "const keys = []; for (const key in await texts.rows({})) keys.push(key); "
            + _result("keys.length"),
            "const rows = await texts.rows({}); " + _result("[rows[0]]"),
        ),
        "The hint is of the text that was misused, and of no other.": _all(
            "const rows = await texts.rows({}); console.log(rows.length); const x = {}; x.foo();"
        ),
        "Also when the tool declares an object or array and really answers text; then the declaration says what "
        "scripts get, with both facts.": [
            *_all(_result("(await pages.page({})).issues.length")),
            *_all(_shown("pages", "page"), until="Declared"),
        ],
        "And before the run, where results were learnt from.": _all(
            _result("(await pages.page({})).issues.length"), limits=BEFORE
        ),
        "A script that assigned nothing gets `NO_RESULT` with the one-line fix, an info when it logged.": _all(
            "const count = (await tracker.list_issues({})).issues.length;",
            "const count = (await tracker.list_issues({})).issues.length; console.log(count);",
            "const __codemode_result__ = (await tracker.list_issues({})).issues.length;",
        ),
        "Conventions from elsewhere work, and 3.2.2's assignment wins over them.": _all(
            "export default (await tracker.list_issues({})).issues.length;",
            "export default async function main() { return (await tracker.list_issues({})).issues.length; }",
            "async () => { return (await tracker.list_issues({})).issues.length; }",
            "const { issues } = await tracker.list_issues({}); return issues.length;",
            _result("'assigned'") + " export default 'exported';",
        ),
        '`frontend.profile: "strict"` turns them off.': [
            Case("strict", "export default 1;"),
            Case("strict", "return 1;"),
        ],
        '`frontend.is_error: "never"` is the default; a failed run\'s text begins with its error.': _all(
            "null.x", shows="message"
        ),
        '`frontend.is_error: "diagnostics"`.': [Case("strict", "null.x", shows="message")],
        '"Did you mean" never offers what does not fit the type.': _all(
            "const { issues } = await tracker.list_issues({}); " + _result("issues.rows.length"),
        ),
        "An undeclared identifier that is a connected server's id says how to import it.": _all(
            "await git.git_log({ repo_path: '/r' });", as_is=True
        ),
        "Hints do not change from run to run with the order of members.": [],
        "A guess that is wrong as often as right is a list.": _all(_result("(await texts.event({})).start")),
        "`Buffer`, `node:timers`, `fetch` and their like name what stands in their place.": _all(
            "Buffer.from('a');",
            "import { setTimeout } from 'node:timers';",
            "await fetch('https://example.com');",
        ),
        "A comparison with a value that the declared enum does not have is told.": _all(
            _result("(await texts.ticket({})).status === 'Closed' ? 1 : 0")
        ),
        "`RESULT_NOT_JSON` names the field that was undefined.": _all(
            "const r = await texts.person({}); " + _result("{ name: r.name, mail: r['ma' + 'il'] }")
        ),
        "A missing `await` is told from the script, not by a race.": _all(
            "texts.person({}); " + _result("1"),
            _result("texts.person({}).name"),
            "const out = []; [1, 2].forEach(async () => { out.push(await texts.person({})); }); "
            + _result("out"),
            _result("[1, 2].map(async () => (await texts.person({})).name)"),
            "void texts.person({}); " + _result("1"),
        ),
        "`received` uses JavaScript's type names.": _all(
            "await files.write_file({ path: 3, content: null });"
        ),
        "A missing named import has an `errorClass`.": _all(
            'import { git_lgo } from "@codemode/servers/git"; git_lgo;', as_is=True
        ),
        "Paths name the file that was run.": [Case("all", "run broken.js", is_command=True)],
        "A server without `serverInfo.version` connects.": [Case("all", _result("await old.echo({ a: 1 })"))],
        'A JSON-RPC "Unauthorized" of a stdio server is an authentication error.': [
            Case("all", "await plain.refuse({ code: -32001, message: 'Unauthorized' });")
        ],
    },
    "Knowledge that does not lie": {
        "Observations decay by count and time; after 50 results of another shape the type is the new one: 1 × A, then "
        "426 × B.": [
            _learnt("faded", "1 × A, 48 × B.", '"name"', A, _times(48, B)),
            _learnt("faded", "378 × B more.", r'\["name', *[_times(126, B)] * 3),
        ],
        "The old one is a note.": [Case("all", "schemas diff faded give", is_command=True)],
        "Alternating shapes do not flap: they are one change.": [
            _learnt("turns", "200 × A, B.", '"name"', *[_times(100, A + B)] * 2),
            Case("all", "schemas diff turns give", is_command=True),
        ],
        '`unwrap: "json"` parses up to `max_message_bytes` and 512 levels, or throws.': [
            Case("all", nested)
            for nested in (
                _result(
                    "typeof (await parsed.raw({ text: '\"result\":' + JSON.stringify({ content: [{ type: 'text', text: "
                    f"{made} }}] }}) }}))"
                )
                for made in (
                    "'[\"' + 'x'.repeat(5 << 20) + '\"]'",
                    "'['.repeat(512) + ']'.repeat(512)",
                    "'['.repeat(513) + ']'.repeat(513)",
                )
            )
        ],
        "Skipped samples are counted in both modes.": [],
        "Array, scalar and null `structuredContent`, and unknown block types, reach the script.": [
            Case("all", _result(f"await {server}.{name}({{}})"))
            for server in ("texts", "early")
            for name in ("list", "number", "nothing", "widget")
        ],
        "Overlays: what is unknown, does not fit or is contradicted is told by `doctor`, `config check` and `schemas "
        "diff`, with place and count.": [
            Case("all", _result("await given.give({ a: 1 })")),
            Case("all", "config check", is_command=True),
            Case("all", "schemas diff given give", is_command=True),
            Case("all", "doctor", is_command=True, only=r"\.toml"),
        ],
        "`EmailStr` and other types that need an extra: the error names the extra.": [
            Case("email", "types local", is_command=True, only="invite")
        ],
        "Local types that refer to local types resolve under `from __future__ import annotations`.": [
            Case("all", "await local.print_page({ page: { lines: [{ txt: 1 }] } });")
        ],
    },
}
"""By part of the issue and sentence. What no single response shows has no case, and a test beside it on the page."""

TESTS: Final = {
    "A later finding": "tests/unit/broker/cellblock/run/test_side_checks.py",
    "Hints do not": "tests/unit/broker/cellblock/types/check/test_likely.py",
    "Skipped samples": "tests/integration/test_odd_servers.py",
}
"""By how a sentence without a case begins: the test that shows it."""


def all_cases() -> list[Case]:
    """Every case, in the order of the page."""
    return [case for part in CASES.values() for cases in part.values() for case in cases]


MODEL_FEEDBACK: Final = ROOT / "tests" / "fixtures" / "model-feedback.md"

HEAD: Final = """\
<!-- Generated by scripts/bench feedback --write: do not edit. -->

# What a model is told

What Cellblock answers to wrong scripts and commands: the result, then each diagnostic with its hint in italics. Each
sentence in bold says what the answers below it must show. `tests/e2e/test_model_feedback.py` sends all of them over
`cellblock serve --stdio`, and compares.

The scripts are shown without the imports of servers. Responses waited for the type check, however long it took.
`tracker` is the demo's server. `files`, `time` and `git` list the recorded tools of three public servers, and answer in
their form. `texts`, `pages` (of which results are learnt) and `early` (which speaks MCP 2024-11-05) answer as their
tools' names say. All other servers return their input: `parsed` with `unwrap: "json"`, `given` with a wrong overlay.
"""


def page(answers: Sequence[str]) -> str:
    """The text, with the answers in the order of `all_cases`."""
    parts, rest = [HEAD], iter(answers)
    for part, sentences in CASES.items():
        parts.append(f"## {part}\n")
        for sentence, cases in sentences.items():
            parts.append(f"**{sentence}**\n")
            if cases:
                rows = [f"| {_asked(case)} | {next(rest)} |" for case in cases]
                parts.append("\n".join(["| asked | answered |", "|---|---|", *rows]) + "\n")
            else:
                (test,) = (name for start, name in TESTS.items() if sentence.startswith(start))
                parts.append(f"No single response shows it: `{test}`.\n")
    return "\n".join(parts)


def _asked(case: Case) -> str:
    if case.is_command:
        return code_cell(f"cellblock {case.script}")
    also = ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in case.limits.items())
    earlier = f"{case.after} Then: " if case.after else ""
    return f"{earlier}{code_cell(case.script)}{f' with {also}' if also else ''}"
