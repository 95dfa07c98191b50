"""Scripts as agents write them: right ones, and each of those with one mistake.

The tools of one server answer in the forms that real servers have: structured content, a JSON text, a plain text. The
scripts are put together from that by chance, from a seed. Places where a mistake can be made are marked in a template:
`⟦f:title⟧` a field, `⟦k:label⟧` a key of an input, `⟦e:open⟧` a value of a declared enum, `⟦p⟧…⟦/p⟧` a text that is
parsed. All end with the assignment of the result.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cellblock.script.conventions import MAX_SHOWN
from support.brokers import ready
from support.entries import plain_server, settings
from support.script_templates import IMPORTS, OF_ENUM, OF_LIST, OF_OBJECT, OF_TEXT

SERVER: Final = "kept"

MISTAKES: Final = {
    "field": "⟦f:",
    "argument": "⟦k:",
    "parse": "⟦p⟧",
    "enum": "⟦e:",
    "result": "",
    "await": "⟦w⟧",
}
"""By what each is made at in a template."""

_MARK = re.compile(r"⟦([fke]):([^⟧]+)⟧")
_RESULT = "globalThis.__codemode_result__ = "
_NAMED = re.compile(r"^(?:const|let) (\w+) =", re.MULTILINE)
_WAITED = re.compile(r"⟦w⟧await Promise\.all\((.*?)\)⟦/w⟧", re.DOTALL)
_PARSED = re.compile(r"⟦p⟧JSON\.parse\((.*?)\)⟦/p⟧", re.DOTALL)

_FIELDS = (
    ("id", 7),
    ("title", "Login fails"),
    ("status", "open"),
    ("assignee", "mira"),
    ("createdAt", "2026-11-02"),
    ("due_date", "2026-12-01"),
    ("priority", 2),
    ("labels", ["bug"]),
    ("description", "It does not work."),
    ("owner", {"name": "Ada", "email": "ada@example.org"}),
    ("path", "notes/a.md"),
    ("size", 1024),
)
_ENUMS: tuple[tuple[str, list[str]], ...] = (
    ("status", ["open", "in_progress", "closed"]),
    ("state", ["OPEN", "CLOSED", "MERGED"]),
    ("severity", ["low", "medium", "high", "critical"]),
    ("kind", ["issue", "pull-request", "draft"]),
    (
        "phase",
        [
            f"{step}_{part}"
            for step in ("plan", "build", "test", "ship")
            for part in ("new", "doing", "held", "done")
        ],
    ),
)
_LISTS = ("items", "results", "issues", "entries", "records", "messages")


_TYPES = {int: "integer", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool, with an input that fits and the answer that it gives."""

    name: str
    definition: dict[str, Any]
    input: dict[str, Any]
    value: Any
    """What a script gets, once it has parsed it."""

    is_json_text: bool
    enum: tuple[str, list[str]] | None = None
    """A field of the elements of its list that has an enum, and the values."""

    @property
    def answer(self) -> dict[str, Any]:
        """The MCP result."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        content = [{"type": "text", "text": text}]
        is_structured = isinstance(self.value, dict) and not self.is_json_text
        return {"content": content} | ({"structuredContent": self.value} if is_structured else {})


@dataclass(frozen=True, slots=True)
class Case:
    """One script, and what a response must tell: `fix` is what has to stand in a hint."""

    code: str
    mistake: str = ""
    fix: str = ""
    template: str = ""


def some_tools(rng: random.Random, count: int) -> list[Tool]:
    """Tools of every form."""
    return [_tool(f"tool_{number}", rng) for number in range(count)]


def right_scripts(tools: list[Tool], rng: random.Random, count: int) -> list[Case]:
    """Scripts without a mistake, none twice."""
    found: dict[str, Case] = {}
    while len(found) < count:
        template = _template(rng.choice(tools), rng)
        code = _plain(template)
        found.setdefault(code, Case(code, template=template))
    return list(found.values())


def wrong_scripts(right: list[Case], rng: random.Random, of_each: int) -> list[Case]:
    """The same with one mistake each, so many with each mistake."""
    found: list[Case] = []
    for mistake, place in MISTAKES.items():
        able = [case.template for case in right if place in case.template]
        made = [_mistaken(template, mistake, rng) for template in rng.sample(able, len(able))]
        found += [case for case in made if case is not None][:of_each]
    return found


# ---- tools ---------------------------------------------------------------------------------------------------


def _tool(name: str, rng: random.Random) -> Tool:
    given = dict(rng.sample(_FIELDS, 4))
    schema = {"type": "object", "properties": _typed(given), "required": rng.sample(sorted(given), 2)}
    definition = {"name": name, "inputSchema": schema}
    enum = rng.choice(_ENUMS) if rng.random() < 0.35 else None
    if enum is None:
        value = _invented(rng)
        is_text = isinstance(value, list) or (isinstance(value, dict) and rng.random() < 0.6)
        return Tool(name, definition, given, value, is_text)
    record = dict(rng.sample(_FIELDS, 5)) | {enum[0]: enum[1][0]}
    fields = _typed(record) | {enum[0]: {"type": "string", "enum": enum[1]}}
    items: dict[str, Any] = {
        "type": "object",
        "properties": fields,
        "required": rng.sample(sorted(fields), 3),
    }
    if rng.random() < 0.5:
        items["additionalProperties"] = False
    key = rng.choice(_LISTS)
    output = {"type": "object", "properties": {key: {"type": "array", "items": items}}, "required": [key]}
    return Tool(name, definition | {"outputSchema": output}, given, {key: [record]}, False, enum)


def _typed(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"type": _TYPES[type(value)]} for name, value in record.items()}


def _invented(rng: random.Random) -> Any:
    """What a tool answers that declares no output."""
    if rng.random() < 0.15:
        return "one line\nand another"
    record = dict(rng.sample(_FIELDS, rng.randint(3, 7)))
    if rng.random() < 0.3:
        return [record, record]
    if rng.random() < 0.3:
        return record
    return {rng.choice(_LISTS): [record, record], "total": 2}


# ---- right scripts -------------------------------------------------------------------------------------------


def _template(tool: Tool, rng: random.Random) -> str:
    begins, called = (
        part.replace("MODULE", f"@codemode/servers/{SERVER}").replace("TOOL", tool.name)
        for part in rng.choice(IMPORTS)
    )
    call, head = f"await {called}({_input(tool)})", f"{begins}\n"
    if isinstance(tool.value, str) or (tool.is_json_text and rng.random() < 0.15):
        return head + rng.choice(OF_TEXT).replace("VALUE", f"({call})")
    return head + _of_value(tool, f"⟦p⟧JSON.parse({call})⟦/p⟧" if tool.is_json_text else f"({call})", rng)


def _of_value(tool: Tool, written: str, rng: random.Random) -> str:
    value = tool.value
    lists: dict[str, Any] = (
        {} if isinstance(value, list) else {key: each for key, each in value.items() if _is_records(each)}
    )
    enum, values = tool.enum or ("", [])
    if isinstance(value, list):
        first = cast("list[dict[str, Any]]", value)[0]
        return _with_fields(rng.choice(OF_LIST).replace("LIST", written), first, rng)
    if tool.enum is not None and rng.random() < 0.8:
        one, other = rng.sample(values, 2)
        body = rng.choice(OF_ENUM).replace("LIST", f"{written}.⟦f:{next(iter(lists))}⟧")
        return re.sub(r"\bF\b", enum, re.sub(r"\bV\b", one, re.sub(r"\bW\b", other, body)))
    if lists and rng.random() < 0.75:
        key = rng.choice(sorted(lists))
        # A call in parentheses is read at once; what is parsed is so, too.
        # Those templates compare with what may be no value of an enum.
        record = {name: each for name, each in lists[key][0].items() if name != enum}
        return _with_fields(rng.choice(OF_LIST).replace("LIST", f"{written}.⟦f:{key}⟧"), record, rng)
    return _with_fields(rng.choice(OF_OBJECT).replace("VALUE", written), value, rng)


def _is_records(value: Any) -> bool:
    first = next(iter(cast("list[Any]", value)), None) if isinstance(value, list) else None
    return isinstance(first, dict) and bool(first)  # pyright: ignore[reportUnknownArgumentType]


def _with_fields(body: str, record: Mapping[str, Any], rng: random.Random) -> str:
    names = [name for name in record if name.isidentifier()]
    first = rng.choice(names)
    second = rng.choice([name for name in names if name != first] or [first])
    body = re.sub(r"\{ A, B: other", "{ ⟦f:" + first + "⟧: A, B: other", body)
    body = re.sub(r"(?<=[.'])A\b|(?<=\{ )A(?=: )", f"⟦f:{first}⟧", body)
    body = re.sub(r"(?<=\.)B\b|(?<=, )B(?=: other)", f"⟦f:{second}⟧", body)
    return re.sub(r"\bA_", first, re.sub(r"\bB_", second, body))


def _input(tool: Tool) -> str:
    members = [
        f"{f'⟦k:{name}⟧' if name.isidentifier() else json.dumps(name)}: {json.dumps(value)}"
        for name, value in tool.input.items()
    ]
    return "{ " + ", ".join(members) + " }" if members else "{}"


def _plain(template: str) -> str:
    return re.sub(r"⟦/?[pw]⟧", "", _MARK.sub(lambda mark: mark[2], template))


# ---- wrong scripts -------------------------------------------------------------------------------------------


def _mistaken(template: str, mistake: str, rng: random.Random) -> Case | None:
    if mistake == "parse":
        return Case(
            _plain(_PARSED.sub(lambda match: f"({match[1]})", template)), mistake, "JSON.parse", template
        )
    if mistake == "result":
        return _without_result(template, rng)
    if mistake == "await":
        return _without_waiting(template, rng)
    letter = {"field": "f", "argument": "k"}.get(mistake, "e")
    marks = [mark for mark in _MARK.finditer(template) if mark[1] == letter]
    chosen = rng.choice(marks)
    wrong = _misspelt(chosen[2], rng)
    if wrong in {mark[2] for mark in marks}:
        return None
    code = _plain(template[: chosen.start()] + wrong + template[chosen.end() :])
    return Case(code, mistake, chosen[2], template)


def _without_waiting(template: str, rng: random.Random) -> Case:
    """With `forEach`, where nothing is kept of what the callbacks give, or without `Promise.all`."""
    alone = "\n⟦w⟧" in template
    method = rng.choice(["forEach", "map"]) if alone else "map"
    wrong = _WAITED.sub(lambda match: match[1].replace(".map(async", f".{method}(async", 1), template)
    return Case(_plain(wrong), "await", "Promise.all", template)


def _without_result(template: str, rng: random.Random) -> Case:
    """Without the assignment: what was assigned is gone, stands alone, or has a name of its own."""
    before, _, rest = _plain(template).rpartition(_RESULT)
    value = rest.removesuffix(";\n")
    names = [name for name in _NAMED.findall(before) if re.search(rf"\b{name}\b", value)]
    alone = f"({value})" if value.startswith("{") else value
    ways = [(f"{before}{alone};\n", value), (f"{before}const answer = {value};\n", "answer")]
    if names:
        ways.append((before, names[-1]))
    wrong, fix = rng.choice(ways)
    # What is too long for a hint is told in general.
    return Case(wrong, "result", fix if len(fix) <= MAX_SHOWN - len("await ") else _RESULT.strip(), template)


def _misspelt(name: str, rng: random.Random) -> str:
    """As people and models get names wrong: a slip, a plural, another way to join words."""
    at = rng.randrange(len(name))
    ways = [
        f"{name[:at]}{name[at]}{name[at:]}",
        name[:-1] if name.endswith("s") else f"{name}s",
        re.sub(r"_(.)", lambda match: match[1].upper(), name),
        re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name),
        name[:1].upper() + name[1:],
    ]
    if len(name) > 3:
        at = rng.randrange(1, len(name) - 1)
        ways += [f"{name[:at]}{name[at + 1 :]}", f"{name[:at]}{name[at + 1]}{name[at]}{name[at + 2 :]}"]
    return rng.choice([way for way in ways if way not in (name, "")])


# ---- running them --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a response has told of a script, and, of a right one, why it was refused before it started."""

    case: Case
    hints: list[str]
    refused: list[str]

    @property
    def is_fixed(self) -> bool:
        """Whether a hint names what has to be written."""
        word = re.compile(rf"(?<!\w){re.escape(self.case.fix)}(?!\w)")
        return any(word.search(hint) for hint in self.hints)


async def measured(folder: Path, tools: list[Tool], cases: list[Case]) -> list[Outcome]:
    """Runs all of them in one broker, in which every tool was called once before; each is a client of its own."""
    file = folder / "definitions.json"
    answers = {tool.name: tool.answer for tool in tools}
    file.write_text(json.dumps({"pages": [[tool.definition for tool in tools]], "answers": answers}))
    made = settings(folder, {SERVER: plain_server("--definitions", file)}, typecheck_timeout_ms=60_000)
    outcomes: list[Outcome] = []
    async with ready(made) as broker:
        calls = "\n".join(f"await server.{tool.name}({json.dumps(tool.input)});" for tool in tools)
        response = await broker.run(f'import * as server from "@codemode/servers/{SERVER}";\n{calls}')
        assert response.ok, response.diagnostics
        await broker.learnt(60.0)
        for number, case in enumerate(cases):
            response = await broker.run(case.code, client=f"client:{number}")
            hints = [one.hint or "" for one in response.diagnostics if one.severity != "info"]
            refused: list[str] = []
            if not case.mistake:
                before = await broker.run(case.code, typecheck="before")
                refused = [one.message for one in before.diagnostics if not before.ok]
            outcomes.append(Outcome(case, hints, refused))
    return outcomes
