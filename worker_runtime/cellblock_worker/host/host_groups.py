"""Prepares a host's process, and gives it its place in cgroups until all that it has started is gone."""

from __future__ import annotations

import logging
import resource
from collections.abc import Generator
from contextlib import contextmanager

from cellblock_worker.confinement.cgroup import cgroup
from cellblock_worker.confinement.confinement import use_cgroup
from cellblock_worker.host.host import HostConfig


def prepare_process(config: HostConfig) -> None:
    """Sets up this process's log, and lets it open as many files as it may."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def in_groups(config: HostConfig) -> Generator[None]:
    """Keeps this process in a cgroup of its own, with one for each worker, where machine and `isolation` allow it."""
    if config.isolation == "off":
        use_cgroup(None)
        yield
        return
    caps = cgroup.caps_for(
        capacity=config.capacity,
        warm=max(config.warm, config.max_warm),
        boot_parallel=config.boot_parallel,
        memory_bytes=config.max_old_space_mb * cgroup.MIB,
        total_bytes=config.total_memory_bytes,
    )
    membership = cgroup.enter(caps)
    try:
        use_cgroup(membership)
        yield
    finally:
        use_cgroup(None)
        membership.leave()
