"""Notes what the tools of one run have answered, to tell afterwards whether the types that its script was checked
against are true."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.base.suggest import rated_names
from cellblock.tools.catalog.model import ResultKind, ServerEntry, ToolEntry, ToolOutput
from cellblock.types.typescript.text import letters

MAX_KEPT_BYTES: Final = 2 * 1024 * 1024
"""Bounds the bytes of answers that one run keeps until its end, to look for fields in them, in 0.2 s; they are not
copied."""

END_BYTES: Final = 2 * 1024
"""Bounds the bytes at each end of an answer in which it is looked for what says that there is more."""

_MORE: Final = re.compile(
    rb'"((?:next_?[cC]ursor|next_?[pP]age(?:_?[tT]oken)?|next_?[tT]oken|has_?[mM]ore|has_?[nN]ext(?:_?[pP]age)?|(?:is_?)?[tT]runcated|incomplete_?[rR]esults))\\*"'
    rb'\s*+:\s*+(?:true|[1-9]|\\*"[^"\\])'
)
_PAGE: Final = re.compile(rb'"(?:current_?[pP]age|page|page_?[nN]umber)\\*"\s*+:\s*+(\d{1,9})\b')
_PAGES: Final = re.compile(rb'"(total_?[pP]ages|page_?[cC]ount|last_?[pP]age|pages)\\*"\s*+:\s*+(\d{1,9})\b')

_REFUSED: Final = re.compile(
    rb'"(?:(?i:error|failed|failure)\b[^"\\]{3,200}|\{?\s*+\\*"?(?:ok|success)\\*"\s*+:\s*+false\b)'
    rb'|\{\s*+"(?P<flag>ok|success|\w++(?="\s*+:\s*+false\s*+,\s*+"(?:reason|error|message)))"\s*+:\s*+false\b'
)
"""Fits the beginning of an answer that says that the tool has not done what was asked."""

_TOTAL: Final = re.compile(rb'"(?:count|total(?:_?(?:[cC]ount|[iI]tems|[rR]esults))?)\\*"')

MAX_INPUT_BYTES: Final = 64 * 1024
"""Bounds the bytes of one input, or of an answer with a total, that are looked at, in 2 ms."""

_MADE_TEXT: Final = re.compile(
    r'\[object (?:Object|Promise)\]|\bNaN\b|(?<!")\bundefined\b|\bundefined\b(?!"(?!:))'
)
"""Matches what becomes of an object, a promise, NaN and `undefined` in a text or a key; a text that is this last one
alone may be meant: a type."""

_NULL: Final = b'"null"'
"""Is in an input in which null has become a text."""

What = Literal["json text", "text", "value"]
"""Names what a script has got; a value is anything that is no text."""

_Tool = tuple[str, str]
"""Names a tool by its server's id and its own name."""

_Place = tuple[_Tool, tuple[str, ...]]
"""Says where in the answers of a tool objects are: by the members on the way, and `_THROUGH` for elements and texts."""

_THROUGH: Final = ""
_NUMBER: Final = re.compile(rb"-?\d{1,30}(?:\.\d{1,30})?")
_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{5,30}(Z|[-+]\d\d:?\d\d)")
_ODD_DATE: Final = re.compile(
    rb"(?:\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}-\d{1,2}-\d{1,2}|"
    rb"(?:[A-Z][a-z]{2,8},? )?(?:\d{1,2} [A-Z][a-z]{2,8}|[A-Z][a-z]{2,8} \d{1,2}),? \d{4})(?:,?[ T].{0,30})?"
)
"""Fits dates that begin with the day or the month, or may have parts without a zero before them."""

