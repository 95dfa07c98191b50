"""A recorder that stands in for a model's API on the loopback: it keeps each request and answers by a plan.

It speaks the four APIs that the clients of scripts/clients use: Anthropic's Messages, OpenAI's Responses and Chat
Completions, and Gemini's, streamed or not. Its plan: each script is sent as one call of the tool whose name ends in
`codemode.run` or `codemode_run`, then a closing text. A request without that tool, such as one for a session's title,
gets a text.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

RUN: Final = re.compile(r"codemode[._]run$")
CLOSING: Final = "Done."
Event = dict[str, Any]


def tools_of(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The tools of a request in one form: `name`, `namespace`, `description`, `schema`."""
    for tool in cast("list[dict[str, Any]]", body.get("tools") or []):
        if tool.get("type") == "namespace":
            inner = list(tools_of({"tools": tool["tools"]}))
            yield from ({**each, "namespace": tool["name"]} for each in inner)
            continue
        if "functionDeclarations" in tool:
            yield from tools_of({"tools": tool["functionDeclarations"]})
            continue
        plain = cast("dict[str, Any]", tool.get("function") or tool)
        yield {
            "name": str(plain.get("name", "")),
            "namespace": None,
            "description": str(plain.get("description") or ""),
            "schema": plain.get("input_schema")
            or plain.get("parameters")
            or plain.get("parametersJsonSchema"),
        }


def run_tool(body: dict[str, Any]) -> dict[str, Any] | None:
    """Cellblock's tool as a request shows it to the model, or None."""
    return next((tool for tool in tools_of(body) if RUN.search(tool["name"])), None)


def texts(value: object) -> Iterator[str]:
    """Every text within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in cast("dict[str, object]", value).values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from texts(inner)


def results_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What a request gives the model of the tool's results, oldest first: `text` and whether it is marked an error."""
    found: list[dict[str, Any]] = []
    for item in cast("list[Any]", body.get("messages") or body.get("input") or body.get("contents") or []):
        if not isinstance(item, dict):
            continue
        message = cast("dict[str, Any]", item)
        if message.get("type") == "function_call_output":
            found.append({"content": message["output"], "error": False})
        elif message.get("role") == "tool":
            found.append({"content": message["content"], "error": False})
        elif isinstance(message.get("parts"), list):
            answers = [part["functionResponse"] for part in message["parts"] if "functionResponse" in part]
            found.extend({"content": "\n".join(texts(each["response"])), "error": False} for each in answers)
        elif isinstance(message.get("content"), list):
            found.extend(
                {"content": block.get("content"), "error": bool(block.get("is_error"))}
                for block in message["content"]
                if block.get("type") == "tool_result"
            )
    return [{"text": "\n".join(_shown(each["content"])), "error": each["error"]} for each in found]


