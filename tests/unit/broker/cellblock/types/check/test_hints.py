"""Hints of what was likely meant."""

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

import pytest

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.check.faults import hint_of
from cellblock.types.check.hints import likely_members
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

DECLARED = {
    "search": "search(input: { params: { query: string; max_results?: number }; limit?: string })",
    "create": "create(input: { entities: { name: string; kind?: string }[] })",
    "edit": "edit(input: { path: string; edits: { oldText: string; newText: string }[] })",
    "put": "put(input?: { map?: { [key: string]: string }; tags?: string[] })",
    "choose": "choose(input: { by: { id: string } | { slug: string }; note?: string })",
    "tree": "tree(input: { node: Node }); type Node = { name: string; below?: Node[] };",
    "list": "list(input: { id: string }[])",
}


def of(name: str, likely: str = "") -> str:
    return f"Did you mean `{likely}`? " * bool(likely) + f"It is declared as `{DECLARED[name]}`."


HINTS = [
    # the name is one of a nested object
    ("t.search({ query: 'x' });", of("search")),
    ("t.edit({ path: 'p', oldText: 'a' });", of("edit")),
    ("t.choose({ slug: 'x' });", of("choose")),
    ("t.tree({ name: 'x' });", of("tree")),
    # a slip, at the top and further down
    ("t.search({ parms: { query: 'x' } });", of("search", "params")),
    ("t.search({ params: { qery: 'x' } });", of("search", "query")),
    ("t.tree({ node: { nme: 'x' } });", of("tree", "name")),
    ("t.edit({ path: 'p', edits: [{ old: 'a' }] });", of("edit", "oldText")),
    # an array is wanted
    ("t.create({ entities: { name: 'a' } });", of("create")),
    ("t.edit({ path: 'p', edits: { oldText: 'a', newText: 'b' } });", of("edit")),
    ("const edits = { oldText: 'a', newText: 'b' }; t.edit({ path: 'p', edits });", of("edit")),
    ("const input = { path: 'p', edits: { oldText: 'a', newText: 'b' } }; t.edit(input);", of("edit")),
    ("t.put({ tags: 'x' });", of("put")),
    ("t.list({ id: 'x' });", of("list")),
    # something is missing
    ("t.create({ entities: [{ kind: 'a' }] });", of("create")),
    ("t.edit({});", of("edit")),
    # a long declaration is cut
    ("t.many({ shared: 'x' });", "It is declared as `many(input?: { prop_0?: { shared?: string; "),
    # an index signature is no property
    ("t.put({ key: 'x' });", of("put")),
    # functions of the fixed modules
    (f"{DISCOVERY} d.describeServer();", "It is declared as `describeServer(serverId: string)`."),
    (f"{DISCOVERY} d.listServers('a');", "It is declared as `listServers()`."),
    (
        f"{DISCOVERY} d.searchTools({{ query: 'a' }});",
        "It is declared as `searchTools(query: string, options?: SearchToolsOptions)`.",
    ),
    (
        'import { describeServer as tell } from "@codemode/discovery"; tell();',
        "It is declared as `describeServer(serverId: string)`.",
    ),
    (
        f"{DISCOVERY} d.searchTools('a', {{ max: 3 }});",
        "It is declared as `searchTools(query: string, options?: SearchToolsOptions)`.",
    ),
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
    assert hint in told if hint.endswith("; ") else told.endswith(hint), told


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


def hint(receiver: str, wanted: str, members: list[str], suggested: str = "") -> str:
    message = f"Property '{wanted}' does not exist on type '{receiver}'."
    complaint = Complaint("member", message, wanted, receiver=receiver, suggested=suggested)
    return hint_of(complaint, members, Catalog(), ())


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