_OF_ANSWERS: Final = {
    "a number alone": re.compile(rb'\A"?-?\d{1,30}(?:\.\d{1,30})?"?\Z'),
    "header": re.compile(
        rb'\A"[A-Za-z_][\w .]*(?:[,;|][A-Za-z_][\w .]*)+(?:\\r)?\\n[^"\\,;|]*[,;|][^"\\\d]*\d[^"\\]*\\'
    ),
    "blocks": re.compile(rb'"type":\s*+"text".*"type":\s*+"text"', re.DOTALL),
}
"""Find what whole answers may be."""

_ISO: Final = re.compile(rb"\d{4}-\d{1,2}-\d{1,2}")

_QUOTED: Final = r"""(["'])([^"'\\\n]{1,100})\1"""

COMPARED: Final = (
    (
        re.compile(r"""\.(?P<field>[A-Za-z_$][\w$]*+)\s?[!=]={1,2}\s?(?P<texts>(["'])[^"'\\\n]{1,100}\3)"""),
        re.compile(_QUOTED),
    ),
    (
        re.compile(
            r"""\[\s*(?P<texts>(?:["'][^"'\\\n]{1,100}["'],?\s*){1,20})\]\.includes\((?:[\w$]++\??\.)+(?P<field>[\w$]++)\)"""
        ),
        re.compile(_QUOTED),
    ),
    (
        re.compile(
            r"\bswitch \((?:[\w$]++\??\.)+(?P<field>[\w$]++)\) ?\{(?P<texts>\s*case [\"'].{0,2000}?)(?:\bswitch \(|\Z)",
            re.DOTALL,
        ),
        re.compile(rf"\bcase {_QUOTED}"),
    ),
)
"""Matches comparisons of a field with texts, and each of these."""

MAX_COMPARED: Final = 50
"""Bounds the comparisons of one script that are looked at."""

MIN_OF_FEW: Final = 10
"""Sets the least texts of a field that, as there are at most `MAX_FEW` of them, are likely all that it can have."""

MAX_FEW: Final = 6

_INPUT: Final = re.compile(r"\bawait [\w$.]{1,100}\(\{[^{}]{0,1000}\}")
"""Matches calls with what they are given: a text there is the tool's."""

MIN_LIKENESS: Final = 0.9
"""Sets how like a text is to one of a field that is meant by it: `canceled`, `cancelled`."""

MIN_SHARED: Final = 4
"""Sets the letters at the beginning that a text shares with one that may be meant by it: `FAILED`, `FAILURE`."""

_JOINED: Final = re.compile(
    r"\.(?P<one>[\w$]+) ?===? ?[\w$]+(?:\.[\w$]+)*\.(?P<other>[\w$]+)(?![\w$.(])"
    r"|\.(?:get|has|includes|indexOf)\((?:[\w$]+\.)+(?P<key>[\w$]+)\)"
)
"""Matches what finds records by a field of others."""

_NORMAL: Final = re.compile(r"to(?:Locale)?(?:Low|Upp)erCase|localeCompare|pad(?:Start|End)|normalize|/i\b")
"""Finds that a script brings texts into one form."""

_WORD: Final = re.compile(rb"(?<![\w@.-])[\w@.-]{0,40}\d[\w@.-]{0,40}")

_SUMMED: Final = re.compile(r"\+=? ?(?:Number\(|parseFloat\(|\+)?(?P<chain>[\w$]+(?:\??\.[\w$]+)+)")
_UNITS: Final = ("currency", "currency_code", "currencyCode", "period", "unit", "units", "uom")

QUICK_BYTES: Final = 128 * 1024
"""Bounds what is looked through on the loop, the bytes of the answers for each use of a field: in 20 ms."""

