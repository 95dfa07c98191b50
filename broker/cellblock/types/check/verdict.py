"""Finds which of the compiler's complaints count: those that a script would trip over when it runs.

Scripts are loosely typed JavaScript, and what is known of tools may be little. So a complaint counts only when it is
about something that Cellblock knows: a member of a tool's output or of a module, a tool's arguments, a name that
nothing declares. Code that looks before it reads (`a.b ?? c`, `if (a.b)`, `typeof b`) is left alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tree_sitter import Node

from cellblock.base.errors import shorten
from cellblock.base.json import is_object
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.script.trees import arguments_of, captured, field, nearest, nodes_of, operator_of
from cellblock.types.check.comparisons import COMPARISON, Comparisons, may_compare
from cellblock.types.check.hints import listed
from cellblock.types.check.misuse import (
    COMPLAINED,
    IS_OBJECT,
    OF_ARRAYS,
    OF_TEXTS,
    PATTERNS,
    RETYPED,
    STARTS,
    WRITTEN,
)
from cellblock.types.check.parsed import (
    ITS_CHARACTERS,
    PARSE_BOUND_SECONDS,
    ParsedScript,
    Shown,
    TextKind,
    Tool,
    text_of,
)

MAX_SUBJECT_CHARS: Final = 60

MAX_MESSAGE_CHARS: Final = 500

MAX_NAMED_CHARS: Final = 100
"""Bounds the characters of a name, and of the type that lacks a member: the hint names what it has."""

Guard = Literal["", "asked", "defaulted", "alone", "replaced"]
"""Says how a read is guarded: it is asked for; it has a list, object or count for a default, behind other reads or as
the only one (`alone`); or, as the only one, a text, number or truth value (`replaced`)."""

MAX_JUDGED: Final = 200
"""Bounds the complaints of one script that are looked at, in the order of the text."""

MAX_WRITTEN_BYTES: Final = 8 * 1024
"""Bounds the pieces of a script that patterns look at: the text of one within others is read for each of them."""

Kind = Literal[
    "member",
    "export",
    "name",
    "argument",
    "key",
    "comparison",
    "characters",
    "misused",
    "retyped",
]
"""Says what a complaint is about. `key`: one of a literal that its type does not have; `characters`: iterating or
listing the keys of a text that holds JSON, which cannot be meant (`typescript.modules`); `misused`: what the language
has, which is never meant so; `retyped`: a variable that is given a value of another type, which is meant."""

_BRACKETS: Final = 7053
"""Names the finding of a member that is read in brackets, and is not there or is not known before the script runs."""

_CODES: Final[Mapping[Kind, frozenset[int]]] = {
    "member": frozenset({2339, 2551, _BRACKETS}),
    "export": frozenset({2305, 2724, 2614, 1192}),
    "name": frozenset({2304, 2307, 2552, 2580, 2581, 2582, 2583, 2584, 2591, 2592, 2593, 2868, 18004}),
    "argument": frozenset({2322, 2345, 2554, 2555, 2739, 2740, 2741, 2820, 2769}),
    "key": frozenset({2353, 2561}),
    "comparison": COMPARISON,
    "characters": frozenset({2488, 2698, 6387}),
    "misused": frozenset({2362, 2363, 2365, 7052}),
}
"""Lists the compiler's codes by what they are about."""

_KINDS: Final[Mapping[int, Kind]] = {code: kind for kind, codes in _CODES.items() for code in codes}

