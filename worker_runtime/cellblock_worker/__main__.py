"""`python -m cellblock_worker` runs a worker host for the broker that started it; with arguments, see `remote`.

The first line of stdin is the configuration; the rest of stdin is a lifeline that is never written to. Its end
means that the broker is gone, and so must everything here be.
"""

from __future__ import annotations

import asyncio
import gc
import sys

from cellblock_worker.base.lifetime import die_with_parent
from cellblock_worker.host.host import Host
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.host.host_process import (
    EXIT_USAGE,
    first_line,
    first_of,
    on_signals,
    run_confined,
    serve_tested,
    watch_lifeline,
    zmq_context,
)


async def serve(config: HostConfig) -> None:
    """Serves until the broker says shutdown, the lifeline ends, or SIGTERM or SIGINT comes."""
    with zmq_context() as context:
        host = Host(config, context)
        stop = asyncio.Event()
        on_signals(stop.set)
        watch_lifeline(stop.set)

        async def until_stopped() -> None:
            host.announce()
            await first_of(stop, host.stopped)

        await serve_tested(host, config, stop, until_stopped)


def main() -> int:
    """Reads the configuration and serves. Returns the exit code."""
    if len(sys.argv) > 1:
        from cellblock_worker.host import remote

        return remote.main(sys.argv[1:])
    die_with_parent()
    if not (line := first_line()):
        return EXIT_USAGE  # the broker has ended meanwhile, as after a short command
    try:
        config = HostConfig.from_json(line)
    except ValueError as error:
        sys.stderr.write(f"cellblock_worker is started by the broker, not by hand: {error}\n")
        return EXIT_USAGE
    # What is loaded by now stays: no collection need go through it in the middle of a run.
    gc.freeze()
    return run_confined(config, lambda: serve(config))


if __name__ == "__main__":
    sys.exit(main())
