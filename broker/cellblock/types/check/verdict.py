"""Finds which of the compiler's complaints count: those that a script would trip over when it runs.

Scripts are loosely typed JavaScript, and what is known of tools may be little. So a complaint counts only when it is
about something that Cellblock knows: a member of a tool's output or of a module, a tool's arguments, a name that
nothing declares. Code that looks before it reads (`a.b ?? c`, `if (a.b)`, `typeof b`) is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal

from tree_sitter import Node

from cellblock.base.json import is_object
from cellblock.script.lines import CompilerPlaces
from cellblock.script.trees import arguments_of, captured, field, nodes_of, operator_of
from cellblock.types.check.comparisons import COMPARISON, Comparisons, may_compare
from cellblock.types.check.misuse import COMPLAINED, QUERY, STARTS, WRITTEN
from cellblock.types.check.parsed import ParsedScript, TextKind, Tool, literal_around, text_of

MAX_SUBJECT_CHARS: Final = 60

MAX_NAMED_CHARS: Final = 100

Guard = Literal["", "asked", "defaulted"]

MAX_JUDGED: Final = 200
"""Bounds the complaints of one script that are looked at, in the order of the text."""

BRACKETS: Final = 7053
"""Names the finding of a member that is read in brackets, and is not there or is not known before the script runs."""

MEMBER: Final = frozenset({2339, 2551, BRACKETS})
EXPORT: Final = frozenset({2305, 2724, 2614, 1192})
NAME: Final = frozenset({2304, 2307, 2552, 2580, 2581, 2582, 2583, 2584, 2591, 2592, 2593, 2868, 18004})
ARGUMENT: Final = frozenset({2322, 2345, 2353, 2554, 2555, 2561, 2739, 2740, 2741, 2820})
SPREAD: Final = 2698
"""Names the finding of something spread into an object that is none; the compiler does not say what it is."""

NUMBERED: Final = 0
"""Names a finding of our own: the characters of a text that holds JSON are read by number, or by `for … in`; or it is
asked whether the text is an array."""

ADDED: Final = frozenset({2322, 2769})
"""Name the findings of a text where a number has been so far; 2322 is of arguments, too."""

MISUSED: Final = -1
"""Names a finding of our own: what the language has is never meant so; `hint` says what is."""

OPERANDS: Final = frozenset({2362, 2363})
"""Name the findings of what is subtracted, and is no number."""

MISUSES: Final = frozenset({2365, 7052})
"""Name findings that count as misuses alone (`misuse`)."""

CHARACTERS: Final = frozenset({2488, 6387, SPREAD, NUMBERED})
"""Name the findings of iterating, spreading, or listing the keys of a text that holds JSON, which cannot be meant
(`typescript.modules`)."""

KEY: Final = frozenset({2353, 2561})
"""Name the finding of a key of a literal that its type does not have."""

REQUIRE: Final = 2591
"""Names the finding of a `require` that the compiler does not know."""

# A script's own texts stand in messages: no name goes past what may be another beginning.
_ON_TYPE: Final = re.compile(
    r"Property '((?:(?!Property ').)*?)' does not exist on type '((?:(?!Property ').)*?)'\.", re.DOTALL
)
_OF_JSON_TEXT: Final = re.compile(r"Type 'JsonText<|The signature '\(text: JsonText<")
_BIGINT: Final = re.compile(r"\bbigint\b")
_BIGINT_FOR: Final = re.compile(
    r"'(?:number \| )?bigint' is not assignable to (?:parameter of )?type '([^']*)'"
)
_SPECIFIER: Final = re.compile(r'"(@codemode/[^"]*)"')
_MODULE: Final = re.compile(r'typeof import\("@codemode/[^"]*"\)')
_OF_LANGUAGE: Final = ("Promise<", "Map<", "Set<")
_PLAIN: Final = re.compile(r"(?:string|number|boolean)(?:\[\])*(?: \| (?:string|number|boolean)(?:\[\])*)*")
_NOT_ASSIGNABLE: Final = re.compile(
    r"(?:Type|Argument of type) '(.*)' is not assignable to (?:parameter of )?type '(.*+)", re.DOTALL
)
JSON_TEXT: Final = "JsonText<"
"""Begins the printed type of a text that holds JSON."""

_WRITTEN_OUT: Final = ("string & { readonly [jsonOf]:", "String & { readonly [jsonOf]:")

_NOT_TO_BE_SAID: Final = (
    # Of a whole value that is passed on, and of a list that may well be long enough.
    "has no properties in common with type",
    "Source provides no match for required element",
    "Target requires ",
    "is optional in type",
)
_INNERMOST: Final = re.compile(r"\{[^{}()<>]*\}|\([^{}()<>]*\)|<[^{}()<>]*>")
_NO_NUMBER: Final = "Type 'string' is not assignable to type 'number'."
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
ASKED_OF_ANY: Final = frozenset(["content", "error", "errors", "isError", "warnings"])
"""Names members that scripts ask for of any answer."""

_PASSED_ON: Final = frozenset(["member_expression", "parenthesized_expression", "call_expression"])
_CHOICES: Final = frozenset(["??", "||"])
_DEFAULTS: Final = frozenset(["array", "object"])
_LISTS: Final = ("Object.keys", "Object.values", "Object.entries", "Array.from")
_SCOPES: Final = frozenset(
    ["arrow_function", "function_expression", "function_declaration", "method_definition"]
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Describes one complaint that counts. `line` and `column` are as in `script_lines`, as the sandbox's are."""

    code: int
    message: str
    line: int
    column: int
    name: str
    """Holds the text that the complaint is about."""

    receiver: str | None = None
    """Holds the type that lacks a member, as the compiler prints it."""

    position: tuple[int, int] = (0, 0)
    """Holds line and column from 0, for the compiler."""

    module: str = ""
    """Names, of a complaint about arguments, from which module the called function is; of `require`, what it
    asks for."""

    called: str = ""
    """Holds the name that this module exports the called function by."""

    owner: str = ""
    """Holds the property whose value is at fault, or lies in what is at fault; empty for the input itself."""

    subject: str = ""
    """Holds, of a member or of characters, the expression that they are read of, where it is a short one."""

    hint: str = ""
    """Says what to do, where that is known with what is wrong."""

    described: str = ""
    """Holds a pattern that the compiler's description of the place has to fit."""

    choices: tuple[str, ...] = ()
    """Lists, of a comparison, what the declared enum has, as JSON writes it."""

    tool: Tool | None = None
    """Names, of a text, the tool that it is from, where that is known."""

    other_keys: tuple[tuple[str, int, int], ...] = ()
    """Lists, of an undeclared key, the literal's other keys, each with its line and column from 0. The compiler
    tells of one key in a literal only."""

    element_at: tuple[int, int] | None = None
    """Holds, of a member of what brackets give, where these begin."""

    guard: Guard = ""
    """Says whether the script asks if a member is there, and takes a default in its place."""

    read: frozenset[str] | None = None
    """Holds, where it asks, the members that it reads of the same; None where these may be any."""