OF_VALUES: Final = (
    (
        re.compile(r"\((\w++), ?(\w++)\) ?=> ?\1\.(?P<field>[\w$]++) ?- ?\2\.(?P=field)(?![\w$.])"),
        "nulls",
        "is null in some results, and ordered as 0",
        "Leave these out first, or give a default: `(a.{0} ?? Infinity) - …`.",
    ),
    (
        re.compile(r"=> ?\w++ ?\+ ?\w++\.(?P<field>[\w$]++), ?0\) ?/ ?[\w$.]++(?<=\.length)"),
        "nulls",
        "is null in some results, and counts as 0 in the average",
        "Leave these out first: `.filter((one) => one.{0} !== null)`.",
    ),
    (
        re.compile(r"new Date\(\w++(?:\[\w++\])?\.(?P<field>[\w$]++)\)(?:\.getTime\(\))? ?(?:<|- )"),
        "nulls",
        "is null in some results, of which `new Date` makes 1970",
        "Leave these out first: `one.{0} !== null && …`.",
    ),
    (
        re.compile(r"\.(?P<field>[\w$]++) ?(?:===? ?(?:\"\"|'')|=== ?undefined\b)"),
        "no empty text",
        "is null where there is nothing, and never empty or undefined",
        "Compare with null: `one.{0} === null`.",
    ),
    (
        re.compile(r"(?:=>|\bif ?\(|&&|\|\|) ?!?\w++\.(?P<field>[\w$]++) ?(?:\)|&&|\|\||\?[^?.])"),
        "booleans",
        "is a text such as 'true', 'false' or 'no', all of which count as true",
        "Compare it: `one.{0} === 'true'`, as it is written.",
    ),
    (
        re.compile(
            r"(?:const|let) (?P<time>\w++) = (?:Date\.now\(\)|new Date\()(?![^;\n]{0,200}/ ?\(?1(?:000|e3|_000)\b)"
            r"[^;\n]{0,200};(?:(?! = (?:Date\.now|new Date)\().){0,2000}?\.(?P<field>[\w$]++) ?[<>]=? ?(?P=time)\b",
            re.DOTALL,
        ),
        "seconds",
        "counts seconds, and is compared with milliseconds",
        "Multiply it: `one.{0} * 1000`.",
    ),
    (
        re.compile(
            r"\.(?P<field>split)\((?:([\"'`])\\n\2|/\\r\?\\n/)\)"
            r"(?!(?s:.){0,800}?(?:slice|shift|splice|\.\.\.|let \w+ = 1;|> 0\b|length - 1|\[0\]))(?s:.){0,400}?\.length"
        ),
        "header",
        "gives the header of a table as a line, too",
        "Leave it out: `.{0}(…).slice(1)`.",
    ),
    (
        re.compile(r"\.(?P<field>content)\??\.?\[0\]"),
        "blocks",
        "has several blocks, of which the first alone is read",
        "Read them all: `….content.map((block) => block.text)`.",
    ),
)
"""Lists what is done with fields that is wrong where they have such values: how it is written, the values, what is
wrong, and what to write."""


def made_in(text: str) -> str | None:
    """Gives the first that became of an object, a promise, NaN or `undefined` in the texts of JSON."""
    # One of these is in each such text: most have none of them, which is found out in no time.
    may_have = "[object " in text or "NaN" in text or "undefined" in text
    found = _MADE_TEXT.search(text) if may_have else None
    return None if found is None else found[0]


def value_uses(code: str) -> int:
    """Counts the uses of fields in a script whose values in this run can show that it does something wrong."""
    patterns = (row[0] for row in (*COMPARED, *OF_VALUES, (_JOINED,), (_SUMMED,)))
    return sum(1 for pattern in patterns for _ in islice(pattern.finditer(code), MAX_COMPARED))


def _compared(code: str) -> Iterator[tuple[int, str, str]]:
    """Gives the fields that a script compares with texts, each with where that is, and the text."""
    for pattern, each in COMPARED:
        for match in pattern.finditer(code):
            yield from (
                (match.start("field"), match["field"], one[2]) for one in each.finditer(match["texts"])
            )


class ValueNote(NamedTuple):
    """Holds what is wrong, or in vain, with what a script does with a field: where, what, what to do, and the text that
    no result has. `is_wrong`: it is no matter of what was meant."""

    at: int
    message: str
    hint: str
    absent: str
    is_wrong: bool


