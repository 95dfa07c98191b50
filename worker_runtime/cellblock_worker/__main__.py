"""`python -m cellblock_worker` runs a worker host for the broker that started it; with arguments, see `remote`.

The first line of stdin is the configuration; the rest of stdin is a lifeline that is never written to. Its end
means that the broker is gone, and so must everything here be.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import Any

import zmq

from cellblock_worker.base.lifetime import die_with_parent
from cellblock_worker.confinement.selftest import run_selftest
from cellblock_worker.host.deno_dir import DenoDir
from cellblock_worker.host.host import Host
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.host.host_process import EXIT_USAGE, first_line, run_confined, watch_lifeline
from cellblock_worker.wire.endpoints import ipc_folder


async def serve(config: HostConfig) -> None:
    """Serves until the broker says shutdown, the lifeline ends, or SIGTERM or SIGINT comes."""
    loop = asyncio.get_running_loop()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    try:
        host = Host(config, context)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        watch_lifeline(stop.set)
        host.warm_up()
        testing = loop.create_task(run_selftest(config.max_old_space_mb, launcher=host.launcher))
        folder = ipc_folder(config.connect)
        deno_dir = DenoDir(folder, config.max_old_space_mb, host.has_booted_many, host.move)
        filling: asyncio.Task[None] | None = None
        ways_out = [loop.create_task(stop.wait()), loop.create_task(host.stopped.wait())]
        try:
            await asyncio.wait([testing, *ways_out], return_when=asyncio.FIRST_COMPLETED)
            if testing.done():
                testing.result()
                host.announce()
                filling = loop.create_task(deno_dir.serve())
                await asyncio.wait(ways_out, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started: list[asyncio.Task[Any]] = [testing] if filling is None else [testing, filling]
            for task in (*started, *ways_out):
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)
            await host.stop()
            deno_dir.close()
    finally:
        context.destroy(linger=0)


def main() -> int:
    """Reads the configuration and serves. Returns the exit code."""
    if len(sys.argv) > 1:
        from cellblock_worker.host import remote

        return remote.main(sys.argv[1:])
    die_with_parent()
    try:
        config = HostConfig.from_json(first_line())
    except ValueError as error:
        sys.stderr.write(f"cellblock_worker is started by the broker, not by hand: {error}\n")
        return EXIT_USAGE
    # What is loaded by now stays: no collection need go through it in the middle of a run.
    gc.freeze()
    return run_confined(config, lambda: serve(config))


if __name__ == "__main__":
    sys.exit(main())