def at_key(complaint: Complaint, name: str, line: int, column: int, code: str) -> Complaint:
    """Gives the same complaint about another key of the literal; its place counts from 0."""
    said = complaint.message.partition(" Did you mean")[0]
    said = said.replace(f"'{complaint.name}' does not exist", f"'{name}' does not exist", 1)
    at = CompilerPlaces(code).place(line + 1, column + 1)
    return replace(
        complaint, message=said, name=name, line=at[0], column=at[1], position=(line, column), other_keys=()
    )


def judge(
    raw: list[Any],
    code: str,
    declarations: str,
    *,
    typescript: bool,
    texts: Mapping[Tool, TextKind],
) -> list[Complaint]:
    """Gives the complaints that count, in the order of the text.

    Args:
        raw: Items of a diagnostic report (language server protocol 3.17), untrusted in shape.
        code: What was checked; must have no lone surrogate.
        declarations: What it was checked against.
        typescript: Whether it is TypeScript and no JavaScript.
        texts: The tools that answer with texts.

    Raises:
        ValueError: The script cannot be parsed within `PARSE_BOUND_SECONDS`.
    """
    wanted = MEMBER | EXPORT | NAME | ARGUMENT | COMPARISON | CHARACTERS | ADDED | OPERANDS | MISUSES
    found = [item for item in raw if is_object(item) and item.get("code") in wanted][:MAX_JUDGED]
    source = ParsedScript(code, typescript)
    comparisons = Comparisons(source.found, declarations)
    numbered = [_numbered(*place, source) for place in source.json_texts.misused(texts)]
    at = {complaint.position for complaint in numbered}
    complaints = [_complaint(item, source, declarations, comparisons) for item in found]
    counted = [one for one in complaints if one is not None and one.element_at not in at]
    complaints = [*numbered, *_by_number(source), *_written(source, typescript), *counted]
    return sorted(complaints, key=lambda complaint: complaint.position)


