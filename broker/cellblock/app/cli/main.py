"""Main runs one command: arguments to an exit code. Standard output carries answers and nothing else.

Exit codes: 0 all went well; 1 the script ended with an error diagnostic; 2 wrong usage or configuration; 3 Cellblock
itself could not start, or its output be written.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import pkgutil
import signal
import sys
from collections.abc import Coroutine, Sequence
from types import ModuleType
from typing import Any, Final

from cellblock.app.cli.arguments import Code, default_file
from cellblock.app.cli.help import EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE
from cellblock.app.cli.parser import make_parser
from cellblock.app.cli.streams import say, with_streams
from cellblock.base.errors import MORE_THREADS, CellblockError, Fault

OWN_CONFIG: Final = ("import", "install", "config", "demo", "add", "remove", "enable", "disable")
"""Names the commands that say for themselves what no --config means; for others it is the user's own file."""

LOADED_SECONDS: Final = 1.0
"""Sets when the collector begins in a command that goes on."""

WHEN_USED: Final = ("mcp", "mcp.client", "mcp.server", "jwt", "jsonschema_rs")
"""Names the packages whose own code is run when it is used. The SDK's import all of the SDK, and nobody asks for what
they are; with `jwt` comes `cryptography`, and many a daemon never needs the validator."""

COMPLETING: Final = "_ARGCOMPLETE"
"""Names the variable that a shell sets to ask what an unfinished command line can become."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    if COMPLETING in os.environ:
        from cellblock.app.cli.completion import complete

        complete(make_parser())
    if arguments is None:
        # What is loaded stays to the end: the collector would go through it a dozen times.
        gc.disable()
    return with_streams(lambda: _main(arguments))


class _WhenUsed(ModuleType):
    """A package whose own code is run when the first name of it is asked for. (`importlib.util.LazyLoader` runs it for
    an import of one of its modules, too.) It is run as a module, `PACKAGE.__init__`: two threads that load the package
    and a module of it wait for each other as at any import, which Python notices."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(f"{self.__name__}.__init__"), name)
        setattr(self, name, value)
        return value


def _load_when_used() -> None:
    """Has the SDK's packages loaded and pydantic's models built as they are first used: in the packages' own code the
    SDK imports all of itself, and it has models of three revisions of MCP; together they take a third of a start. In a
    process of Cellblock's own alone."""
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True
    for name in WHEN_USED:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
            package = importlib.util.module_from_spec(spec)
            package.__class__ = _WhenUsed
            sys.modules[name] = package
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, package)


def _main(arguments: Sequence[str] | None) -> int:
    logging.basicConfig(
        level=os.environ.get("CELLBLOCK_LOG", "ERROR").upper(),
        stream=sys.stderr,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    words = sys.argv[1:] if arguments is None else [*arguments]
    if words[:1] == ["approve"]:
        say("`cellblock approve` is `cellblock pins approve` now.")
        words.insert(0, "pins")
    parsed = make_parser("".join(words[:1])).parse_args(words)
    # `connect` has no models, and its client would wait for pydantic.
    if arguments is None and parsed.command != "connect":
        _load_when_used()
    if parsed.command not in OWN_CONFIG and getattr(parsed, "config", "") is None:
        default = default_file()
        parsed.config = str(default) if default.is_file() else None
    try:
        # Signals have their default effect until the loop runs: what is read here may be a pipe, and wait.
        code: Code | Coroutine[Any, Any, Code] = pkgutil.resolve_name(f"cellblock.app.cli.{parsed.work}")(
            parsed
        )
        if not isinstance(code, Code):
            code = asyncio.run(_ended_by_signals(code))
        return EXIT_OK if code is None else code
    except CellblockError as error:
        say(str(error))
        return EXIT_USAGE if error.fault is Fault.CALLER else EXIT_UNAVAILABLE
    except MemoryError:
        say("There is no memory left for Cellblock: `ulimit -v` should be unlimited.")
        return EXIT_UNAVAILABLE
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        say(f"The command was given up: no more threads are allowed. {MORE_THREADS}")
        return EXIT_UNAVAILABLE
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _collect_from_now_on() -> None:
    # Of what is there, less than one object in a hundred is garbage; to find it would take 0.1 s.
    gc.freeze()
    gc.enable()


async def _ended_by_signals(work: Coroutine[Any, Any, Code]) -> Code:
    """Does the work of a command; SIGTERM and SIGHUP cancel it, so that everything is closed in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.call_later(LOADED_SECONDS, _collect_from_now_on)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    # Somebody else's already where it is an order to reload.
    if not callable(signal.getsignal(signal.SIGHUP)):
        loop.add_signal_handler(signal.SIGHUP, task.cancel)
    return await task
