"""A small MCP server over stdio without the SDK: it can do what the SDK's servers never would.

Run as ``python plain_server.py [options]``. It speaks the initialize handshake only (a modern client's
``server/discover`` is answered with "method not found"), answers calls concurrently, and ends when stdin does.

    --ledger FILE          append one JSON line for every start, call, trace context, answer and cancel
                           notification
    --alone FILE           hold the lock of this file; a ledger's line `double` says that another process did
    --fail-starts N FILE   exit with 1 the first N times, counted in FILE
    --protocol VERSION     answer `initialize` with this revision of MCP, in place of the client's
    --die-after N          exit in place of answering call N + 1
    --beside FILE          have the capabilities of this JSON file, too, and answer other requests as it says, read anew
                           for each: {"capabilities": {…}, "answers": {METHOD: result}}; null answers nothing. The
                           tool `notify` is there then
    --start-delay SECONDS  pause before the first message is read
    --start-when FILE      read no message before this file is there
    --definitions FILE     list the tools of this JSON file instead: {"pages": [[tool, …], …], "endless": false,
                         "introduction": {…}},
                           read anew for every page; each answers with its input, or with its result in "answers"
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import sys
import threading
import time

# Hundreds of these are started, and pathlib and typing would take as long as all the rest.
# ruff: noqa: PTH110, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TOOLS = {
    "echo": "Gives its input back as text",
    "give": "Gives its input back as structuredContent",
    "wait": "Answers after `ms` milliseconds",
    "hold": "Answers when the file `path` is there",
    "never": "Does not answer",
    "deep": "Answers with `depth` nested arrays as structuredContent, with isError if `error`",
    "garbage": "Answers with a line that is no JSON",
    "wrong_shape": "Answers with a result that is no tool result",
    "raw": 'Answers with `text` as the JSON after its id, such as `"result": null`',
    "fail": "Answers with isError and `text`",
    "refuse": "Answers with a JSON-RPC error, of `bytes` bytes more",
    "die": "Exits while the call is in flight",
    "environment": "Gives the environment of the server's process",
    "pid": "Gives the process id of the server",
    "announce": "Says that the tools have changed",
    "flood": "Answers with a text of `bytes` bytes",
    "endless": "Writes a line that does not end",
    "grow": "Adds a tool with the given `name` and says that the tools have changed",
}

ANNOTATIONS = {"never": {"readOnlyHint": True, "idempotentHint": True}}
"""Is what this server says of its tools: that nothing stands against calling `never` twice."""

START_LOOK_SECONDS = 0.02

RAW: dict[str, Callable[[dict[str, Any]], str]] = {
    "garbage": lambda given: '"result":{"content":[',
    "wrong_shape": lambda given: '"result":["no object"]}',
    "raw": lambda given: given["text"] + "}",
    # Written by hand: a JSON encoder would give up before the client does.
    "deep": lambda given: (
        f'"result":{{"content":[],"isError":{json.dumps(bool(given.get("error")))},'
        f'"structuredContent":{{"value":{"[" * given["depth"]}{"]" * given["depth"]}}}}}}}'
    ),
}
"""What tools that answer in no way of the SDK's write after the id, by the arguments of their call."""

TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "fail": lambda given: given["text"],
    "environment": lambda given: json.dumps(dict(os.environ)),
    "pid": lambda given: str(os.getpid()),
    "flood": lambda given: "f" * given["bytes"],
}
"""The texts that tools answer, by the arguments of their call."""

_output = threading.Lock()


def write_line(text: str) -> None:
    """Write one line to stdout; answers come from several threads."""
    with _output:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def read(file: str | None) -> dict[str, Any]:
    """What a JSON file says; nothing where there is none."""
    if file is None:
        return {}
    with open(file, encoding="utf-8") as text:
        return json.load(text)


