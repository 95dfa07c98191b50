"""Hints of what was likely meant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

import pytest

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.check.faults import hint_of
from cellblock.types.check.hints import likely_member, likely_members
from cellblock.types.check.verdict import Complaint

Check = Callable[..., Awaitable[Any]]

TEXT = {"type": "string"}


def _object(properties: dict[str, Any], *required: str, closed: bool = True) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {**schema, "additionalProperties": False} if closed else schema


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


NODE = {
    **_object({"node": {"$ref": "#/$defs/Node"}}, "node"),
    "$defs": {"Node": _object({"name": TEXT, "below": _list_of({"$ref": "#/$defs/Node"})}, "name")},
}
MANY = {f"prop_{number}": _object({"shared": TEXT, "more": TEXT, "rest": TEXT}) for number in range(40)}
INPUTS = {
    "search": _object(
        {"params": _object({"query": TEXT, "max_results": {"type": "integer"}}, "query"), "limit": TEXT},
        "params",
    ),
    "create": _object(
        {"entities": _list_of(_object({"name": TEXT, "kind": TEXT}, "name", closed=False))}, "entities"
    ),
    "edit": _object(
        {"path": TEXT, "edits": _list_of(_object({"oldText": TEXT, "newText": TEXT}, "oldText", "newText"))},
        "path",
        "edits",
    ),
    "put": _object({"map": {"type": "object", "additionalProperties": TEXT}, "tags": _list_of(TEXT)}),
    "choose": _object(
        {"by": {"anyOf": [_object({"id": TEXT}, "id"), _object({"slug": TEXT}, "slug")]}, "note": TEXT}, "by"
    ),
    "tree": NODE,
    "many": _object(MANY),
    "list": _list_of(_object({"id": TEXT}, "id")),
}
CATALOG = Catalog(
    1,
    {
        "tracker": ServerEntry(
            "tracker",
            "Tracker",
            "tracker",
            tools=tuple(ToolEntry(name, name, input_schema=schema) for name, schema in INPUTS.items()),
        )
    },
)
DISCOVERY = 'import * as d from "@codemode/discovery";'

HINTS = [
    # the name is one of a nested object
    ("t.search({ query: 'x' });", "`query` belongs into `params`. The tool takes: params, limit."),
    (
        "t.edit({ path: 'p', oldText: 'a' });",
        "`oldText` belongs into each element of `edits`. The tool takes: path, edits.",
    ),
    ("t.choose({ slug: 'x' });", "`slug` belongs into `by`. The tool takes: by, note."),
    ("t.tree({ name: 'x' });", "`name` belongs into `node`. The tool takes: node."),
    # a slip, at the top and further down
    ("t.search({ parms: { query: 'x' } });", "Did you mean `params`? The tool takes: params, limit."),
    ("t.search({ params: { qery: 'x' } });", "Did you mean `query`? `params` takes: query, max_results."),
    ("t.tree({ node: { nme: 'x' } });", "Did you mean `name`? `node` takes: name, below."),
    (
        "t.edit({ path: 'p', edits: [{ old: 'a' }] });",
        "Did you mean `oldText`? `edits` takes: oldText, newText.",
    ),
    # an array is wanted
    (
        "t.create({ entities: { name: 'a' } });",
        "Pass an array: `entities: [{ … }]`. Each element takes: name, kind.",
    ),
    (
        "t.edit({ path: 'p', edits: { oldText: 'a', newText: 'b' } });",
        "Pass an array: `edits: [{ … }]`. Each element takes: oldText, newText.",
    ),
    (
        "const edits = { oldText: 'a', newText: 'b' }; t.edit({ path: 'p', edits });",
        "Pass an array: `edits: [{ … }]`.",
    ),
    (
        "const input = { path: 'p', edits: { oldText: 'a', newText: 'b' } }; t.edit(input);",
        "Pass an array: `edits: [{ … }]`.",
    ),
    ("t.put({ tags: 'x' });", "Pass an array: `tags: […]`."),
    ("t.list({ id: 'x' });", "Pass an array: `[{ … }]`. Each element takes: id."),
    # something is missing
    ("t.create({ entities: [{ kind: 'a' }] });", "Add `name` to `entities`."),
    ("t.edit({});", "Add `path`, `edits` to the input."),
    # many places are none, and a long list is cut
    ("t.many({ shared: 'x' });", "The tool takes: prop_0, prop_1, "),
    # an index signature is no property
    ("t.put({ key: 'x' });", "The tool takes: map, tags."),
    # functions of the fixed modules
    (f"{DISCOVERY} d.describeServer();", "Call it as `describeServer(serverId: string)`."),
    (f"{DISCOVERY} d.listServers('a');", "Call it as `listServers()`."),
    (
        f"{DISCOVERY} d.searchTools({{ query: 'a' }});",
        "Call it as `searchTools(query: string, options?: SearchToolsOptions)`.",
    ),
    (
        'import { describeServer as tell } from "@codemode/discovery"; tell();',
        "Call it as `describeServer(serverId: string)`.",
    ),
    (f"{DISCOVERY} d.searchTools('a', {{ max: 3 }});", "It takes: detail, serverId, limit."),
    # `require` is none of the compiler's imports
    ('const { x } = require("@codemode/discovery");', 'write `import { … } from "@codemode/discovery"`.'),
]


@pytest.fixture(scope="module")
def checker(shared_checker: Any) -> Any:
    """One compiler for all of these."""
    return shared_checker


# In TypeScript `require` is a name like others.
CASES = [
    (*case, typescript)
    for typescript in (False, True)
    for case in HINTS
    if not typescript or "require" not in case[0]
]


@pytest.mark.parametrize(("code", "hint", "typescript"), CASES)
async def test_the_hint_says_what_to_change(check: Check, code: str, hint: str, typescript: bool) -> None:
    checked = await check(code, catalog=CATALOG, typescript=typescript)
    assert checked.gave_up is None
    assert len(checked.faults) == 1, checked
    told = checked.faults[0].hint
    assert hint in told if hint.endswith(", ") else told.endswith(hint), told
    assert "key" not in told


OF_ARRAYS = [
    "at",
    "concat",
    "entries",
    "filter",
    "find",
    "forEach",
    "indexOf",
    "join",
    "length",
    "map",
    "pop",
    "slice",
]


@pytest.mark.parametrize(
    ("wanted", "members", "likely"),
    [
        ("titel", ["body", "title", "due"], ["title"]),
        ("date", ["id", "created", "due"], ["created", "due"]),
        ("user", ["assignee", "author", "id"], ["assignee", "author"]),
        ("name", ["title", "id"], ["title"]),
        ("item1", ["item2", "item3", "x"], ["item2", "item3"]),
        ("zzz", ["a", "b", "c"], []),
    ],
)
def test_the_order_does_not_matter(wanted: str, members: list[str], likely: list[str]) -> None:
    for order in permutations(members):
        assert likely_members(wanted, order) == likely
        assert likely_member(wanted, order) == (likely[0] if len(likely) == 1 else None)


def hint(receiver: str, wanted: str, members: list[str], suggested: str = "") -> str:
    message = f"Property '{wanted}' does not exist on type '{receiver}'."
    message += f" Did you mean '{suggested}'?" if suggested else ""
    complaint = Complaint(2551 if suggested else 2339, message, 1, 1, wanted, receiver)
    return hint_of(complaint, members, Catalog(), ()) or ""


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("rows", "It is the array itself: leave out `.rows`."),
        ("count", "Did you mean `length`?"),
        ("lenght", "Did you mean `length`?"),
        ("foreach", "Did you mean `forEach`?"),
        ("contains", "Did you mean `includes`?"),
        ("title", "It is an array: read `title` of its elements."),
        ("enters", "It is an array: read `enters` of its elements."),
    ],
)
def test_what_arrays_have_is_offered_only_where_it_fits(wanted: str, said: str) -> None:
    members = [name for name in OF_ARRAYS if wanted != "enters" or name != "entries"]
    assert hint("Row[]", wanted, members, "entries" if wanted == "rows" else "") == said


def test_of_texts_and_objects() -> None:
    assert hint("string", "rows", ["at", "length"]) == "It is text: if it holds JSON, use JSON.parse first."
    assert hint("string", "size", ["at", "length"]).startswith("Did you mean `length`? It is text")
    assert hint("Issue", "date", ["due", "created", "id"]) == (
        "Did you mean `created` or `due`? Issue has: created, due, id."
    )
    # The compiler takes the first of equals.
    assert "`item2` or `item3`" in hint("Issue", "item1", ["item3", "item2"], "item3")
