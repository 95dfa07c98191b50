"""The scripts of docs/cookbook.md, kept: each works against its servers as they are, and what changes of them is found.

The rows of the table of changes, and what does not matter, are in tests/unit.
"""

import asyncio
import copy
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cellblock import Broker, Catalog, ConfigError
from cellblock.app.assembly import library_of
from cellblock.app.cli.demo.show import capacity, finish_date
from cellblock.app.cli.script_tests import replayed
from cellblock.record.journal import Journal
from cellblock.record.scripts.changes import against, type_checked, worst
from cellblock.record.scripts.library import Trial
from cellblock.record.scripts.saving import save
from cellblock.record.scripts.script_file import KeptScript
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


def requires_more(taken: Any, _out: Any) -> None:
    taken.setdefault("properties", {})["zz_new"] = {"type": "string"}
    taken.setdefault("required", []).append("zz_new")


def takes_more(taken: Any, _out: Any) -> None:
    taken.setdefault("properties", {})["zz_optional"] = {"type": "string"}


def nothing(_taken: Any, _out: Any) -> None:
    """Changes nothing."""


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
    return script, library.trial(script)


@pytest.mark.parametrize("number", mostly([0, 6], range(len(SCRIPTS))))
async def test_a_script_of_the_cookbook(broker: Broker, checker: TypeChecker, number: int) -> None:
    script, trial = await kept(broker, SCRIPTS[number], f"cookbook_{number}")
    catalog = broker.catalog
    assert await replayed(script, trial, broker.settings) == []
    assert [*against(script, trial, catalog)] == []
    assert await type_checked(script, trial, catalog, checker) == []
    called = {one.name for one in trial.recording.calls if one.ok}
    for name in script.header.tools:
        assert held(script, trial, without(catalog, name)) == "broken"
        # What was recorded shows it, if the tool was called there.
        more = held(script, trial, changed(catalog, name, requires_more))
        assert more == ("broken" if name in called else "works")
        if trial.tools[name][1] is not None:
            assert held(script, trial, changed(catalog, name, nothing, output_schema=None)) == "changed"
        told = [*against(script, trial, changed(catalog, name, nothing, description="Other words."))]
        assert [(one.verdict, one.place) for one in told] == [("works", name)]
        assert held(script, trial, changed(catalog, name, takes_more)) == "works"


async def test_a_new_type_error_is_found_where_no_recorded_value_shows_it(
    broker: Broker, checker: TypeChecker
) -> None:
    code = """import { list_issues } from "@codemode/servers/tracker";
    const { issues } = await list_issues({ status: "open", label: "bug" });
    globalThis.__codemode_result__ = issues.filter((one) => one.id < 0).map((one) => one.title);"""
    script, trial = await kept(broker, code, "typed")

    def renames(_taken: Any, out: dict[str, Any]) -> None:
        text = json.dumps(out).replace('"title": {', '"heading": {').replace('"title",', '"heading",')
        out.update(json.loads(text))

    (found,) = await type_checked(
        script, trial, changed(broker.catalog, "tracker.list_issues", renames), checker
    )
    assert found.verdict == "changed" and found.place.startswith("typed.ts:") and "title" in found.what


async def test_only_a_run_that_is_kept_can_be_saved(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="not kept"):
        await broker.save("0000000000000000", "nothing")