def _written(source: ParsedScript, typescript: bool) -> Iterator[Complaint]:
    """Tells of what is written as no script means it."""
    nodes = nodes_of(source.root, STARTS, typescript=typescript).values()
    starts = chain.from_iterable(some[:MAX_JUDGED] for some in nodes)
    for name, node in captured(starts, QUERY, typescript=typescript):
        if name in WRITTEN:
            (line, column), text = source.position(node), source.text(node)
            said, hint, described = WRITTEN[name]
            at = CompilerPlaces(source.code).place(line + 1, column + 1)
            made = Complaint(MISUSED, said.format(text), *at, text, position=(line, column))
            yield replace(made, hint=hint.format(text), described=described)


def _numbered(read: Node, wrong: str, kind: TextKind, source: ParsedScript) -> Complaint:
    """Makes the complaint about a text that is read by its characters, or is taken for an array or object."""
    line, column = source.position(read)
    at = CompilerPlaces(source.code).place(line + 1, column + 1)
    subject, tool = _short(read, source), source.json_texts.tool(read)
    # Of one that an object holds, there is nothing to find out after the run.
    receiver = {"json": JSON_TEXT, "plain": "string"}.get(kind, "")
    return Complaint(NUMBERED, wrong, *at, subject, receiver, (line, column), subject=subject, tool=tool)


def _by_number(source: ParsedScript) -> Iterator[Complaint]:
    """Tells of `for (const line in text.split("\\n"))`, where nothing is read by the number that `line` is."""
    found = source.found
    named = {text_of(name) for name in found["given"] if _splits(field(name.parent, "value"))}
    numbers = {text_of(index) for index in found["index"]}
    for lines in found["numbered"]:
        name = field(lines.parent, "left")
        is_list = _splits(lines) or text_of(lines) in named
        if name is None or not is_list or text_of(name) in numbers:
            continue
        line, column = source.position(lines)
        said, hint = (
            "`for … in` gives the numbers of the lines.",
            "Take the lines themselves: `for (const … of …)`.",
        )
        at = CompilerPlaces(source.code).place(line + 1, column + 1)
        yield Complaint(MISUSED, said, *at, source.text(lines), position=(line, column), hint=hint)


def _splits(node: Node | None) -> bool:
    return text_of(field(node, "function", "property")) == b"split"


