"""The scripts of docs/cookbook.md, kept: each works against its servers as they are, and each row of the table of
changes is found for each of its tools."""

import asyncio
import copy
import dataclasses
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from cellblock import Broker
from cellblock.app.assembly import library_of
from cellblock.app.cli.demo.show import capacity, finish_date
from cellblock.app.cli.script_tests import WORD, against, replayed, type_checked, worst
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_array, is_object
from cellblock.record.journal import Journal
from cellblock.record.scripts.library import Trial
from cellblock.record.scripts.saving import save
from cellblock.record.scripts.script_file import KeptScript
from cellblock.tools.catalog.model import Catalog
from cellblock.types.check.checker import TypeChecker
from support.documents import examples
from support.entries import settings, tracker
from support.params import mostly
from support.waits import within


def write_file(path: str, content: str) -> None:
    "Writes a file."


SCRIPTS = [
    one.text.replace("@codemode/servers/files", "@codemode/servers/local")
    for one in examples()
    if one.page.name == "cookbook.md" and one.language == "js" and not one.mark
]


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    folder = tmp_path_factory.mktemp("cookbook")
    section = {"scripts": {"dir": str(folder / "kept")}, "auth": {"keyring": "off"}}
    given = settings(folder / "state", {"tracker": tracker()}, **section)
    async with Broker(given, tools=[write_file, capacity, finish_date]) as running:
        yield running


@pytest.fixture(scope="module")
async def checker() -> AsyncIterator[TypeChecker]:
    made = TypeChecker()
    yield made
    await made.close()


def test_there_are_ten() -> None:
    assert len(SCRIPTS) >= 10


Change = Callable[[Any, Any], object]


def changed(catalog: Catalog, name: str, change: Change, **more: Any) -> Catalog:
    """A catalog in which one tool has other schemas, and other fields of its entry."""
    server_id, _, tool_name = name.partition(".")
    server = catalog.servers[server_id]
    tools = list(server.tools)
    at = next(number for number, tool in enumerate(tools) if tool.tool_name == tool_name)
    taken, out = copy.deepcopy(tools[at].input_schema), copy.deepcopy(tools[at].output_schema)
    change(taken, out)
    tools[at] = dataclasses.replace(tools[at], **{"input_schema": taken, "output_schema": out, **more})
    made = dataclasses.replace(server, tools=tuple(tools), by_export={one.export_name: one for one in tools})
    return dataclasses.replace(catalog, servers={**catalog.servers, server_id: made})


