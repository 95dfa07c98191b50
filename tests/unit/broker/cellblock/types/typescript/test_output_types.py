"""Outputs of all kinds, as the compiler sees them: JSON in texts through JSON.parse, unions, one module or several."""

from __future__ import annotations

from typing import Any

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ToolOutput
from cellblock.types.typescript import declare_all, declare_tool

ROW = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "due": {"type": "null"}},
    "required": ["id"],
    "additionalProperties": False,
}
ROWS = {"type": "array", "items": ROW}
OUTPUTS = {
    "rows": ToolOutput("observed", "Observed.", document=ROWS),
    "mixed": ToolOutput("observed", "Observed.", text=True),
    "either": ToolOutput("observed", "Observed.", schema=ROWS, text=True),
    "full": ToolOutput("observed", "Observed.", schema=ROW, result=True),
    "nothing": ToolOutput("observed", "Observed.", schema={}, text=True),
}

SCRIPT = """\
import * as files from "@codemode/servers/files";
import * as more from "@codemode/servers/more";
for (const row of JSON.parse(await files.rows({}))) {
  const id: number = row.id, due: null | undefined = row.due;
  // @ts-expect-error: rows have no title
  row.title;
}
const id: number = JSON.parse(await more.rows({}))[0].id;
const text: string = await files.rows({});
JSON.parse(text).anything; JSON.parse("{}").anything;
const mixed: string = await files.mixed({});
const either = await files.either({});
const ids: number[] = typeof either === "string" ? [] : either.map((row) => row.id);
const full = await files.full({});
if ("id" in full && typeof full.id === "number") { const id: number = full.id; }
const nothing: unknown = await files.nothing({});
"""


def server(name: str) -> ServerEntry:
    return ServerEntry(name, name, name, tools=tuple(ToolEntry(tool, tool) for tool in OUTPUTS))


def test_every_kind_of_output_compiles(check: Any) -> None:
    catalog = Catalog(1, {name: server(name) for name in ("files", "more")})
    text = declare_all(catalog, lambda _, tool: OUTPUTS[tool.tool_name], reading=False)
    assert check(SCRIPT, text) == ""


def test_one_tool_declared_alone() -> None:
    text = declare_tool(ToolEntry("rows", "rows"), OUTPUTS["rows"])
    assert text.startswith(
        "// JSON.parse(text: JsonText<T>) gives a T.\n/** Output: Observed. */\nexport function rows("
    )
    assert "McpToolOutput" in declare_tool(ToolEntry("t", "t"), None)