def _complaint(
    item: dict[str, Any], source: ParsedScript, declarations: str, comparisons: Comparisons
) -> Complaint | None:
    number, message = int(item["code"]), str(item["message"])
    wanted = _BIGINT_FOR.search(message)
    if number not in OPERANDS and _BIGINT.search(message) and (wanted is None or "number" in wanted[1]):
        # Inputs take them as integers.
        return None
    start, end = item["range"]["start"], item["range"]["end"]
    line, column = int(start["line"]), int(start["character"])
    first, last = source.offset(line, column), source.offset(int(end["line"]), int(end["character"]))
    node = source.node(first, last)
    if node is None or any(part.type in _ERASED for part in _upwards(node, source)):
        return None
    name = source.code[first:last]
    if number == BRACKETS:
        index = field(node, "index")
        if index is None or index.type not in ("string", "number"):
            return None
        node, (line, column) = index, source.position(index)
    at = CompilerPlaces(source.code).place(line + 1, column + 1)
    made = Complaint(number, message, *at, name, position=(line, column))
    if number in MEMBER:
        return _of_member(made, node, source, declarations)
    if number in NAME:
        return _of_name(made, source.code[max(0, first - 100) : first], source)
    if number in EXPORT:
        if _is_type_import(node, name, source):
            return None
        if not any(_is_required(part, source) for part in _upwards(node, source)):
            return made
        # The compiler takes it for an import, which the sandbox does not.
        specifier = _SPECIFIER.search(message)
        return replace(made, code=REQUIRE, name="require", module=specifier[1] if specifier else "")
    if (misuse := _misuse(made, node, source)) is not None:
        return misuse
    if may_compare(number, node):
        foreign = comparisons.foreign(message, node)
        if foreign is None:
            return None
        return replace(made, name=foreign.value, choices=foreign.choices, subject=_short(foreign.of, source))
    if number in CHARACTERS:
        if number != SPREAD and _OF_JSON_TEXT.match(message) is None:
            return None
        tool = source.json_texts.tool(_listed(node, source) or node)
        return replace(made, receiver=JSON_TEXT, subject=_subject(node, source), tool=tool)
    return _of_argument(made, node, source) if number in ARGUMENT else None


def _of_member(made: Complaint, node: Node, source: ParsedScript, declarations: str) -> Complaint | None:
    match = _ON_TYPE.search(made.message)
    if _may_be_in_itself(_read_of(node), source):
        return None
    if match is None:
        return None
    guard = _guard(match[1], match[2], made.message, node, source)
    if not _member_counts(match[1], match[2], made.message, source, declarations):
        return None
    # Of a union, the type that lacks the member is named last.
    last = [found[2] for found in _ON_TYPE.finditer(made.message)][-1]
    read, is_text = _read_of(node), last == "string" or is_json_text(last)
    line, column = made.position
    subject = _subject(node, source)
    return replace(
        made,
        name=match[1],
        receiver=last if is_json_text(last) else match[2],
        # What could stand in a text is asked for in it, not in front of it.
        position=(line, column + (node.type == "string")),
        subject=subject,
        tool=source.json_texts.tool(read) if is_json_text(match[2]) or is_text else None,
        element_at=source.position(read)
        if read is not None and read.type == "subscript_expression"
        else None,
        guard=guard,
        read=source.names_read(read if subject else None) if guard else None,
    )


def _of_name(made: Complaint, before: str, source: ParsedScript) -> Complaint | None:
    if made.name[:1] in ('"', "'", "`"):
        if not re.search(r"\brequire\s*\(\s*$", before):
            return None  # An import: the plan, or the script's own exception, tells it better.
        made = replace(made, name="require", module=made.name[1:-1])
    return None if re.search(rf"\btypeof\s+{re.escape(made.name)}\b", source.code) else made


def _of_argument(made: Complaint, node: Node, source: ParsedScript) -> Complaint | None:
    function = _called(node, source)
    if function is None or not _argument_counts(made.code, made.message):
        return None
    is_key = made.code in KEY
    return replace(
        made,
        name=made.name.strip("\"'") if is_key else made.name,
        module=function[0],
        called=function[1],
        owner=_owner(node, source, of_member=is_key),
        other_keys=source.other_keys(node) if is_key else (),
    )