class Answers:
    """Keeps notes of one run's answers, and of inputs that were made wrongly.

    Args:
        keeps: Whether fields will be looked for in them.
        on_text: Is called when a tool has answered with a text for the first time.

    Attributes:
        inputs: Has what `made_in` has found in inputs of tools, each with the first tool.
    """

    def __init__(self, keeps: bool, on_text: Callable[[], None] = lambda: None) -> None:
        self._on_text = on_text
        self._kinds: dict[_Tool, set[What]] = {}
        self._bodies: list[tuple[_Tool, bytes]] | None = [] if keeps else None
        self._values: dict[bytes, list[bytes]] = {}
        self._spellings: dict[str, dict[str, set[str]]] = {}
        self._bytes = 0
        self.inputs: dict[str, str] = {}
        self._ends: dict[_Tool, bytes] = {}

    def add(self, server_id: str, tool: str, kind: ResultKind, body: bytes) -> None:
        """Notes one successful answer, as the script got it."""
        kinds, what = self._kinds.setdefault((server_id, tool), set()), _what(kind, body)
        is_new = what not in kinds
        kinds.add(what)
        self._ends[server_id, tool] = (
            body if len(body) <= 2 * END_BYTES else body[:END_BYTES] + body[-END_BYTES:]
        )
        if self._bodies is not None:
            self._bytes += len(body)
            if self._bytes > MAX_KEPT_BYTES:
                self._bodies = None
            else:
                self._bodies.append(((server_id, tool), body))
        if is_new and what != "value":
            self._on_text()

    def sent(self, tool: str, body: bytes) -> None:
        """Notes an input that has the text of an object, or of a missing value, in it."""
        if _NULL in body:
            self.inputs.setdefault(_NULL.decode(), tool)
        made = made_in(body[:MAX_INPUT_BYTES].decode("utf-8", "replace"))
        if made is not None:
            self.inputs.setdefault(made, tool)

    def unread(self) -> list[tuple[str, str]]:
        """Gives the tools whose last answer said that there is more, each with the member that says so."""
        told: list[tuple[str, str]] = []
        bodies, times = dict(self._bodies or ()), Counter(of for of, _ in self._bodies or ())
        for of, ends in self._ends.items():
            tool = of[1]
            more, page, pages = _MORE.search(ends), _PAGE.search(ends), _PAGES.search(ends)
            if more is None and page is not None and pages is not None and int(page[1]) < int(pages[2]):
                more = pages
            if more is not None:
                told.append((tool, more[1].decode()))
            elif times[of] == 1 and (total := _total_beyond(bodies[of])) is not None:
                told.append((tool, total))
        return told

    def refusals(self, code: str) -> dict[str, str]:
        """Gives the tools that have answered that they did not do what was asked, each with what it said first, unless
        the script names what says so."""
        found = ((of[1], said) for of, body in self._bodies or () if (said := _REFUSED.match(body)))
        return {
            tool: said[0].decode("utf-8", "replace").strip('"')
            for tool, said in found
            if said["flag"] is None or re.search(rf"\b{said['flag'].decode()}\b", code) is None
        }

    def are_light(self, uses: int) -> bool:
        """Says whether they may be looked through on the loop for so many uses of fields."""
        return self._bytes * uses <= QUICK_BYTES

    def has(self, server_id: str, tool: str) -> bool:
        """Says whether a tool has answered."""
        return (server_id, tool) in self._kinds

    def may_have(self, field: str, tool: _Tool | None = None) -> bool:
        """Says whether an answer has a field of this name, or may have: they were too large to keep. `tool`: that
        whose answers count; None: of any."""
        return self._may_match(rb'"%s\\*"' % _written(field), tool)

    def holds(self, field: str, what: str) -> bool:
        """Says whether the fields of this name had such values as `WRITTEN` counts with (`types.check.misuse`)."""
        if what in _OF_ANSWERS:
            return any(map(_OF_ANSWERS[what].search, (body for _, body in self._bodies or ())))
        others = self._found(rb'"%s\\*"\s*+:\s*+(null\b|\{|-?\d[\d.]*+)' % _written(field))
        return _HOLDS[what](others, self._found(_texts_of(field)))

    def of_values(self, code: str, schemas: Sequence[object] = ()) -> list[ValueNote]:
        """Gives what a script does with a field that is wrong, or in vain, as results of this run have it, unless a
        schema of its tools has the text."""
        told: list[ValueNote] = []
        compared = [*islice(_compared(code), MAX_COMPARED)]
        own_code = _INPUT.sub("", code)
        for at, field, text in compared:
            if self._may_match(_pair(field, text), None):
                continue
            alike = self._spelt(field).get(letters(text), ())
            had = [*sorted(alike)[:1]] if text not in alike else []
            found = self._found(_texts_of(field))
            is_alike = bool(had)
            if not alike and len(text) >= MIN_SHARED and len({*found}) <= 2 * MAX_FEW:
                near = rated_names(text, sorted({one.decode("utf-8", "replace") for one in found}))
                is_alike = any(likeness >= MIN_LIKENESS for likeness, _ in near[:1])
                had = [one for _, one in near if is_alike or _may_mean(text, one)][:1]
            if not had and not alike and len(found) >= MIN_OF_FEW:
                had = sorted(one.decode("utf-8", "replace") for one in {*found})
                asked = {one[2] for one in compared if one[1] == field}
                had = had if len(had) <= MAX_FEW and asked.isdisjoint(had) else []
            # A script may have both, or give the field other texts itself.
            quoted = "|".join(map(re.escape, had))
            own = (
                rf"""(["'`])(?:{quoted})\1|\b{re.escape(field)}(?:\s?(?::|=(?!=))|\W{{1,3}}to\w{{0,6}}Case)"""
            )
            is_declared = bool(had) and json.dumps(text) in json.dumps(schemas)
            if had and not is_declared and re.search(own, own_code) is None:
                said = f"No result of this run has '{text}' in `{field}`."
                has = " or ".join(f"'{one}'" for one in had)
                told.append(ValueNote(at, said, f"Results have {has}.", text, is_alike))
        for pattern, what, said, hint in OF_VALUES:
            for match in islice(pattern.finditer(code), MAX_COMPARED):
                field = match["field"]
                # What is named elsewhere, too, may be asked for there.
                if code.count(field) == match[0].count(field) and self.holds(field, what):
                    is_wrong = what not in ("nulls", "no empty text")
                    told.append(
                        ValueNote(
                            match.start("field"), f"`{field}` {said}.", hint.format(field), "", is_wrong
                        )
                    )
        return [*told, *self._of_forms(code), *self._of_units(code)]

    def _of_forms(self, code: str) -> Iterator[ValueNote]:
        """Tells of records that are found by a text which the others have in another form: in other case, or with zeros
        before it."""
        for match in islice(_JOINED.finditer(code), 0 if _NORMAL.search(code) else MAX_COMPARED):
            field, other = match["key"] or match["one"], match["other"]
            own, forms = Counter(self._found(_texts_of(field))), defaultdict[bytes, set[bytes]](set)
            elsewhere = (
                self._found(_texts_of(other))
                if other
                else [one for one, n in self._words.items() if n > own[one]]
            )
            others = {*elsewhere}
            # One that is elsewhere as it is is found there.
            odd = own.keys() if other == field else own.keys() - others
            for one in odd | others:
                forms[one.lower().lstrip(b"0") if other else one.lower()].add(one)
            found = [same for same in forms.values() if len(same) > 1 and same & odd and same & others]
            if found:
                first, second = (one.decode("utf-8", "replace") for one in sorted(found[0])[:2])
                said = f"Texts in `{field}` are compared as they are written: results have '{first}' and '{second}'."
                hint = "Bring both into one form, such as with `.toLowerCase()`."
                yield ValueNote(match.start(), said, hint, "", True)

    def _of_units(self, code: str) -> Iterator[ValueNote]:
        """Tells of sums of what results have in several currencies or units, where the script names none."""
        sums = [*islice(_SUMMED.finditer(code), 0 if "urrenc" in code else MAX_COMPARED)]
        for unit in _UNITS if sums else ():
            kinds = sorted({one.decode("utf-8", "replace") for one in self._found(_texts_of(unit))})
            if not 1 < len(kinds) <= MAX_FEW or re.search(rf"\b{unit}\b", code) is not None:
                continue
            beside = set[str]().union(*(names for names in self._places.values() if unit in names))
            for match in sums:
                fields = [one for one in re.split(r"\W+", match["chain"])[1:] if one in beside]
                if fields:
                    said = f"`{fields[0]}` is summed, and results have several `{unit}`: {', '.join(kinds)}."
                    hint = "Sum each by itself, or convert them first."
                    yield ValueNote(match.start("chain"), said, hint, "", True)
                    return

    @cached_property
    def _places(self) -> dict[_Place, set[str]]:
        """Holds the names of the members that objects have, by where they are."""
        places = defaultdict[_Place, set[str]](set)
        for of, body in self._bodies or ():
            for path, names in _objects(body):
                places[of, path].update(names)
        return places

    @cached_property
    def _words(self) -> Counter[bytes]:
        """Counts the words with a digit."""
        return Counter(
            word for _, body in self._bodies or () for word in _WORD.findall(body.replace(b"\\n", b" "))
        )

    def _spelt(self, field: str) -> dict[str, set[str]]:
        """Gives the texts of the fields of this name, by their letters."""
        if field not in self._spellings:
            spellings = self._spellings[field] = defaultdict[str, set[str]](set)
            for one in {*self._found(_texts_of(field))}:
                text = one.decode("utf-8", "replace")
                spellings[letters(text)].add(text)
        return self._spellings[field]

    def _found(self, pattern: bytes) -> list[bytes]:
        if pattern not in self._values:
            found = re.compile(pattern)
            self._values[pattern] = [one for _, body in self._bodies or () for one in found.findall(body)]
        return self._values[pattern]

    def may_be_false(self, field: str) -> bool:
        """Says whether an answer has such a field that is false, or may have."""
        return self._may_match(rb'"%s\\*"\s*+:\s*+false\b' % _written(field), None)

    def may_say(self, text: str) -> bool:
        """Says whether an answer has such characters, or may have."""
        return self._may_match(re.escape(text.encode()), None)

    def _may_match(self, pattern: bytes, tool: _Tool | None) -> bool:
        if self._bodies is None:
            return bool(self._kinds)
        found = re.compile(pattern)
        return any(found.search(body) for of, body in self._bodies if tool in (None, of))

    def place_of(
        self, field: str, beside: Collection[str], tool: _Tool | None, compared: str = ""
    ) -> str | None:
        """Says where a field is that an object with the members `beside` was read for: empty where it is in such an
        object, or may be; else the way from there to it, such as `owner`; None where it is nowhere. Of a text, with
        which the field `compared` was compared, the same."""
        if not (self._may_match(_pair(compared, field), tool) if compared else self.may_have(field, tool)):
            return None
        if compared:
            return ""
        known = {place: names for place, names in self._places.items() if tool in (None, place[0])}
        alike = {place for place, names in known.items() if _are_alike(names - {field}, {*beside})}
        if not alike or any(field in known[place] for place in alike):
            return ""
        ways = [
            path[depth:]
            for (of, path), names in known.items()
            for depth in range(len(path) if field in names else 0)
            if (of, path[:depth]) in alike
        ]
        return min((".".join(way) for way in ways if _THROUGH not in way), key=len, default=None)

    def may_be_text(self, tool: tuple[str, str] | None) -> bool:
        """Says whether a tool may have answered JSON in a text, as far as this run knows: it gave no value. None is any
        tool of those that were called."""
        if tool is None:
            return not self._kinds or any("json text" in kinds for kinds in self._kinds.values())
        return "value" not in self._kinds.get(tool, ())

    def unlike(
        self, assumed: Iterable[tuple[ServerEntry, ToolEntry, ToolOutput | None]]
    ) -> Mapping[tuple[str, str], ToolOutput]:
        """Gives what tools have given that is a text where something else was assumed, or nothing was known.

        Args:
            assumed: What the script was checked against.
        """
        found: dict[tuple[str, str], ToolOutput] = {}
        for server, tool, output in assumed:
            key = server.server_id, tool.tool_name
            kinds = self._kinds.get(key)
            known_as_text = output is not None and (output.document is not None or output.text)
            if kinds and "value" not in kinds and not known_as_text:
                found[key] = as_text(output, is_json=kinds == {"json text"})
        return found