class Server:
    """One connection on stdin and stdout."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.calls = 0
        self.tools = dict(TOOLS)
        if options.beside is not None:
            self.tools["notify"] = "Sends the notification that is its input"

    def note(self, event: str, **details: Any) -> None:
        """Append one line to the ledger."""
        if self.options.ledger is not None:
            with open(self.options.ledger, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **details}) + "\n")

    def serve(self) -> None:
        """Answer until stdin ends."""
        self.note("start", pid=os.getpid())
        if self.options.alone is not None:
            alone = open(self.options.alone, "a", encoding="utf-8")  # noqa: SIM115 - the lock lasts as long as this
            try:
                fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.note("double", pid=os.getpid())
        for line in sys.stdin:
            message = json.loads(line)
            method = message.get("method")
            if method == "notifications/cancelled":
                self.note("cancelled", id=message["params"]["requestId"])
            elif "id" in message and method is not None:
                self.answer(message["id"], method, message.get("params") or {})

    def answer(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        """Answer one request."""
        if method == "initialize":
            reply = {
                "protocolVersion": self.options.protocol or params["protocolVersion"],
                "capabilities": {
                    "tools": {"listChanged": True},
                    **read(self.options.beside).get("capabilities", {}),
                },
                "serverInfo": {"name": "plain"} | ({} if self.options.unversioned else {"version": "1.0"}),
            }
            self.reply(request_id, {**reply, **read(self.options.definitions).get("introduction", {})})
        elif method == "tools/list" and self.options.definitions is not None:
            self.reply(request_id, self.defined_page(params.get("cursor")))
        elif method == "tools/list":
            tools = [
                {"name": name, "description": text, "inputSchema": {"type": "object"}}
                | ({"annotations": ANNOTATIONS[name]} if name in ANNOTATIONS else {})
                for name, text in self.tools.items()
            ]
            self.reply(request_id, {"tools": tools})
        elif method == "tools/call":
            if "traceparent" in (params.get("_meta") or {}):
                self.note("trace", tool=params["name"], traceparent=params["_meta"]["traceparent"])
            self.call(request_id, params["name"], params.get("arguments") or {})
        elif method in (answers := read(self.options.beside).get("answers", {})):
            self.note("request", method=method, params=params)
            if answers[method] is not None:
                self.reply(request_id, answers[method])
        else:
            self.error(request_id, -32601, f"no method {method}")

    def defined_page(self, cursor: str | None) -> dict[str, Any]:
        """A page of the definitions file; past the last one, an endless list begins again."""
        data = read(self.options.definitions)
        number = int(cursor or 0)
        pages = data["pages"]
        page: dict[str, Any] = {"tools": pages[number % len(pages)]}
        if number + 1 < len(pages) or data.get("endless"):
            page["nextCursor"] = str(number + 1)
        return page

    def later(self, request_id: Any, name: str, arguments: dict[str, Any]) -> None:
        """Answer after a while, or when a file is there."""
        time.sleep(arguments.get("ms", 0) / 1000)
        while name == "hold" and not os.path.exists(arguments["path"]):
            time.sleep(START_LOOK_SECONDS)
        self.text(request_id, "held" if name == "hold" else "waited")

    def call(self, request_id: Any, name: str, arguments: dict[str, Any]) -> None:
        """Answer one tool call, or do what the tool is there for."""
        self.note("call", id=request_id, tool=name, arguments=arguments)
        self.calls += 1
        if name == "die" or (self.options.die_after is not None and self.calls > self.options.die_after):
            os._exit(7)
        elif name in RAW:
            write_line(f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},{RAW[name](arguments)}')
        elif name in TEXTS:
            self.text(request_id, TEXTS[name](arguments), is_error=name == "fail")
        elif name in ("wait", "hold"):
            threading.Thread(target=self.later, args=(request_id, name, arguments), daemon=True).start()
        elif name == "give":
            self.reply(request_id, {"content": [], "structuredContent": arguments})
        elif name == "refuse":
            message = arguments.get("message", "not like this") + "!" * arguments.get("bytes", 0)
            self.error(request_id, arguments.get("code", -32602), message)
        elif name == "endless":
            while True:
                sys.stdout.write("e" * 65536)
        elif name == "notify":
            write_line(json.dumps({"jsonrpc": "2.0", **arguments}))
            self.text(request_id, "notified")
        elif name in ("announce", "grow"):
            if name == "grow":
                self.tools[arguments["name"]] = "Was added later"
            write_line('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
            self.text(request_id, "changed")
        elif self.options.definitions and (
            answer := read(self.options.definitions).get("answers", {}).get(name)
        ):
            self.reply(request_id, answer)
        elif name == "echo" or self.options.definitions or (name in self.tools and name not in TOOLS):
            self.text(request_id, json.dumps(arguments))
        elif name != "never":
            self.error(request_id, -32602, f"no tool {name}")

    def text(self, request_id: Any, text: str, *, is_error: bool = False) -> None:
        """Answer a call with one text block."""
        self.note("answer", id=request_id)
        self.reply(request_id, {"content": [{"type": "text", "text": text}], "isError": is_error})

    def reply(self, request_id: Any, result: dict[str, Any]) -> None:
        """Write a JSON-RPC result."""
        write_line(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}))

    def error(self, request_id: Any, code: int, message: str) -> None:
        """Write a JSON-RPC error."""
        write_line(
            json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})
        )


def main() -> int:
    """Serve, or fail as told. Returns the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("ledger", "alone", "protocol", "definitions", "beside", "start-when"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--fail-starts", nargs=2, metavar=("N", "FILE"))
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--unversioned", action="store_true")
    parser.add_argument("--start-delay", type=float, default=0.0)
    options = parser.parse_args()
    if options.fail_starts:
        times, file = options.fail_starts
        with open(file, "a+", encoding="utf-8") as counter:
            counter.write("start\n")
            counter.seek(0)
            if len(counter.readlines()) <= int(times):
                sys.stderr.write("plain_server fails to start, as it was told\n")
                return 1
    time.sleep(options.start_delay)
    while options.start_when is not None and not os.path.exists(options.start_when):
        if select.select([sys.stdin], [], [], START_LOOK_SECONDS)[0] and not sys.stdin.buffer.peek(1):
            return 0
        time.sleep(START_LOOK_SECONDS)
    Server(options).serve()
    return 0


sys.exit(main())
