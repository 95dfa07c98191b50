"""A real MCP client with a user: who answers questions, and what it was shown of progress and logs."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client, StdioServerParameters

from support.cellblock_zygote import forked_cellblock
from support.entries import write_config
from support.http_daemon import TOOL, Daemon
from support.waits import until, within

Answer = Callable[[str], Awaitable[Any]]


@dataclass
class Asked:
    """A client and its user. `answer` gets the question and gives an action, or an `ErrorData`."""

    client: Any = None
    answer: Answer | None = None
    questions: list[str] = field(default_factory=list[str])
    progress: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    logs: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> Any:
        """The client's elicitation callback."""
        self.questions.append(params.message)
        said = await self.answer(params.message)
        content = {} if said == "accept" else None
        return types.ElicitResult(action=said, content=content) if isinstance(said, str) else said

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The client's progress callback."""
        assert total is None
        self.progress.append((progress, message or ""))

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        """The client's logging callback."""
        assert params.logger == "script"
        self.logs.append((params.level, params.data))

    async def run(self, code: str, *, told: bool = False, **arguments: Any) -> dict[str, Any]:
        """One run to its response."""
        work = self.client.call_tool(
            TOOL, {"code": code, **arguments}, progress_callback=self.on_progress if told else None
        )
        result = await within(work, 60)
        assert not result.is_error, result.content
        return result.structured_content

    async def until(self, holds: Callable[[], object]) -> None:
        """Waits until something holds of what was said."""
        await until(holds, "it was said")


def always(action: str) -> Answer:
    """A user who says the same to everything."""

    async def answer(_: str) -> str:
        return action

    return answer


@asynccontextmanager
async def asking(
    transport: Any,
    mode: str,
    *,
    elicits: bool = True,
    level: types.LoggingLevel | None = None,
    name: str = "test",
) -> AsyncGenerator[Asked]:
    """A connected client."""
    asked = Asked()
    async with Client(
        transport,
        mode=mode,
        elicitation_callback=asked.elicit if elicits else None,
        logging_callback=asked.on_log,
        log_level=level,
        client_info=types.Implementation(name=name, version="1"),
    ) as asked.client:
        if level is not None and mode == "legacy":
            await within(asked.client.set_logging_level(level))
        yield asked


def stdio(
    config: Path, state: Path, env: dict[str, str] | None = None, front: Sequence[str] = ("--stdio",)
) -> StdioServerParameters:
    """`cellblock serve`, with a front-end at its pipes."""
    arguments = ["serve", *front, "--config", str(config), "--state-dir", str(state)]
    return StdioServerParameters(command=str(forked_cellblock()), args=arguments, env=env)


def connect(running: Daemon) -> StdioServerParameters:
    """`cellblock connect`."""
    arguments = ["connect", "--url", running.url, "--state-dir", str(running.folder / "s")]
    return StdioServerParameters(command=str(forked_cellblock()), args=arguments)


over_http = Daemon.transport


@asynccontextmanager
async def proxy_client(
    folder: Path, servers: dict[str, Any], *, mode: str = "auto", on_message: Any = None, **cellblock: Any
) -> AsyncGenerator[Client]:
    """A client whose servers' tools are each under one name; `cellblock` is the section of the configuration."""
    config = write_config(folder, servers, **cellblock)
    async with Client(
        stdio(config, folder / "state", front=("--profile", "proxy")),
        mode=mode,
        message_handler=on_message,
        cache=None,
    ) as client:
        yield client
