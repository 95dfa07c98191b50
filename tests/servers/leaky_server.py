"""An MCP server over stdio that quotes its own secrets wherever it can: in errors, on stderr, when it refuses to start.

Run as ``python leaky_server.py [--refuse] [options]``; it quotes its arguments and the environment variables whose
names start with CANARY_.
"""

import json
import os
import sys
from typing import Any


def secrets() -> str:
    """All it knows."""
    known = {name: value for name, value in os.environ.items() if name.startswith("CANARY_")}
    return f"leak: {json.dumps(known)} {' '.join(sys.argv[1:])}"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The `result` or `error` member of an answer."""
    if method == "initialize" and "--refuse" not in sys.argv:
        info = {"name": "leaky", "version": "1"}
        shared = {"protocolVersion": params["protocolVersion"], "serverInfo": info}
        return {"result": {**shared, "capabilities": {"tools": {}}}}
    if method == "tools/list":
        names = ("confess", "refuse", "result")
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}}
    if method == "tools/call" and params["name"] == "confess":
        text = {"type": "text", "text": secrets()}
        result = {"content": [text], "structuredContent": {secrets(): [secrets()]}, "isError": True}
        return {"result": result}
    return {"error": {"code": -32603, "message": secrets()}}


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        sys.stderr.write(secrets() + "\n")
        sys.stderr.flush()
        if "id" in message and "method" in message:
            body = answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
