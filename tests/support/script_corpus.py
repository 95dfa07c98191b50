"""Scripts as agents write them, over the recorded catalogs: right ones, and each of those with one mistake.

A server answers each tool with what fits its declared output, or, where it declares none, with one of the forms that
real servers have: structured content, a JSON text, a plain text. The scripts are put together from that by chance, from
a seed. Places where a mistake can be made are marked in a template: `⟦f:title⟧` a field, `⟦k:label⟧` a key of an input,
`⟦e:open⟧` a value of a declared enum, `⟦p⟧…⟦/p⟧` a text that is parsed. All end with the assignment of the result.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from cellblock.script.conventions import MAX_SHOWN
from cellblock.tools.catalog.naming import export_names
from cellblock.tools.schemas.example import minimal_example
from cellblock.tools.schemas.validation import InputValidator
from support import recorded_catalogs
from support.brokers import ready
from support.entries import plain_server, settings
from support.script_templates import IMPORTS, OF_ENUM, OF_LIST, OF_OBJECT, OF_TEXT

Mistake = Literal["field", "argument", "parse", "enum", "result", "await"]
MISTAKES: tuple[Mistake, ...] = ("field", "argument", "parse", "enum", "result", "await")

MOST_MISSES = 200
"""Tries in a row that bring no new script with a mistake of one kind: then there are no more."""

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


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of a recorded catalog, with an input that fits and the answer that it gives."""

    server: str
    export: str
    definition: dict[str, Any]
    input: dict[str, Any]
    answer: dict[str, Any]
    """The MCP result."""

    value: Any
    """What a script gets, once it has parsed it."""

    is_json_text: bool

    enum: tuple[str, list[str]] | None = None
    """A field of the elements of its list that has an enum, and the values."""


@dataclass(frozen=True, slots=True)
class Case:
    """One script, and what a response must tell: `fix` is what has to stand in a hint."""

    code: str
    mistake: Mistake | None = None
    fix: str = ""
    template: str = ""


def recorded(rng: random.Random, names: list[str] | None = None) -> dict[str, list[Tool]]:
    """The tools of recorded catalogs, by server.

    Args:
        rng: Chooses what tools answer that declare no output.
        names: Of the catalogs; None for all.
    """
    found: dict[str, list[Tool]] = {}
    for name, document in recorded_catalogs.recorded(recorded_catalogs.CATALOGS).items():
        if names is None or name in names:
            definitions = document["tools"]
            exports = export_names([definition["name"] for definition in definitions])
            tools = [_tool(name, exports[definition["name"]], definition, rng) for definition in definitions]
            found[name] = [tool for tool in tools if tool is not None]
    return found


def definitions_of(tools: list[Tool]) -> dict[str, Any]:
    """The file for `plain_server.py --definitions`."""
    answers = {tool.definition["name"]: tool.answer for tool in tools}
    return {"pages": [[tool.definition for tool in tools]], "answers": answers}


def right_scripts(tools: Mapping[str, list[Tool]], rng: random.Random, count: int) -> list[Case]:
    """Scripts without a mistake, none twice."""
    every = [tool for each in tools.values() for tool in each]
    found: dict[str, Case] = {}
    while len(found) < count:
        template = _template(rng.choice(every), rng)
        code = _plain(template)
        found.setdefault(code, Case(code, template=template))
    return list(found.values())


def wrong_scripts(right: list[Case], rng: random.Random, count: int) -> list[Case]:
    """The same with one mistake each, none twice: of each kind as many as of the others, or as can be made."""
    found: dict[str, Case] = {}
    turns = [(mistake, case) for case in right for mistake in MISTAKES if _has(case.template, mistake)]
    by_kind = {mistake: [case for one, case in turns if one == mistake] for mistake in MISTAKES}
    kinds = [mistake for mistake in MISTAKES if by_kind[mistake]]
    misses: Counter[Mistake] = Counter()
    turn = 0
    while kinds and len(found) < count:
        mistake = kinds[turn % len(kinds)]
        made = _mistaken(rng.choice(by_kind[mistake]).template, mistake, rng)
        if made is not None and made.code not in found:
            found[made.code], turn = made, turn + 1
            misses[mistake] = 0
            continue
        misses[mistake] += 1
        if misses[mistake] > MOST_MISSES:
            kinds.remove(mistake)
    return list(found.values())


# ---- tools ---------------------------------------------------------------------------------------------------


def _tool(server: str, export: str, definition: dict[str, Any], rng: random.Random) -> Tool | None:
    schema: dict[str, Any] = definition.get("inputSchema") or {"type": "object"}
    validator = InputValidator(schema, subject="the input")
    given = minimal_example(schema, validator)
    if not isinstance(given, dict):
        return None
    known = cast("dict[str, Any]", given)
    properties: dict[str, Any] = schema.get("properties") or {}
    for name, part in properties.items():
        more = {**known, name: _filled(part, schema)}
        if name not in known and rng.random() < 0.6 and validator.check(more) is None:
            known = more
    enum = rng.choice(_ENUMS) if "outputSchema" not in definition and rng.random() < 0.35 else None
    if enum is not None:
        definition = {**definition, "outputSchema": _with_enum(*enum, rng)}
    declared = definition.get("outputSchema")
    value = _invented(rng) if declared is None else _filled(declared, declared)
    as_text = isinstance(value, list) or (isinstance(value, dict) and declared is None and rng.random() < 0.6)
    text = value if isinstance(value, str) else json.dumps(value)
    answer: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if isinstance(value, dict) and not as_text:
        answer["structuredContent"] = value
    return Tool(server, export, definition, known, answer, value, as_text, enum)