# A script's own texts stand in messages: no name goes past what may be another beginning.
_ON_TYPE: Final = re.compile(
    r"Property '((?:(?!Property ').)*?)' does not exist on type '((?:(?!Property ').)*?)'\.", re.DOTALL
)
_OF_JSON_TEXT: Final = re.compile(r"Type 'JsonText<|The signature '\(text: JsonText<|Spread types ")
_BIGINT: Final = re.compile(r"\bbigint\b")
_BIGINT_FOR: Final = re.compile(
    r"'(?:number \| )?bigint' is not assignable to (?:parameter of )?type '([^']*)'"
)
_SPECIFIER: Final = re.compile(r'"(@codemode/[^"]*)"')
_MODULE: Final = re.compile(r'typeof import\("@codemode/[^"]*"\)')
_PLAIN: Final = re.compile(
    r"void|\(?(?:string|number|boolean)(?:\[\])*(?: \| (?:string|number|boolean)(?:\[\])*)*(?:\)(?:\[\])*)?"
)
_NOT_ASSIGNABLE: Final = re.compile(
    r"(?:Type|Argument of type) '(.*)' is not assignable to (?:parameter of )?type '(.*+)", re.DOTALL
)
JSON_TEXT: Final = "JsonText<"
"""Begins the printed type of a text that holds JSON."""

SETTLED: Final = ("PromiseSettledResult<", "PromiseFulfilledResult<", "PromiseRejectedResult")
"""Begin the printed types of what `Promise.allSettled` gives."""

_PROMISED: Final = ("Promise<", *SETTLED)

_WRITTEN_OUT: Final = ("string & { readonly [jsonOf]:", "String & { readonly [jsonOf]:")

_NOT_TO_BE_SAID: Final = (
    # Of a whole value that is passed on, of a list that may well be long enough, and of what may be anything.
    "has no properties in common with type",
    "Source provides no match for required element",
    "Target requires ",
    "is optional in type",
    "ype 'unknown' is not assignable to ",
)
_PLAIN_PART: Final = r"(?:[^{}()<>=]|=>?+)*+"
_INNERMOST: Final = re.compile(rf"\{{{_PLAIN_PART}\}}|\({_PLAIN_PART}\)|<{_PLAIN_PART}>")
_SUGGESTED: Final = re.compile(r"Did you mean (?:to write |the \w+ member )?'([^']+)'")
_ADVICE: Final = re.compile(r" (?:Do you need to|Did you mean|Try ).*$", re.DOTALL)
"""Matches what the compiler advises, which is about projects, not about scripts."""

_WANTS_LIST: Final = re.compile(r"\[\]'\.(?: Did|\n|$)")
"""Finds, in a message about an undeclared key, that a list is wanted in place of the object."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][\w$]*")
_EITHER: Final = r"([A-Za-z_$][\w$]*)\??\.[\w$]+\s*(?:\?\?|\|\|)\s*\1(?![\w$.])"
_ERASED: Final = frozenset(
    [
        "type_identifier",
        "nested_type_identifier",
        "type_annotation",
        "type_query",
        "type_arguments",
        "comment",
        "interface_declaration",
        "type_alias_declaration",
    ]
)
ENVELOPE: Final = frozenset(["content", "structuredContent"])
"""Names members of what stands around a tool's answer, which no script gets."""

ASKED_OF_ANY: Final = re.compile(
    r"content|structuredContent|errors?|isError|warnings?|.*(?:next|cursor|more).*", re.IGNORECASE
)
"""Fits names of members that scripts ask for of any answer, and of those that come and go."""

_BY_NAME: Final = "`for … in` gives names and numbers: take the elements themselves, `for (const … of …)`."

_PASSED_ON: Final = frozenset(
    ["member_expression", "subscript_expression", "parenthesized_expression", "call_expression"]
)
_CHOICES: Final = frozenset(["??", "||"])
_DEFAULTS: Final[Mapping[str, Guard]] = {
    "array": "alone",
    "object": "alone",
    "string": "replaced",
    "number": "replaced",
    "true": "replaced",
    "false": "replaced",
}
"""Maps the types of defaults to how they guard where there is no other."""