def _added(node: Node) -> Node | None:
    """Gives what is added to a number: by `+=`, as `total = total + …`, or in the callback of `reduce`."""
    around = node if node.type == "binary_expression" else node.parent
    if around is not None and around.type == "assignment_expression":
        around = field(around, "right")
    if around is None or operator_of(around) not in ("+", "+="):
        return None
    added = field(around, "right")
    return None if added is None or added.type in ("string", "template_string") else added


def _misuse(made: Complaint, node: Node, source: ParsedScript) -> Complaint | None:
    """Makes the complaint about what no script means so; None where it may be meant."""
    if made.message.endswith(_NO_NUMBER) and (added := _added(node)) is not None:
        what, number = source.text(added)[:MAX_NAMED_CHARS], _short(added, source) or "…"
        said = f"`{what}` is text: added to a number, its characters are appended."
        return replace(made, code=MISUSED, message=said, hint=f"Add `Number({number})`.")
    around = call = node.parent
    while call is not None and call.type not in ("call_expression", "statement_block"):
        call = call.parent
    texts = [source.text(one) for one in (field(call, "function"), around, node) if one is not None]
    if around is not None and operator_of(around) == "||":
        return None
    for message, code, wrong, hint, described in COMPLAINED:
        said = re.search(message, made.message)
        written = next(filter(None, (re.fullmatch(code, text, re.DOTALL) for text in texts)), None)
        if said is not None and written is not None:
            found = {**said.groupdict(), **written.groupdict(), "text": source.text(node)}
            found["short"] = _short(node, source) or "…"
            made = replace(made, code=MISUSED, message=wrong.format(**found), hint=hint.format(**found))
            at = source.position(field(node, "property") or node)
            return replace(made, position=at, described=described)
    return None


def _may_be_in_itself(read: Node | None, source: ParsedScript) -> bool:
    """Says whether a value is one that the script has looked for in a member and in what has it: `u.result ?? u`."""
    text = source.text(read) if read is not None else ""
    if _IDENTIFIER.fullmatch(text):
        return re.search(rf"(?<![\w$.]){re.escape(text)}\s*=\s*{_EITHER}", source.code) is not None
    return re.fullmatch(rf"\(\s*{_EITHER}\s*\)", text) is not None


def _subject(node: Node, source: ParsedScript) -> str:
    """Gives what a member is read of, what is iterated, or what a function is called with; empty where no name
    says it."""
    parent = node.parent
    read: Node | None = node.named_children[0] if node.type == "spread_element" else node
    if parent is not None and parent.type == "member_expression" and node.type == "property_identifier":
        listed = _listed(node, source)
        read = field(parent, "object") if listed is None else listed
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


def _guard(name: str, receiver: str, message: str, node: Node, source: ParsedScript) -> Guard:
    last = [match[2] for match in _ON_TYPE.finditer(message)][-1]
    # A guard says that a field may be missing, not that the value may be a text; of any answer one may ask for these.
    is_text = is_json_text(last) or (receiver == "string" and name not in ASKED_OF_ANY)
    is_text = is_text and not source.json_texts.is_handled(_read_of(node))
    if is_text or not source.guards.cover(name, node):
        return ""
    here, around = node, node.parent
    while around is not None:
        is_choice, default = operator_of(around) in _CHOICES, field(around, "right")
        if default is not None and (is_choice or around.type.endswith("assignment_pattern")):
            is_count = default.type == "number" and source.text(here).endswith(".length")
            if here == field(around, "left") and (is_count or default.type in _DEFAULTS):
                return "defaulted"
        if not is_choice and around.type not in _PASSED_ON:
            break
        here, around = around, around.parent
    return "asked"