def _with_enum(field: str, values: list[str], rng: random.Random) -> dict[str, Any]:
    """An output with a list of records, open or closed, one of whose fields has an enum."""
    types = {int: "integer", str: "string", list: "array", dict: "object"}
    fields = {name: {"type": types[type(value)]} for name, value in rng.sample(_FIELDS, 5)}
    fields[field] = {"type": "string", "enum": values}
    more: dict[str, Any] = {"additionalProperties": False} if rng.random() < 0.5 else {}
    record = {"type": "object", "properties": fields, "required": rng.sample(sorted(fields), 3), **more}
    key = rng.choice(_LISTS)
    return {"type": "object", "properties": {key: {"type": "array", "items": record}}, "required": [key]}


def _filled(schema: Any, root: dict[str, Any], depth: int = 0) -> Any:
    """A value with everything that a schema declares, and one element in each array."""
    part = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    for step in str(part.get("$ref", "#")).split("/")[1:]:
        part = part.get(step, {}) if part is not schema else root.get(step, {})
    for word in ("anyOf", "oneOf", "allOf"):
        if part.get(word):
            return _filled(part[word][0], root, depth + 1)
    if "enum" in part or "const" in part:
        return part.get("const", part.get("enum", [None])[0])
    kind = part.get("type", "object" if "properties" in part else "string")
    match cast("list[str]", kind)[0] if isinstance(kind, list) else str(kind):
        case "object":
            members = cast("dict[str, Any]", part.get("properties") or {})
            return (
                {name: _filled(each, root, depth + 1) for name, each in members.items()} if depth < 6 else {}
            )
        case "array":
            return [_filled(part.get("items"), root, depth + 1)] if depth < 6 else []
        case "integer" | "number":
            return part.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:  # a text
            return "2026-11-23" if part.get("format") == "date" else "text"


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
        part.replace("MODULE", f"@codemode/servers/{tool.server}").replace("TOOL", tool.export)
        for part in rng.choice(IMPORTS)
    )
    call, head = f"await {called}({_input(tool)})", f"{begins}\n"
    if isinstance(tool.value, str) or (tool.is_json_text and rng.random() < 0.15):
        return head + rng.choice(OF_TEXT).replace("VALUE", f"({call})")
    value = f"⟦p⟧JSON.parse({call})⟦/p⟧" if tool.is_json_text else f"({call})"
    return head + _of_value(tool, value, rng)


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


def _has(template: str, mistake: Mistake) -> bool:
    return {"field": "⟦f:", "argument": "⟦k:", "parse": "⟦p⟧", "enum": "⟦e:", "result": "", "await": "⟦w⟧"}[
        mistake
    ] in template


def _mistaken(template: str, mistake: Mistake, rng: random.Random) -> Case | None:
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
    code = _plain(template)
    before, _, rest = code.rpartition(_RESULT)
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
    said: list[tuple[str, str]]
    refused: list[tuple[str, str]]
    ok: bool
    is_checked: bool
    """Whether a type error is among what was said."""

    @property
    def fixed(self) -> bool:
        """Whether a hint names what has to be written."""
        word = re.compile(rf"(?<!\w){re.escape(self.case.fix)}(?!\w)")
        return any(word.search(hint) for _, hint in self.said)


async def measured(
    folder: Path,
    tools: Mapping[str, list[Tool]],
    right: list[Case],
    wrong: list[Case],
    hold_ms: int = 60_000,
) -> list[Outcome]:
    """Runs all of them in one broker, in which every tool was called once before; each is a client of its own."""
    entries: dict[str, Any] = {}
    for name, each in tools.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(definitions_of(each)), encoding="utf-8")
        entries[name] = plain_server("--definitions", file)
    bounds = {"typecheck_timeout_ms": hold_ms}
    outcomes: list[Outcome] = []
    async with ready(settings(folder, entries, **bounds)) as broker:
        for name, each in tools.items():
            calls = "\n".join(f"await server.{tool.export}({json.dumps(tool.input)});" for tool in each)
            response = await broker.run(f'import * as server from "@codemode/servers/{name}";\n{calls}')
            assert response.ok, response.diagnostics
        await broker.learnt(60.0)
        for number, case in enumerate([*right, *wrong]):
            response = await broker.run(case.code, client=f"client:{number}")
            refused: list[tuple[str, str]] = []
            if case.mistake is None:
                before = await broker.run(case.code, typecheck="before")
                refused = [(one.message, one.hint or "") for one in before.diagnostics if not before.ok]
            said = [(one.message, one.hint or "") for one in response.diagnostics if one.severity != "info"]
            is_checked = any(one.code == "TYPE_ERROR" for one in response.diagnostics)
            outcomes.append(Outcome(case, said, refused, response.ok, is_checked))
    return outcomes