_LISTS: Final = ("Object.keys", "Object.values", "Object.entries", "Array.from")
_SCOPES: Final = frozenset(
    ["arrow_function", "function_expression", "function_declaration", "method_definition"]
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Describes one complaint that counts."""

    kind: Kind
    message: str
    name: str
    """Holds the text that the complaint is about."""

    start: tuple[int, int] = (0, 0)
    """Holds line and column from 0, as the compiler counts."""

    asked_at: tuple[int, int] = (0, 0)
    """Holds the place at which the compiler is asked for more."""

    receiver: str = ""
    """Holds the type that lacks a member, or of what characters are read, as the compiler prints it."""

    suggested: str = ""
    """Holds the name that the compiler suggests."""

    module: str = ""
    """Names, of a complaint about arguments, from which module the called function is; of `require`, what it
    asks for."""

    called: str = ""
    """Holds the name that this module exports the called function by."""

    hint: str = ""
    """Says what to do, where that is known with what is wrong."""

    absent: str = ""
    """Names the field that an object does not have, or the text that a declared enum does not."""

    subject: str = ""
    """Holds what the member is read of, where that is short."""

    compared: str = ""
    """Names the member that is compared with a text."""

    tool: Tool | None = None
    """Names the tool that the value is from, where that is known."""

    is_text: bool = False
    """Says whether a text is taken for a value."""

    texts: tuple[str, str] = ("", "")
    """Names the field whose values this is about, and says what they must be for it to count."""

    described: str = ""
    """Holds what the compiler's description has to have, asked, for this to count."""

    other_keys: tuple[tuple[str, int, int], ...] = ()
    """Lists, of an undeclared key, the literal's other keys, each with its line and column from 0. The compiler
    tells of one key in a literal only."""

    element_at: tuple[int, int] | None = None
    """Holds, of a member of what brackets give, where these begin; of what `for … in` gives, where its list is."""

    guard: Guard = ""
    """Says whether the script asks if a member is there, and takes a default in its place."""

    read: frozenset[str] | None = None
    """Holds, where it asks, the members that it reads of the same; None where these may be any."""


def at_key(complaint: Complaint, name: str, line: int, column: int) -> Complaint:
    """Gives the same complaint about another key of the literal; its place counts from 0."""
    said = complaint.message.replace(f"declares no '{complaint.name}'", f"declares no '{name}'", 1)
    at = line, column
    return replace(complaint, message=said, name=name, suggested="", start=at, asked_at=at, other_keys=())


def judge(
    raw: list[Any],
    shown: Shown,
    declarations: str,
    *,
    typescript: bool,
    texts: Mapping[Tool, TextKind],
) -> list[Complaint]:
    """Gives the complaints that count, in the order of the text.

    Args:
        raw: Items of a diagnostic report (language server protocol 3.17), untrusted in shape.
        shown: What was checked.
        declarations: What it was checked against.
        typescript: Whether it is TypeScript and no JavaScript.
        texts: The tools that answer with texts.
    """
    found = [item for item in raw if is_object(item) and item.get("code") in _KINDS][:MAX_JUDGED]
    source = shown.source
    # It was parsed in another thread.
    source.meanings.deadline = time.thread_time() + PARSE_BOUND_SECONDS
    comparisons = Comparisons(source.raw, declarations)
    numbered = [_numbered(*misused, source) for misused in source.json_texts.misused(texts)]
    at = {complaint.start for complaint in numbered}
    complaints = filter(None, (_complaint(item, source, declarations, comparisons) for item in found))
    counted = [one for one in complaints if one.element_at not in at]
    # The compiler keeps to the first type of a variable.
    retyped = min((one.start for one in counted if one.kind == "retyped"), default=(len(source.code), 0))
    counted = [one for one in counted if one.kind != "retyped" and not (one.receiver and one.start > retyped)]
    told = {one.element_at for one in counted}
    written = (one for one in _written(source, typescript, declarations) if one.start not in told)
    return sorted(_in_script([*numbered, *written, *counted], shown), key=lambda complaint: complaint.start)


def _in_script(complaints: list[Complaint], shown: Shown) -> list[Complaint]:
    """Gives complaints at their places in the script: one that is shown several times gives one, the last, which is in
    a copy, unless it was complained of in some copies only."""
    found: dict[tuple[object, int], list[Complaint]] = {}
    for complaint in complaints:
        start, copies = shown.origin(complaint.start)
        key = (start, complaint.kind, complaint.name) if copies > 1 else complaint
        found.setdefault((key, copies), []).append(replace(complaint, start=start))
    return [same[-1] for (_, copies), same in found.items() if len(same) >= copies - 1]


def _written(source: ParsedScript, typescript: bool, declarations: str) -> Iterator[Complaint]:
    """Tells of what is written as no script means it."""
    nodes = nodes_of(source.root, STARTS, typescript=typescript)
    for query, start, words in PATTERNS:
        starts = nodes[start][:MAX_JUDGED] if all(word in source.code for word in words) else []
        small = [one for one in starts if one.end_byte - one.start_byte < MAX_WRITTEN_BYTES]
        # To make a query takes 8 ms.
        for name, node in captured(small, query, typescript=typescript) if small else ():
            at, text = source.position(node), source.text(node)
            # What is read elsewhere, too, may be asked for because it might be missing, or be given a value there.
            only = {"always": text, "counted": text, "started": f"{text}["}.get(name)
            if name in WRITTEN and (only is None or source.code.count(only) == 1):
                said, hint, described = WRITTEN[name]
                may_lack = rf"\b{re.escape(text)}(?:\?:|: [^;\n]*\bnull\b)"
                if name == "never" and re.search(may_lack, declarations):
                    continue
                yield Complaint(
                    "misused",
                    said.format(text),
                    text,
                    at,
                    at,
                    receiver=text if name == "never" else "",
                    hint=hint.format(text),
                    absent="length" if name == "sized" else "",
                    texts=(text, OF_TEXTS[name]) if name in OF_TEXTS else ("", ""),
                    described=described,
                )


def _numbered(read: Node, wrong: str, kind: TextKind, source: ParsedScript) -> Complaint:
    """Makes the complaint about a text that is read by its characters, or is taken for an array or object."""
    at, subject = source.position(read), _short(read, source)
    made = Complaint("characters", "", subject, at, at, tool=source.json_texts.tool(read))
    if kind == "json":
        return _of_characters(made, subject, wrong)
    said = f"{f'`{subject}`' if subject else 'It'} is text, and {wrong}."
    hint = f'Take its lines: `{subject or "…"}.split("\\n")`.'
    # Of one that an object holds, there is nothing to find out after the run.
    return replace(made, message=said, hint=hint, receiver="string", is_text=kind == "plain")


def _of_characters(made: Complaint, subject: str, wrong: str = ITS_CHARACTERS) -> Complaint:
    what = subject or made.name
    said = f"{f'`{what}`' if what else 'It'} is JSON text, and {wrong}."
    hint = f"It is JSON text, not yet a value: use `JSON.parse({subject or '…'})` first."
    return replace(made, message=said, hint=hint, receiver=JSON_TEXT, is_text=True)


def _complaint(
    item: dict[str, Any], source: ParsedScript, declarations: str, comparisons: Comparisons
) -> Complaint | None:
    number, message = int(item["code"]), str(item["message"]).strip()
    kind, wanted = _KINDS[number], _BIGINT_FOR.search(message)
    if kind != "misused" and _BIGINT.search(message) and (wanted is None or "number" in wanted[1]):
        # Inputs take them as integers.
        return None
    start, end = item["range"]["start"], item["range"]["end"]
    at = int(start["line"]), int(start["character"])
    first, last = source.offset(*at), source.offset(int(end["line"]), int(end["character"]))
    node = source.node(first, last)
    if node is None or any(part.type in _ERASED for part in _upwards(node, source)):
        return None
    name = source.code[first:last]
    index = field(node, "index") if number == _BRACKETS else None
    if index is not None and index.type in ("string", "number"):
        node, at, message = index, source.position(index), message[message.rfind("Property '") :]
    suggested = _SUGGESTED.search(message)
    made = Complaint(
        kind, _ADVICE.sub("", message), name, at, at, suggested=suggested[1] if suggested else ""
    )
    if (misuse := _misuse(made, message, node, source)) is not None:
        return misuse
    if node.parent is not None and node.parent.type == "assignment_expression" and re.match(RETYPED, message):
        return replace(made, kind="retyped")
    match kind:
        case "member" if number == _BRACKETS and node != index:
            return None
        case "member":
            return _of_member(made, message, node, source, declarations)
        case "name":
            return _of_name(made, source.code[max(0, first - 100) : first], source)
        case "export" if _is_type_import(node, name, source):
            return None
        case "export" if any(_is_required(part, source) for part in _upwards(node, source)):
            # The compiler takes it for an import, which the sandbox does not.
            specifier = _SPECIFIER.search(message)
            return _of_require(made, specifier[1] if specifier else "")
        case "export":
            return made
        case "characters" if (of_text := _OF_JSON_TEXT.match(message)) is not None:
            made = replace(made, tool=source.json_texts.tool(_listed(node, source) or node))
            # What is spread into an object the compiler does not name: it is asked, behind the dots.
            is_spread = of_text[0].startswith("Spread")
            made = replace(made, described=JSON_TEXT * is_spread, asked_at=(at[0], at[1] + 3 * is_spread))
            return _of_characters(made, _subject(node, source))
        case "characters":
            return None
        case _ if may_compare(number, node):
            foreign = comparisons.foreign(message, node)
            return None if foreign is None else _of_comparison(made, *foreign, source)
        case _:
            return _of_argument(made, message, node, source)


def _of_member(
    made: Complaint, message: str, node: Node, source: ParsedScript, declarations: str
) -> Complaint | None:
    lacking: list[tuple[str, str]] = _ON_TYPE.findall(
        message.replace(" on type 'String'.", " on type 'string'.")
    )
    read = _read_of(node)
    if not lacking or _may_be_in_itself(read, source, lacking[0][0]):
        return None
    # Of a union the compiler names the type that lacks the member last; another may have it.
    (name, receiver), last = lacking[0], lacking[-1][1]
    is_settled = receiver.startswith(SETTLED)
    is_union = not is_settled and (len(lacking) > 1 or _is_union(receiver))
    if (
        # The script itself gives it the member.
        re.search(rf"\.\s*{re.escape(name)}\s*(?:[-+*/%&|^]|\?\?|\|\||&&)?=(?![=>])", source.code)
        or not _is_known(last, declarations)
        or (is_settled and name in ("reason", "value"))
        # To the compiler, an object with a spread one of computed keys has none of these.
        or (
            receiver.startswith("{")
            and "...Object.fromEntries(" in source.code
            and not source.json_texts.tool(read)
        )
        or (is_union and re.search(rf"\b{re.escape(name)}\b", declarations))
    ):
        return None
    subject, guard = _subject(node, source), _guard(name, receiver, last, node, read, source)
    receiver = last if is_json_text(last) else receiver
    is_json, at = is_json_text(receiver), made.start
    parsed = f"JSON.parse({subject or '…'}){'' if name in ENVELOPE else f'.{name}'}"
    hint = f"It is JSON text, not yet a value: read `{parsed}`." if is_json else ""
    said = made.message.replace(f"'{receiver}'", f"'{shorten(receiver, MAX_NAMED_CHARS + 1)}'")
    what = "JSON text" if is_json else "what `Promise.allSettled` gives" if is_settled else ""
    within = read if read is not None and read.type == "subscript_expression" else None
    if last == "string" and within is None and read is not None:
        loops = source.found["numbered"]
        within = next((of for of in loops if text_of(field(of.parent, "left")) == text_of(read)), None)
        hint = hint if within is None else _BY_NAME
    return replace(
        made,
        name=name,
        message=f"Property '{name}' does not exist on {what}." if what else said,
        hint=hint,
        is_text=is_json or (last == "string" and name in ENVELOPE and not source.json_texts.is_handled(read)),
        receiver=receiver,
        # What could stand in a text is asked for in it, not in front of it.
        asked_at=(at[0], at[1] + (node.type == "string")),
        absent=name if _is_of_object(receiver) else "",
        tool=source.json_texts.tool(read),
        subject=subject,
        element_at=source.position(within) if within is not None else None,
        guard=guard,
        read=source.names_read(read if subject else None) if guard else None,
    )


def _of_name(made: Complaint, before: str, source: ParsedScript) -> Complaint | None:
    if made.name[:1] in ('"', "'", "`"):
        if not re.search(r"\brequire\s*\(\s*$", before):
            return None  # An import: the plan, or the script's own exception, tells it better.
        made = _of_require(made, made.name[1:-1])
    if re.search(rf"\btypeof\s+{re.escape(made.name)}\b", source.code):
        return None
    return replace(made, message=f"Cannot find name '{made.name}'.")


def _of_require(made: Complaint, module: str) -> Complaint:
    return replace(made, kind="name", name="require", module=module, message="Cannot find name 'require'.")


def _of_comparison(
    made: Complaint, value: str, choices: tuple[str, ...], compared: Node, source: ParsedScript
) -> Complaint:
    subject = _short(compared, source)
    of = f" of `{subject}`" if subject else ""
    said = f"The comparison with {value} is in vain: the declared values{of} have no such one."
    near = did_you_mean(nearest_names(value, choices, limit=1))
    hint = shorten(f"{near} Declared: {listed(choices)}.".lstrip(), MAX_MESSAGE_CHARS)
    try:
        absent = str(json.loads(value))
    except ValueError:
        absent = ""
    # A text that is sought in a list is no value of the member itself.
    is_list = compared.parent is not None and compared.parent.type == "member_expression"
    return replace(
        made,
        kind="comparison",
        message=said,
        hint=hint,
        absent=absent,
        tool=source.json_texts.tool(compared),
        compared="" if is_list else text_of(field(compared, "property")).decode(),
    )


def _of_argument(made: Complaint, message: str, node: Node, source: ParsedScript) -> Complaint | None:
    function = _called(node, source) if made.kind != "misused" else None
    # Of several signatures are functions of the language alone.
    if function is None or message.startswith("No overload ") or not _argument_counts(message):
        return None
    made, name = replace(made, module=function[0], called=function[1]), made.name.strip("\"'")
    if made.kind != "key":
        is_named = made.message.startswith("Type ") and len(made.name) < MAX_NAMED_CHARS
        return replace(made, message=f"`{made.name}`: {made.message}") if is_named else made
    where = f"`{owner}` in the input" if (owner := _owner(node, source)) else "The input"
    made = replace(made, name=name, message=f"{where} of `{function[1]}` declares no '{name}'.")
    # Where an array is wanted in place of the object, none of its keys is at fault.
    wants_list = _WANTS_LIST.search(message) is not None
    return replace(made, kind="argument") if wants_list else replace(made, other_keys=source.other_keys(node))


def _misuse(made: Complaint, message: str, node: Node, source: ParsedScript) -> Complaint | None:
    """Makes the complaint about what no script means so; None where it may be meant."""
    around, call = node.parent, nearest(node.parent, "call_expression", "statement_block")
    texts = [source.text(one) for one in (field(call, "function"), around, node) if one is not None]
    is_either = around is not None and operator_of(around) == "||" and "unintentional" in message
    # What is read elsewhere, too, may be asked for there, as a key that stands elsewhere may be.
    is_meant = is_either or (
        made.kind == "member" and source.code.count(source.text(field(node, "index") or node)) > 1
    )
    for pattern, code, wrong, hint, described in COMPLAINED:
        found = re.search(pattern, message)
        written = next(filter(None, (re.fullmatch(code, text, re.DOTALL) for text in texts)), None)
        # What `reduce` gives is an element to the compiler where its callback is wrong.
        is_reduced = described == IS_OBJECT and ".reduce(" in source.code
        if found is not None and written is not None and not (is_meant or is_reduced):
            names = {
                **found.groupdict(),
                **written.groupdict(),
                "text": source.text(node),
                "short": _short(node, source) or "…",
            }
            if "JSON.parse" in texts and _is_fallback(node, source):
                return None
            compared = names.get("left") or names.get("right") or ""
            of = field(call, "function", "property") if described == OF_ARRAYS else field(node, "property")
            return replace(
                made,
                kind="misused",
                message=wrong.format(**names),
                hint=hint.format(**names),
                # Of what is given a value of another type before, it does not count.
                receiver="object" if described == IS_OBJECT else "",
                asked_at=source.position(of or node),
                described=described,
                texts=(compared, "words") if compared else ("", ""),
            )
    return None


def _is_fallback(node: Node, source: ParsedScript) -> bool:
    """Says whether a script goes on with what it has tried to parse as it is."""
    text = source.text(node)
    return (
        re.search(rf"(?:=|\breturn|=>|:|\?\?|\|\|)\s*{re.escape(text)}\s*(?:[;)}}\n]|$)", source.code)
        is not None
    )


def _may_be_in_itself(read: Node | None, source: ParsedScript, name: str) -> bool:
    """Says whether a value is one that the script has looked for, or looks for, in a member and in what has it:
    `u.result ?? u`."""
    text, whole = re.escape(_short(read, source)), source.text(read) if read is not None else ""
    itself = rf"\??\.{re.escape(name)}\s*(?:\?\?|\|\|)\s*{text}(?![\w$.])"
    is_either = text and re.search(rf"(?<![\w$.]){text}(?:{itself}|\s*=\s*{_EITHER})", source.code)
    return bool(is_either or re.fullmatch(rf"\(\s*{_EITHER}\s*\)", whole))


def _subject(node: Node, source: ParsedScript) -> str:
    """Gives what a member is read of, what is iterated, or what a function is called with; empty where no name
    says it."""
    read: Node | None = node.named_children[0] if node.type == "spread_element" else node
    if node.type == "property_identifier":
        read = _listed(node, source) or field(node.parent, "object")
    return _short(read, source)


def _listed(node: Node, source: ParsedScript) -> Node | None:
    """Returns the argument in a call of `Object.keys` or its like, by the node of the function's name."""
    parent = node.parent
    if parent is None or parent.type != "member_expression" or source.text(parent) not in _LISTS:
        return None
    return next(iter(arguments_of(parent.parent)), None)


def _read_of(node: Node) -> Node | None:
    """Returns the expression of which a member is read, by the node of the member's name: in an expression, or in a
    pattern that is given a value."""
    around = node.parent
    if around is not None and around.type in ("member_expression", "subscript_expression"):
        return field(around, "object")
    depth = 0
    while around is not None and around.type.endswith("_pattern"):
        depth += around.type in ("object_pattern", "array_pattern")
        around = around.parent
    return field(around, "value") or field(around, "right") if depth == 1 else None


def _short(read: Node | None, source: ParsedScript) -> str:
    """Gives the text of what is read, where it is a name, or a member's, that fits into a sentence."""
    if read is None or read.type not in ("identifier", "member_expression"):
        return ""
    text = source.text(read)
    return text if len(text) <= MAX_SUBJECT_CHARS and "\n" not in text else ""


def _upwards(node: Node, source: ParsedScript) -> list[Node]:
    """Gives the node and all that is around it."""
    # From the root down: each node's parent would be looked for from there again.
    found: list[Node] = []
    here: Node | None = source.root
    while here is not None and here.id != node.id:
        found.append(here)
        here = here.child_with_descendant(node)
    return [*found, node]


# ---- members -----------------------------------------------------------------------------------------------


def _guard(name: str, receiver: str, last: str, node: Node, read: Node | None, source: ParsedScript) -> Guard:
    # A guard says that a field may be missing, not that the value may be a text; of any answer one may ask for these.
    is_text = is_json_text(last) or (receiver == "string" and not ASKED_OF_ANY.fullmatch(name))
    is_text = is_text and not source.json_texts.is_handled(read)
    # What gives nothing has no member, whoever asks.
    if is_text or last == "void" or not source.guards.cover(name, node):
        return ""
    # What an object of the script's own has, the script knows.
    here, around, is_first = node, node.parent, text_of(read) not in map(text_of, source.found["made"])
    while around is not None:
        is_choice, default = operator_of(around) in _CHOICES, field(around, "right")
        is_default = is_choice or around.type.endswith("assignment_pattern")
        if default is not None and is_default and here == field(around, "left"):
            is_count = default.type == "number" and source.text(here).endswith(".length")
            guard = "alone" if is_count else _DEFAULTS.get(default.type)
            if guard is not None and (is_first or guard == "alone"):
                return guard if is_first else "defaulted"
        if not is_choice and around.type not in _PASSED_ON:
            break
        here, around, is_first = around, around.parent, is_first and not is_choice
    return "asked"


def _is_union(text: str) -> bool:
    """Says whether a printed type is one of several; what is in brackets is not looked at."""
    left = 1
    while left:
        text, left = _INNERMOST.subn("", text)
    return " | " in text


def _is_of_object(receiver: str) -> bool:
    """Says whether a type that lacks a member is an object's: no result of another shape is read wrongly."""
    return not (
        receiver.endswith("[]")
        or receiver.startswith(_PROMISED)
        or is_json_text(receiver)
        or _MODULE.fullmatch(receiver)
        or _PLAIN.fullmatch(receiver)
    )


def is_json_text(receiver: str) -> bool:
    """Says whether a printed type is that of a text that holds JSON."""
    return receiver.startswith((JSON_TEXT, *_WRITTEN_OUT)) and not receiver.endswith("[]")


def _is_known(receiver: str, declarations: str) -> bool:
    """Says whether a type comes from what Cellblock declares, or is one that scripts do not add members to."""
    if (
        _MODULE.fullmatch(receiver)
        or receiver.startswith((*_PROMISED, "Map<", "Set<"))
        or _PLAIN.fullmatch(receiver)
    ):
        return True
    base = receiver.removesuffix("[]")
    if (
        is_json_text(base.removeprefix("(").removesuffix(")"))
        or (base.startswith("{") and base != "{}")
        or (base != receiver and base in ("any", "unknown"))
    ):
        return True
    declared = rf"\b(?:type|interface) {re.escape(base)}\b"
    return _IDENTIFIER.fullmatch(base) is not None and re.search(declared, declarations) is not None


# ---- arguments of tools ------------------------------------------------------------------------------------


def _argument_counts(message: str) -> bool:
    deepest = message.splitlines()[-1].strip()
    if any(said in deepest for said in _NOT_TO_BE_SAID):
        return False
    match = _NOT_ASSIGNABLE.match(deepest.removesuffix("."))
    if match is None or match[2][-1:] != "'":
        return True
    given, wanted = match[1], match[2][:-1]
    # `const input = { state: "open" }` makes the state a string: only what is certainly wrong counts.
    literal = given.startswith('"') or given.isdigit()
    if wanted.startswith("{"):
        # A text may hold the JSON of one, which is taken.
        return given.isdigit() or given in ("number", "boolean")
    return _PLAIN.fullmatch(wanted) is not None or (literal and '"' in wanted)


def _called(node: Node, source: ParsedScript) -> tuple[str, str] | None:
    """Gives the module and the export of the call that a node is in; None when it is none of `@codemode/…`."""
    found = source.meanings.of(field(nearest(node, "call_expression", *_SCOPES), "function"))
    return (found.module, found.export) if found is not None and found.kind == "tool" else None


def _owner(key: Node, source: ParsedScript) -> str:
    """Gives the property in whose value a key stands; empty for the input itself."""
    named = field(nearest(nearest(key, "object"), "call_expression", "pair"), "key")
    return source.text(named).strip("\"'") if named is not None else ""


def _is_type_import(node: Node, name: str, source: ParsedScript) -> bool:
    """Says whether an import is of one of the types that declarations show, which are not there when a script runs."""
    statement = [
        part for part in _upwards(node, source) if part.type in ("import_specifier", "import_statement")
    ]
    return name[:1].isupper() or any(child.type == "type" for part in statement for child in part.children)


def _is_required(node: Node, source: ParsedScript) -> bool:
    """Says whether a node is a declaration whose value is a call of `require`."""
    value = field(node, "value") if node.type == "variable_declarator" else None
    while value is not None and value.type in ("call_expression", "member_expression"):
        value = field(value, "function") or field(value, "object")
    return value is not None and value.type == "identifier" and source.text(value) == "require"
