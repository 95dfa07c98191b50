"""An MCP server over stdio whose tools and resources are what a JSON file says, and that records what it is sent.

Run as ``python told_server.py FILE LEDGER``. The file: {"name": …, "tools": [row, …], "later": [row, …], "resources":
{URI: text}}. A row is {"tool": the definition, "by": NAME, "answers": {VALUE: text, "*": text}, "keeps": [NAME, NAME],
"error": bool, "refuses": bool, "meta": {…}}: the answer is chosen by the argument `by`; `keeps` keeps the second
argument as the answer for the first; with `error` it is a failed call, with `refuses` an error of JSON-RPC. After the
first call the tools are those of `later`, if it is there.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Told:
    """What was kept, and which tools there are now."""

    def __init__(self, world: dict[str, Any], ledger: Path) -> None:
        self.world, self.ledger = world, ledger
        self.kept: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = world["tools"]

    def record(self, tool: str, arguments: Any) -> None:
        """One line for what came."""
        with self.ledger.open("a", encoding="utf-8") as file:
            print(json.dumps({"tool": tool, "arguments": arguments}), file=file)

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a call."""
        self.record(name, arguments)
        row = next(row for row in self.rows if row["tool"]["name"] == name)
        answers = {**row.get("answers", {}), **self.kept}
        if "keeps" in row:
            key, value = row["keeps"]
            self.kept[str(arguments[key])] = str(arguments[value])
        text = answers.get(str(arguments.get(row.get("by", ""))), answers.get("*", "done"))
        if "later" in self.world and self.rows is not self.world["later"]:
            self.rows = self.world["later"]
            say(method="notifications/tools/list_changed")
        if row.get("refuses"):
            raise LookupError(text)
        result = {"content": [{"type": "text", "text": text}], "isError": row.get("error", False)}
        return result | ({"_meta": row["meta"]} if "meta" in row else {})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        match method:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}, "resources": {}}
                return {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": capabilities,
                    "serverInfo": {"name": self.world["name"], "version": "1.0"},
                }
            case "tools/list":
                return {"tools": [row["tool"] for row in self.rows]}
            case "tools/call":
                return self.call(params["name"], params.get("arguments") or {})
            case "resources/list":
                return {"resources": [{"uri": uri, "name": uri} for uri in self.world.get("resources", {})]}
            case "resources/read":
                self.record("resources/read", {"uri": params["uri"]})
                text = self.world.get("resources", {}).get(params["uri"], "nothing")
                return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": text}]}
            case _:
                raise LookupError(method)


def say(**message: Any) -> None:
    """Writes one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def serve(answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
    """Answers requests until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            try:
                say(id=message["id"], result=answer(message["method"], message.get("params") or {}))
            except LookupError as error:
                say(id=message["id"], error={"code": -32601, "message": str(error)})


if __name__ == "__main__":
    serve(Told(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])).answer)