def without(catalog: Catalog, name: str) -> Catalog:
    server_id, _, tool_name = name.partition(".")
    server = catalog.servers[server_id]
    tools = tuple(tool for tool in server.tools if tool.tool_name != tool_name)
    made = dataclasses.replace(server, tools=tools, by_export={one.export_name: one for one in tools})
    return dataclasses.replace(catalog, servers={**catalog.servers, server_id: made})


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects of a schema that declare fields."""
    if is_object(schema):
        if is_object(schema.get("properties")):
            yield schema
        for one in schema.values():
            yield from objects(one)
    elif is_array(schema):
        for one in schema:
            yield from objects(one)


def declarations(schema: Any, name: str) -> list[dict[str, Any]]:
    """The fields of those that declare one of this name."""
    return [one["properties"] for one in objects(schema) if name in one["properties"]]


def named(value: Any, words: set[str]) -> Any:
    """The fields that a script names on the whole way to them."""
    if is_array(value):
        return [named(one, words) for one in value]
    if is_object(value):
        return {name: named(one, words) for name, one in value.items() if name in words}
    return value


def requires_more(taken: Any, _out: Any) -> None:
    taken.setdefault("properties", {})["zz_new"] = {"type": "string"}
    taken.setdefault("required", []).append("zz_new")


def mutations(script: KeptScript, trial: Trial, name: str) -> Iterator[tuple[str, Change]]:
    """Changes of each row of the table that break the script, which its own calls can show."""
    calls = [one for one in trial.recording.calls if one.name == name and one.ok]
    if not calls:
        return
    yield "one more is required", requires_more
    sent = json.loads(calls[0].input)
    for field, value in sent.items():
        retyped = {"type": "boolean"} if not isinstance(value, bool) else {"type": "string"}
        yield f"{field} is retyped", lambda taken, _, f=field, r=retyped: taken["properties"].update({f: r})
        yield (
            f"{field} has other values",
            lambda taken, _, f=field: taken["properties"].update({f: {"enum": ["zz"]}}),
        )
    schema = trial.tools[name][1]
    words = set(WORD.findall(script.code))
    answers = json.dumps([named(json.loads(one.answer), words) for one in calls])
    for field in sorted(words):
        if f'"{field}":' in answers and declarations(schema, field):
            other = "string" if f'"{field}": true' in answers or f'"{field}": false' in answers else "boolean"
            yield (
                f"{field} is gone",
                lambda _, out, f=field: [one.pop(f) for one in declarations(out, f)],
            )
            yield (
                f"{field} is retyped",
                lambda _, out, f=field, o=other: [
                    one.update({f: {"type": o}}) for one in declarations(out, f)
                ],
            )


def nothing(_taken: Any, _out: Any) -> None:
    """Changes nothing."""


def of_outputs(change: Callable[[dict[str, Any]], object]) -> Change:
    """A change of each object in an output."""
    return lambda _, out: [change(one) for one in list(objects(out))]


def more_required(schema: dict[str, Any]) -> None:
    schema["properties"]["zz_must"] = {"type": "string"}
    schema.setdefault("required", []).append("zz_must")


HARMLESS: list[Change] = [
    lambda taken, _: taken.update(description="Other words.", title="Other", examples=[{}]),
    lambda taken, _: [one.update(description="zz") for one in taken.get("properties", {}).values()],
    lambda taken, _: taken.setdefault("properties", {}).update(zz_optional={"type": "string"}),
    lambda taken, _: taken.update(properties=dict(reversed(taken.get("properties", {}).items()))),
    lambda taken, _: taken.update(additionalProperties=True),
    of_outputs(lambda one: one.update(title="Other", description="Other words.")),
    of_outputs(lambda one: one["properties"].update(zz_more={"type": "integer"})),
    of_outputs(more_required),
    of_outputs(lambda one: one.update(properties=dict(reversed(one["properties"].items())))),
    of_outputs(lambda one: one.update(additionalProperties=False)),
]


def some_harmless(chance: random.Random) -> Change:
    chosen = chance.sample(HARMLESS, chance.randint(1, len(HARMLESS)))
    return lambda taken, out: [change(taken, out) for change in chosen]


def held(script: KeptScript, trial: Trial, catalog: Catalog) -> str:
    return worst(against(script, trial, catalog))


async def kept(broker: Broker, code: str, name: str) -> tuple[KeptScript, Trial]:
    journal = Journal()
    response = await within(broker.run_request({"code": code}, journal=journal))
    assert response.ok, response.as_json()
    library = library_of(broker.settings, broker.store)
    script = await asyncio.to_thread(
        save, library, broker.settings, broker.catalog, journal.snapshot(), name, replace=True
    )
    trial = library.trial(script)
    return script, trial


@pytest.mark.parametrize("number", mostly([0, 6], range(len(SCRIPTS))))
async def test_a_script_of_the_cookbook(broker: Broker, checker: TypeChecker, number: int) -> None:
    script, trial = await kept(broker, SCRIPTS[number], f"cookbook_{number}")
    catalog, chance = broker.catalog, random.Random(number)
    assert await replayed(script, trial, broker.settings) == []
    assert [*against(script, trial, catalog)] == []
    assert await type_checked(script, trial, catalog, checker) == []
    for name in script.header.tools:
        assert held(script, trial, without(catalog, name)) == "broken"
        for what, change in mutations(script, trial, name):
            assert held(script, trial, changed(catalog, name, change)) == "broken", f"{name}: {what}"
        if trial.tools[name][1] is not None:
            undeclared = changed(catalog, name, nothing, output_schema=None)
            assert held(script, trial, undeclared) == "changed"
        told = [*against(script, trial, changed(catalog, name, nothing, description="Other words."))]
        assert [(one.verdict, one.place) for one in told] == [("works", name)]
        # Over all scripts and their tools, more than 200 of them.
        for _ in range(20):
            assert held(script, trial, changed(catalog, name, some_harmless(chance))) == "works", name


async def test_a_new_type_error_is_found_where_no_recorded_value_shows_it(
    broker: Broker, checker: TypeChecker
) -> None:
    code = """import { list_issues } from "@codemode/servers/tracker";
    const { issues } = await list_issues({ status: "open", label: "bug" });
    globalThis.__codemode_result__ = issues.filter((one) => one.id < 0).map((one) => one.title);"""
    script, trial = await kept(broker, code, "typed")

    def renames(schema: dict[str, Any]) -> None:
        text = json.dumps(schema).replace('"title": {', '"heading": {').replace('"title",', '"heading",')
        schema.update(json.loads(text))

    renamed = changed(broker.catalog, "tracker.list_issues", of_outputs(renames))
    (found,) = await type_checked(script, trial, renamed, checker)
    assert found.verdict == "changed" and found.place.startswith("typed.ts:") and "title" in found.what


async def test_only_a_run_that_is_kept_can_be_saved(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="not kept"):
        await broker.save("0000000000000000", "nothing")
