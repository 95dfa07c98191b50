"""Who is asked: a model behind a URL, somebody who writes files, or the tasks' own reference scripts."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2

from cellblock.base.json import is_object

Said = dict[str, Any]
"""Is a turn: `role` (user, assistant, tools), `text`, `calls` of the assistant, `results` of tools."""

BOUND_SECONDS: Final = 600.0
WORLD: Final = "/world"


class Waiting(Exception):
    """Tells that a reply has not been written yet."""


def said(text: str, calls: Sequence[dict[str, Any]] = ()) -> Said:
    """A turn of the assistant's."""
    return {"role": "assistant", "text": text, "calls": [*calls]}


class Behind:
    """A model behind a URL that ends in `/chat/completions` (OpenAI) or `/messages` (Anthropic); the key is in
    EVALS_KEY."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._speaks_messages = url.rstrip("/").endswith("/messages")

    def say(self, tools: Sequence[dict[str, Any]], turns: Sequence[Said]) -> Said:
        """Asks over HTTP. Raises httpx2.HTTPError."""
        key = os.environ.get("EVALS_KEY", "none")
        body: dict[str, Any] = {"model": self._model, "max_tokens": 8_000}
        if self._speaks_messages:
            body |= {"tools": [*tools], "messages": [_block(turn) for turn in turns]}
        else:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool["name"],
                        "description": tool["description"],
                        "parameters": tool["input_schema"],
                    },
                }
                for tool in tools
            ]
            body["messages"] = [message for turn in turns for message in _messages(turn)]
        headers = {"authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"}
        answer = httpx2.post(self._url, json=body, headers=headers, timeout=BOUND_SECONDS)
        answer.raise_for_status()
        got: Any = answer.json()
        if self._speaks_messages:
            blocks: list[dict[str, Any]] = got["content"]
            calls = [
                _call(one["id"], one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"
            ]
            return said("".join(one["text"] for one in blocks if one["type"] == "text"), calls)
        message: dict[str, Any] = got["choices"][0]["message"]
        asked: list[dict[str, Any]] = message.get("tool_calls") or []
        calls = [_call(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in asked]
        return said(message.get("content") or "", calls)


def _call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    return {
        "id": id,
        "name": name,
        "arguments": arguments if is_object(arguments) else {"unreadable": arguments},
    }


def _block(turn: Said) -> dict[str, Any]:
    """A turn as Anthropic's API has it."""
    if turn["role"] == "tools":
        results = [
            {
                "type": "tool_result",
                "tool_use_id": one["id"],
                "content": one["text"],
                "is_error": one["failed"],
            }
            for one in turn["results"]
        ]
        return {"role": "user", "content": results}
    text = [{"type": "text", "text": turn["text"]}] if turn["text"] else []
    calls = [
        {"type": "tool_use", "id": one["id"], "name": one["name"], "input": one["arguments"]}
        for one in turn.get("calls", ())
    ]
    return {"role": turn["role"], "content": [*text, *calls]}


def _messages(turn: Said) -> list[dict[str, Any]]:
    """A turn as OpenAI's API has it."""
    if turn["role"] == "tools":
        return [
            {"role": "tool", "tool_call_id": one["id"], "content": one["text"]} for one in turn["results"]
        ]
    calls = [
        {
            "id": one["id"],
            "type": "function",
            "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
        }
        for one in turn.get("calls", ())
    ]
    return [{"role": turn["role"], "content": turn["text"], **({"tool_calls": calls} if calls else {})}]


class ByHand:
    """Somebody who reads `turn-N.md` in a folder, and writes `reply-N.md`. The world is at another place each time,
    which is `WORLD` there."""

    def __init__(self, folder: Path, place: str) -> None:
        self._folder, self._place = folder, place

    def say(self, tools: Sequence[dict[str, Any]], turns: Sequence[Said]) -> Said:
        """Reads the reply to the turns so far. Raises Waiting: there is none yet, and its turn has been written."""
        number = (len(turns) + 1) // 2
        reply = self._folder / f"reply-{number}.md"
        if not reply.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            shown = turns[-1].get("text") or "\n\n".join(one["text"] for one in turns[-1].get("results", ()))
            if number == 1:
                shown = (
                    f"# Tools\n\n{json.dumps([*tools], indent=1, ensure_ascii=False)}\n\n# Task\n\n{shown}"
                )
            shown = shown.replace(self._place, WORLD)
            (self._folder / f"turn-{number}.md").write_text(shown + "\n", "utf-8")
            raise Waiting
        return parsed(reply.read_text("utf-8").replace(WORLD, self._place), tools)


def parsed(text: str, tools: Sequence[dict[str, Any]]) -> Said:
    """A written reply: blocks ```json are calls, `{"name": …, "arguments": …}`; a block of another language is a script
    where a tool runs those; without any, it is the answer."""
    names = [tool["name"] for tool in tools if "code" in tool["input_schema"].get("properties", {})]
    calls: list[dict[str, Any]] = []
    for number, (language, block) in enumerate(
        re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ):
        if language == "json":
            calls.append({"id": f"call-{number}", **json.loads(block)})
        elif names:
            calls.append({"id": f"call-{number}", "name": names[0], "arguments": {"code": block}})
    return said(text, calls)


class Reference:
    """The right calls, one a turn, and then the right answer (None: what the last call has answered)."""

    def __init__(self, calls: Sequence[Mapping[str, Any]], answer: str | None = None) -> None:
        self._calls, self._answer = calls, answer

    def say(self, tools: Sequence[dict[str, Any]], turns: Sequence[Said]) -> Said:
        """Gives the next call."""
        done = len(turns) // 2
        if done < len(self._calls):
            return said("", [{"id": f"call-{done}", **self._calls[done]}])
        return said(self._answer if self._answer is not None else turns[-1]["results"][0]["text"])


Model = Behind | ByHand | Reference
"""Is asked for its next turn; raises Waiting where that is not there yet."""