def _member_counts(name: str, receiver: str, message: str, source: ParsedScript, declarations: str) -> bool:
    if re.search(rf"\.\s*{re.escape(name)}\s*(?:[-+*/%&|^]|\?\?|\|\||&&)?=(?![=>])", source.code):
        return False  # The script itself gives it the member.
    lacking = [match[2] for match in _ON_TYPE.finditer(message)]
    if len(lacking) > 1 or _is_union(receiver):
        # Of a union the compiler names one type that lacks the member; another may have it.
        return _is_known(lacking[-1], declarations) and not re.search(rf"\b{re.escape(name)}\b", declarations)
    return _is_known(receiver, declarations)


def _is_union(text: str) -> bool:
    """Says whether a printed type is one of several; what is in brackets is not looked at."""
    left = 1
    while left:
        text, left = _INNERMOST.subn("", text)
    return " | " in text


def is_of_object(complaint: Complaint) -> bool:
    """Says whether a member is not there because an object does not have it: no result of another shape is read
    wrongly."""
    if complaint.code not in MEMBER or complaint.receiver is None:
        return False
    receiver = complaint.receiver
    other = receiver.endswith("[]") or receiver.startswith("Promise<") or is_json_text(receiver)
    return not other and _MODULE.fullmatch(receiver) is None and _PLAIN.fullmatch(receiver) is None


def is_json_text(receiver: str) -> bool:
    """Says whether a printed type is that of a text that holds JSON."""
    return receiver.startswith((JSON_TEXT, *_WRITTEN_OUT)) and not receiver.endswith("[]")


def _is_known(receiver: str, declarations: str) -> bool:
    """Says whether a type comes from what Cellblock declares, or is one that scripts do not add members to."""
    if _MODULE.fullmatch(receiver) or receiver.startswith(_OF_LANGUAGE) or _PLAIN.fullmatch(receiver):
        return True
    base = receiver.removesuffix("[]")
    if is_json_text(base.removeprefix("(").removesuffix(")")):
        return True
    if (base.startswith("{") and base != "{}") or (base != receiver and base in ("any", "unknown")):
        return True
    declared = rf"\b(?:type|interface) {re.escape(base)}\b"
    return _IDENTIFIER.fullmatch(base) is not None and re.search(declared, declarations) is not None


# ---- arguments of tools ------------------------------------------------------------------------------------


def _argument_counts(number: int, message: str) -> bool:
    deepest = message.splitlines()[-1].strip()
    if any(said in deepest for said in _NOT_TO_BE_SAID):
        return False
    match = _NOT_ASSIGNABLE.match(deepest.removesuffix("."))
    if match is None or match[2][-1:] != "'" or number in (2554, 2555):
        return True
    given, wanted = match[1], match[2][:-1]
    if given == "unknown":
        return False
    # `const input = { state: "open" }` makes the state a string: only what is certainly wrong counts.
    literal = given.startswith('"') or given.isdigit()
    if wanted.startswith("{"):
        # A text may hold the JSON of one, which is taken.
        return given.isdigit() or given in ("number", "boolean")
    return _PLAIN.fullmatch(wanted) is not None or (literal and '"' in wanted)


def _called(node: Node, source: ParsedScript) -> tuple[str, str] | None:
    """Gives the module and the export of the call that a node is in; None when it is none of `@codemode/…`."""
    here: Node | None = node
    while here is not None and here.type not in _SCOPES:
        if here.type == "call_expression":
            found = source.meanings.of(field(here, "function"))
            return (found.module, found.export) if found is not None and found.kind == "tool" else None
        here = here.parent
    return None


def _owner(node: Node, source: ParsedScript, *, of_member: bool) -> str:
    """Gives the property whose value a complaint is about, or whose value has the member that it is about."""
    # From the member's name to the object that it is in.
    here = literal_around(node) if of_member else node
    while here is not None and here.type != "call_expression":
        parent = here.parent
        if parent is not None and parent.type == "pair":
            key = field(parent, "key")
            return source.text(key).strip("\"'") if key is not None else ""
        if here.type.startswith("shorthand_property"):
            return source.text(here)
        here = parent
    return ""


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
