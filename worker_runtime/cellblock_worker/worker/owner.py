"""Defines what a worker has of its owner, the host, and tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol

if TYPE_CHECKING:
    from cellblock_worker.worker.worker import Worker


class WorkerOwner(Protocol):
    """Owns workers: a host, as its workers know it."""

    @property
    def launcher(self) -> Launcher:
        """Starts its process."""
        ...

    def worker_ready(self, worker: Worker) -> None:
        """Hears that a worker is booted and warm."""
        ...

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        """Takes a message of the run, checked and within its caps, to be relayed."""
        ...

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        """Hears that a long run has used so much CPU time more; what a run uses after the last such message is in its
        end.

        Gives whether it is to give way to the runs of others from now on.
        """
        ...

    def worker_ended(self, worker: Worker, ended: protocol.Ended, stderr: bytes) -> None:
        """Hears that the run is over; its worker has been killed. Exactly once per leased worker."""
        ...

    def worker_gone(self, worker: Worker) -> None:
        """Hears that the process is reaped. Exactly once per worker."""
        ...