def _shown(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for block in cast("list[dict[str, Any]]", content) if isinstance(content, list) else []:
        yield str(block.get("text", ""))


class Model:
    """The stand-in for a model.

    Args:
        scripts: What it has the tool run, one call each.
    """

    def __init__(self, scripts: Sequence[str]) -> None:
        self._scripts = scripts
        self.requests: list[dict[str, Any]] = []
        """Every request: `path` and `body`."""
        self.refused: list[str] = []
        """Hosts elsewhere that the client wanted to reach through its proxy, which this is, too."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send({"object": "list", "data": [], "models": []})

            def do_HEAD(self) -> None:
                self._send({})

            def do_CONNECT(self) -> None:
                model.refused.append(self.path)
                self.send_error(403)

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                path = self.path.partition("?")[0]
                try:
                    body = cast("dict[str, Any]", json.loads(raw))
                except ValueError:
                    body = {"unreadable": len(raw), "encoding": self.headers.get("content-encoding")}
                model.requests.append({"path": path, "body": body})
                if path.endswith("/count_tokens"):
                    self._send({"input_tokens": 1})
                elif path.endswith("/messages"):
                    self._answer(body, _anthropic(model.turn(body)), named=True)
                elif path.endswith("/responses"):
                    self._answer(body, _responses(model.turn(body)), named=True)
                elif path.endswith("/chat/completions"):
                    self._answer(body, _chat(model.turn(body)), named=False)
                elif "enerateContent" in path:
                    streams = path.endswith(":streamGenerateContent")
                    self._answer({**body, "stream": streams}, _gemini(model.turn(body)), named=False)
                else:
                    self._send({})

            def _answer(
                self, body: dict[str, Any], answer: tuple[Event, list[Event]], *, named: bool
            ) -> None:
                whole, events = answer
                if not body.get("stream"):
                    self._send(whole)
                    return
                lines = [
                    (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
                    for event in events
                ]
                last = "" if named or "candidates" in whole else "data: [DONE]\n\n"
                self._bytes("".join([*lines, last]), "text/event-stream")

            def _send(self, value: Event) -> None:
                self._bytes(json.dumps(value), "application/json")

            def _bytes(self, text: str, kind: str) -> None:
                encoded = text.encode()
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(encoded)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(encoded)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Model:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def turn(self, body: dict[str, Any]) -> Event:
        """What the model says next: a call with `name` and `arguments`, or a closing text."""
        tool = run_tool(body)
        done = len(results_of(body))
        if tool is None or done >= len(self._scripts):
            return {}
        return {
            "id": f"call_{done}",
            "name": tool["name"],
            "namespace": tool["namespace"],
            "arguments": {"code": self._scripts[done]},
        }

    def shown(self) -> list[dict[str, Any]]:
        """The requests that show the model Cellblock's tool, oldest first."""
        return [each["body"] for each in self.requests if run_tool(each["body"]) is not None]


def _anthropic(call: Event) -> tuple[Event, list[Event]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message: Event = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "stand-in",
        "usage": usage,
    }
    reason = "tool_use" if call else "end_turn"
    block: Event = {"type": "text", "text": ""}
    delta: Event = {"type": "text_delta", "text": CLOSING}
    content: Event = {"type": "text", "text": CLOSING}
    if call:
        block = {"type": "tool_use", "id": f"toolu_{call['id']}", "name": call["name"], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call["arguments"])}
        content = {**block, "input": call["arguments"]}
    stop = {"stop_reason": reason, "stop_sequence": None}
    return {**message, **stop, "content": [content]}, [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": usage},
        {"type": "message_stop"},
    ]


def _responses(call: Event) -> tuple[Event, list[Event]]:
    text: Event = {"type": "output_text", "text": CLOSING, "annotations": []}
    item: Event = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    if call:
        item = {
            "type": "function_call",
            "id": f"fc_{call['id']}",
            "call_id": call["id"],
            "name": call["name"],
            "arguments": json.dumps(call["arguments"]),
            "status": "completed",
        }
        if call["namespace"]:
            item["namespace"] = call["namespace"]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole: Event = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "stand-in",
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details},
    }
    started: Event = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[Event] = [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _chat(call: Event) -> tuple[Event, list[Event]]:
    said: Event = {"role": "assistant", "content": CLOSING}
    if call:
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        said = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"index": 0, "id": call["id"], "type": "function", "function": function}],
        }
    whole: Event = {"id": "chat_1", "created": 1, "model": "stand-in"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    reason = "tool_calls" if call else "stop"
    chunk = {**whole, "object": "chat.completion.chunk"}
    return {
        **whole,
        "object": "chat.completion",
        "usage": usage,
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
    }, [
        {**chunk, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    ]


def _gemini(call: Event) -> tuple[Event, list[Event]]:
    part: Event = {"text": CLOSING}
    if call:
        part = {"functionCall": {"name": call["name"], "args": call["arguments"]}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    whole: Event = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "stand-in"}
    return whole, [whole]