def _may_mean(text: str, one: str) -> bool:
    """Says whether a text is a word of another, or begins as it does."""
    begins = one[:MIN_SHARED].casefold() == text[:MIN_SHARED].casefold()
    return begins or text.casefold() in re.split(r"\W+", one.casefold())


def _written(text: str) -> bytes:
    """Gives a pattern of a text in JSON. Quotes of JSON in a text are behind backslashes."""
    written = {json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (True, False)}
    if len(written) == 1:
        # Without brackets its search begins with its characters, which is faster.
        return re.escape(written.pop())
    return rb"(?:%s)" % b"|".join(re.escape(one) for one in sorted(written))


def _objects(body: bytes) -> Iterator[tuple[tuple[str, ...], Iterable[str]]]:
    """Gives the names of each object's members, with the way to it."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), _parsed(body))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str) and value[:1] in ("{", "["):
            path, value = (*path, _THROUGH) if path else path, _parsed(value)
        if is_object(value):
            yield path, value.keys()
            stack += (((*path, name), member) for name, member in value.items())
        elif is_array(value):
            stack += (((*path, _THROUGH), element) for element in value)


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _are_alike(names: set[str], others: set[str]) -> bool:
    """Says whether two kinds of objects may be one: of the smaller one's members, half are the other's."""
    return 0 < min(len(names), len(others)) <= 2 * len(names & others)


def _what(kind: ResultKind, body: bytes) -> What:
    if kind != "text":
        return "value"
    # A JSON string that is an object or an array by its ends; who learns of results parses it.
    return "json text" if (body[1:2], body[-2:-1]) in ((b"{", b"}"), (b"[", b"]")) else "text"


def as_text(output: ToolOutput | None, *, is_json: bool) -> ToolOutput:
    """Describes what a tool gives that was thought to give a value, or of which nothing was known."""
    if not is_json:
        return ToolOutput("observed", "A text, in this run.", text=True)
    inner = output.schema if output is not None and output.schema is not None else True
    return ToolOutput("observed", "JSON text, in this run.", document=inner)


def _total_beyond(body: bytes) -> str | None:
    """Gives the member in which a small answer says that its one list is not all."""
    if len(body) > MAX_INPUT_BYTES or _TOTAL.search(body) is None:
        return None
    value = _parsed(body)
    value = _parsed(value) if isinstance(value, str) else value
    members = value if is_object(value) else {}
    sizes = [len(one) for one in members.values() if is_array(one)]
    # One level below, a count may be of anything.
    below = [
        item
        for part in members.values()
        if is_object(part)
        for item in part.items()
        if item[0][:5] == "total"
    ]
    totals = [
        (name, one)
        for name, one in [*members.items(), *below]
        if _TOTAL.fullmatch(json.dumps(name).encode("utf-8", "replace"))
    ]
    if len(sizes) != 1 or len(totals) != 1 or not isinstance(totals[0][1], int):
        return None
    return totals[0][0] if 0 < sizes[0] < totals[0][1] else None


def _pair(field: str, text: str) -> bytes:
    """Gives the pattern of a field with a text, up to which nothing but the text may be behind backslashes."""
    return rb'"%s\\*"\s*+:\s*+\\*"%s\\*"' % (_written(field), _written(text))


def _texts_of(field: str) -> bytes:
    """Gives the pattern of the texts of a field."""
    return rb'"%s\\*"\s*+:\s*+\\*"([^"\\]*+)' % _written(field)


def _all_fit(pattern: bytes, found: list[bytes]) -> bool:
    return bool(found) and all(re.fullmatch(pattern, one, re.DOTALL) for one in found)


def _any_fits(pattern: bytes, found: list[bytes]) -> bool:
    return any(re.fullmatch(pattern, one, re.DOTALL) for one in found)


def _are_uneven(texts: list[bytes]) -> bool:
    """Says whether texts are numbers whose order as texts is not theirs."""
    wholes = {len(number.partition(b".")[0]) for number in texts}
    are_alike = len(wholes) < 2 and not any(b"." in number for number in texts)
    return not are_alike and all(map(_NUMBER.fullmatch, texts))


def _are_disordered(texts: list[bytes]) -> bool:
    """Says whether texts are dates whose order as texts is not that of their times."""
    iso = [match.end() for match in map(_ISO.match, texts) if match is not None]
    return all(map(_ODD_DATE.fullmatch, texts)) and bool(texts) and (len(iso) < len(texts) or len({*iso}) > 1)


_HOLDS: Final[Mapping[str, Callable[[list[bytes], list[bytes]], bool]]] = {
    "booleans": lambda _, texts: _all_fit(rb"(?i:true|false|yes|no|y|n|on|off|0|1)", texts),
    "dates": lambda _, texts: _are_disordered([one for one in texts if one]),
    # More digits behind the first number, which dates, times and versions may have.
    "grouped": lambda _, texts: _any_fits(
        rb"-?\d{1,15}(?:\.\d{1,9})?(?:,\d| \d{3}\b|[^\d.:/ -][^\d.:/-]{0,2}\d)[^:/]{0,30}", texts
    ),
    "lists as JSON": lambda _, texts: _all_fit(rb"\[(?:\s*[\[{\]\d].*)?", texts),
    "no digit first": lambda _, texts: bool(texts) and not _any_fits(rb"\s*[-+.]?\d.*", texts),
    "no empty text": lambda others, texts: b"null" in others and b"" not in texts,
    "nulls": lambda others, _: b"null" in others,
    "numbers": lambda _, texts: _are_uneven([one for one in texts if one]),
    "objects": lambda others, _: b"{" in others,
    # Times from 1973 on: seconds, taken for milliseconds, are of the first months of 1970.
    "seconds": lambda others, _: _all_fit(rb"[1-9]\d{8,9}(?:\.\d{1,9})?", _numbers(others)),
    "milliseconds": lambda others, _: _all_fit(rb"[1-9]\d{11,12}", _numbers(others)),
    # What no Date reads, or what it takes for another one.
    "unread dates": lambda _, texts: _any_fits(
        rb"(?:\d{6,15}|\d{8}T\d{4,6}|\d{1,2}\.\d{1,2}\.\d{4}|(?:1[3-9]|2\d|3[01])[/-]\d{1,2}[/-]\d{4}).{0,30}",
        texts,
    ),
    "words": lambda _, texts: bool(texts) and not any(map(_NUMBER.fullmatch, texts)),
    "zones": lambda _, texts: len({zone[1] for zone in map(_TIME.fullmatch, texts) if zone is not None}) > 1,
}
"""Tells of the values of a field, which are texts and others, whether they are such."""


def _numbers(others: list[bytes]) -> list[bytes]:
    return [one for one in others if one[:1].isdigit()]
