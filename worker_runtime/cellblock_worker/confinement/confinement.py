"""The layers around one Deno process are its arguments, environment and resource limits; `layers_in_force` names those
that are in force.

Covered here: no Deno permission, empty environment, a DENO_DIR that cannot exist; bubblewrap with a seccomp filter
where the machine offers it (see `bubblewrap`); PDEATHSIG (see `lifetime`) and no_new_privs; core, file-size, open-file
and CPU limits, and the memory limit put on the live process;
a cgroup for each worker and one around all together (see `cgroup`), which the host's process has entered before it
starts any.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import deno

from cellblock_worker.base import lifetime
from cellblock_worker.confinement import bubblewrap, syscall_lists
from cellblock_worker.confinement.bubblewrap import HeldFiles
from cellblock_worker.confinement.cgroup import Membership
from cellblock_worker.confinement.cgroup_workers import WorkerGroup
from cellblock_worker.launch.launching import Jail, SpawnRequest

BUNDLE_DIR: Final = Path(__file__).parents[1] / "_bundle"
BOOT_SCRIPT: Final = "boot.js"
CONTEXTS_SCRIPT: Final = "contexts.js"
SELFTEST_SCRIPT: Final = "selftest.js"
IMPORT_MAP: Final = "node_blocked.json"

Isolation = Literal["required", "auto", "off"]
"""Says whether bubblewrap must, may or must not be around each worker. Where it must not, there is no cgroup either;
where it must, a cgroup need not be: without one each worker still has its caps, and only their sum is not capped."""


DENO_FLAGS: Final = (
    "run",
    "--quiet",
    "--no-prompt",
    "--no-npm",
    "--no-remote",
    "--cached-only",
    "--no-config",
    "--no-lock",
    # V8's compiled code would make the boot 1 ms shorter and every run 1 ms longer, as Deno compiles scripts for it.
    "--no-code-cache",
)

WORKER_ENVIRONMENT: Final = {
    # A child of a character device can never be created, so nothing can be stored between workers.
    "DENO_DIR": "/dev/null/deno",
    "DENO_NO_UPDATE_CHECK": "1",
    "NO_COLOR": "1",
    # As in the jail, where no machine's zone is known: a recording is replayed on another machine.
    "TZ": "UTC",
    # The main thread's, and one that is made at boot. A new one takes 128 MiB for a moment: as much as a run may have.
    "MALLOC_ARENA_MAX": "2",
}

MAX_OPEN_FILES: Final = 128
"""Caps the open files of a worker: a booted one has about 20, and a script can open none."""

CPU_BACKSTOP_SECONDS: Final = 1
"""Adds to RLIMIT_CPU, which counts whole seconds; sampling ends the run earlier, this catches a host that cannot
sample."""

CONTEXTS_OLD_SPACE_MB: Final = 96
"""Sets up to which size of old contexts V8 does not look for garbage in a process that serves several runs: about as
many as it has in its life. Each look marks all that is alive, 12 to 20 ms, for what is given back at its end anyway."""

CONTEXTS_SEMI_SPACE_MB: Final = 2
"""Caps each half of the young objects' space in such a process, 16 MiB by itself: it grows with what contexts leave."""

ADDRESS_ROOM_BYTES: Final = 64 * 1024 * 1024
"""Adds address space to a run's memory, for stacks of threads and for files that are mapped. Scripts at their limit
were seen to need none of it, as a script has no WebAssembly, which reserves gigabytes."""

OOM_SCORE_ADJ: Final = 1000
"""Lets the kernel kill a worker before the host, the broker or anything else when memory runs out (proc(5))."""

_LINUX: Final = lifetime.LINUX


@functools.cache
def deno_binary() -> str:
    """Returns the Deno of the package `deno`, whose environment need not be this Python's (overlays, PYTHONPATH), or
    else the one on PATH. Raises FileNotFoundError, which says where was looked."""
    with contextlib.suppress(FileNotFoundError):
        return deno.find_deno_bin()
    # PREFIX/lib/pythonX.Y/site-packages/deno/__init__.py, where links may lead elsewhere.
    package = Path(deno.__file__).absolute()
    places = {
        str(path.parents[min(4, len(path.parents) - 1)] / "bin") for path in (package, package.resolve())
    }
    looked = os.pathsep.join([*sorted(places), os.environ.get("PATH", os.defpath)])
    found = shutil.which("deno", path=looked)
    if found is None:
        raise FileNotFoundError(f"there is no deno in the scripts of {sys.prefix}, nor in {looked}")
    return found


@functools.cache
def deno_version() -> str | None:
    """Returns the version of the `deno` wheel, which is that of its Deno; None where it is no installed package."""
    for folder in sys.path:
        for found in Path(folder).glob("deno-*.dist-info"):
            return found.name.removeprefix("deno-").removesuffix(".dist-info")
    # Installed in another form than pip's. Not at the top: its import takes a tenth of a host's start.
    import importlib.metadata

    try:
        return importlib.metadata.version("deno")
    except importlib.metadata.PackageNotFoundError:
        return None


class IsolationUnavailable(RuntimeError):
    """Tells that this machine does not offer what `isolation = "required"` needs; the text says why."""


@dataclass(slots=True)
class _Choice:
    wrapper: tuple[str, ...] | None = None
    filter: bytes | None = None
    filter_layer: str = ""
    missing: tuple[str, ...] = ()
    cgroup: Membership | None = None
    contexts: bool = False
    lacks_contexts: bool = False
    held: HeldFiles = field(default_factory=HeldFiles)


_choice: Final = _Choice()


def use_isolation(isolation: Isolation) -> None:
    """Decides, once for this process, what is put around workers. Takes about 50 ms for a trial.

    Args:
        isolation: What is asked for.

    Raises:
        IsolationUnavailable: It is required, and cannot be had.
        OSError: This machine is at its end for now (no process, no descriptor, no memory): that says nothing about
            what it offers, and must not make a weaker choice.
    """
    _choice.wrapper, _choice.missing = None, ()
    _choice.held.close()
    if isolation == "off":
        _choice.missing = ("namespaces and cgroup: switched off; set isolation to auto or required",)
        return
    found = bubblewrap.try_out(deno_binary(), str(BUNDLE_DIR))
    if found.prefix is None:
        if isolation == "required":
            raise IsolationUnavailable(found.reason)
        _choice.missing = (f"namespaces: {found.reason}",)
        return
    _choice.wrapper = found.prefix
    _choice.held.hold(bubblewrap.sources(found.prefix))
    _choice.filter = syscall_lists.filter_program("deno", deno_version())
    _choice.filter_layer, lacks = syscall_lists.in_force("deno", deno_version())
    if lacks and isolation == "required":
        raise IsolationUnavailable(lacks)
    _choice.missing = (lacks,) if lacks else ()


def use_cgroup(membership: Membership | None) -> None:
    """Names the cgroups that this process is in, and those that it has for workers. The caller owns them."""
    _choice.cgroup = membership


def use_contexts(wanted: bool) -> bool:
    """Decides whether workers may boot from the script that can serve several runs, and returns it: where that is
    wanted, and the kernel keeps a run's limits.
    """
    contexts = wanted and _LINUX
    _choice.lacks_contexts = wanted and not contexts
    _choice.contexts = contexts
    return contexts


def jail() -> Jail | None:
    """Returns what the host's launcher is to enter; None without bubblewrap."""
    if _choice.wrapper is None:
        return None
    return Jail(tuple(_for_script(_choice.wrapper)), _choice.filter or b"")


def _for_script(wrapper: Sequence[str]) -> list[str]:
    return bubblewrap.with_own_name(wrapper) if _choice.contexts else list(wrapper)


def take_group() -> WorkerGroup | None:
    """Returns a cgroup for one worker, to be given back; None where there are none. Raises OSError."""
    groups = _choice.cgroup.workers if _choice.cgroup is not None else None
    return groups.take() if groups is not None else None


def give_back(group: WorkerGroup) -> None:
    """Takes back the cgroup of a worker that is reaped."""
    groups = _choice.cgroup.workers if _choice.cgroup is not None else None
    if groups is not None:
        groups.give_back(group)


def why_all_were_over() -> str:
    """Says why the kernel has killed a worker for memory that was not over its own limit."""
    total = _choice.cgroup.caps.memory_bytes // (1024 * 1024) if _choice.cgroup is not None else 0
    return f"all workers together reached their {total} MiB, or the machine ran out of memory"


def launch(
    max_old_space_mb: int,
    script: str = BOOT_SCRIPT,
    *,
    jail: Jail | None = None,
) -> SpawnRequest:
    """Returns the order for a worker, or for another script of the bundle just like one. Who is not inside of
    bubblewrap is guarded. Raises OSError.

    Args:
        max_old_space_mb: V8's own heap ceiling in MiB, so that it collects garbage before the kernel's limit.
        script: Name of a file of the bundle.
        jail: What its launcher is in; None: it gets a bubblewrap of its own, where there is one.
    """
    inside = [
        bubblewrap.DENO_INSIDE,
        *_deno_arguments(max_old_space_mb, bubblewrap.BUNDLE_INSIDE, script),
    ]
    if jail is not None:
        return SpawnRequest(inside, WORKER_ENVIRONMENT, guarded=True, in_jail=True)
    if _choice.wrapper is None:
        return SpawnRequest(plain_argv(max_old_space_mb, script), WORKER_ENVIRONMENT, guarded=True)
    binary, *arguments = _for_script(_choice.wrapper)
    fds: tuple[int, ...] = ()
    if _choice.filter is not None:
        fds = (bubblewrap.open_filter(_choice.filter),)
        arguments = ["--seccomp", str(fds[0]), *arguments]
    # --die-with-parent is enough: a host that is gone before it was asked for leases nothing, and Deno ends with its
    # stdin. A guard before bubblewrap would kill it too early, and its child would wait for it for ever (`bubblewrap`).
    return SpawnRequest([binary, *arguments, *inside], WORKER_ENVIRONMENT, fds)


def plain_argv(max_old_space_mb: int, script: str = BOOT_SCRIPT) -> list[str]:
    """Returns the command line of a script of the bundle without bubblewrap."""
    return [deno_binary(), *_deno_arguments(max_old_space_mb, str(BUNDLE_DIR), script)]


def _deno_arguments(max_old_space_mb: int, folder: str, script: str) -> list[str]:
    v8_flags = f"--disallow-code-generation-from-strings,--max-old-space-size={max_old_space_mb}"
    if script == CONTEXTS_SCRIPT:
        v8_flags += f",--initial-old-space-size={CONTEXTS_OLD_SPACE_MB}"
        v8_flags += f",--max-semi-space-size={CONTEXTS_SEMI_SPACE_MB}"
    return [
        *DENO_FLAGS,
        f"--import-map={folder}/{IMPORT_MAP}",
        f"--v8-flags={v8_flags}",
        f"{folder}/{script}",
    ]


def limit_at_boot(pid: int) -> None:
    """Puts the limits that never change on a live worker: no core dump, no file growth, no real-time priority, few open
    files.

    Raises:
        OSError: They could not be put on a process that is still there.
    """
    if _LINUX:
        # The process may be dead already; its owner learns that from its pidfd.
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
            # The host may have inherited the right to it.
            resource.prlimit(pid, resource.RLIMIT_RTPRIO, (0, 0))
            _lower(pid, resource.RLIMIT_NOFILE, MAX_OPEN_FILES, MAX_OPEN_FILES)
        # Some kernels do not let an unprivileged host do this to a process in another user namespace.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError),
            open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file,  # noqa: PTH123
        ):
            file.write(str(OOM_SCORE_ADJ).encode())


def limit_at_lease(
    pid: int,
    data_bytes: int,
    cpu_seconds: float,
    address_bytes: int | None = None,
    *,
    spare: tuple[int, float] = (0, 0.0),
) -> bool:
    """Puts the run's limits on a live worker.

    `data_bytes` is the worker's data size now plus what the run may add: set any earlier, V8's reservation at start
    would not fit. `cpu_seconds`, counted from the worker's birth, is the backstop of the sampled CPU cap.
    `address_bytes`, for a worker without a cgroup of its own, is the same as `data_bytes` for all that it maps.
    `spare`, for one that may have other runs, is by how many bytes and seconds its hard limits are over these: nobody
    may raise them later.

    Returns:
        Whether the kernel keeps the memory limit; if not, the caller must sample.

    Raises:
        OSError: They could not be put on: the worker is gone.
    """
    if not _LINUX:
        return False
    more_bytes, more_seconds = spare
    _lower(pid, resource.RLIMIT_DATA, data_bytes, data_bytes + more_bytes)
    if address_bytes is not None:
        most = address_bytes + ADDRESS_ROOM_BYTES
        _lower(pid, resource.RLIMIT_AS, most, most + more_bytes)
    seconds = int(cpu_seconds) + 1 + CPU_BACKSTOP_SECONDS
    # The hard limit is later: at the hard one the kernel sends SIGKILL, which does not say why. The first process of a
    # namespace gets only that one.
    _lower(pid, resource.RLIMIT_CPU, seconds, seconds + 1 + int(more_seconds))
    return True


def take_memory(pid: int, size: int) -> None:
    """Takes so much from a live worker's limits of memory, or gives it back where that is negative. Raises OSError."""
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_AS) if _LINUX else ():
        soft, hard = resource.prlimit(pid, limit)
        if soft != resource.RLIM_INFINITY:
            resource.prlimit(pid, limit, (soft - size, hard))


def _lower(pid: int, limit: int, soft: int, hard: int) -> None:
    """Puts a limit on a process, or leaves the one it has where that is lower: nobody may raise it."""
    _, most = resource.prlimit(pid, limit)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.prlimit(pid, limit, (soft, hard))


def layers_in_force(*, in_jail: bool = False) -> list[str]:
    """Returns the names of the layers that a worker gets on this machine, for `doctor` and the host's `Hello`.

    `in_jail`: its launcher is in `jail()`.
    """
    layers = ["deno: no permission, no npm, no remote, no code from strings", "environment: empty"]
    if _choice.contexts:
        layers.append(
            "reuse: runs of one principal may have one process, one after the other; between them is a V8 context, "
            "which is hygiene and no wall"
        )
    if _LINUX:
        layers += [
            "kernel: RLIMIT_DATA and RLIMIT_CPU per run, RLIMIT_CORE, RLIMIT_FSIZE, RLIMIT_NOFILE",
            "kernel: PDEATHSIG, no_new_privs, own session",
        ]
    if _choice.wrapper is not None:
        layers.append(
            "namespaces: user, pid, network, ipc, uts, mount; read-only root of Deno and its libraries; no capability"
        )
        if in_jail:
            layers.append(
                "namespaces: pid, ipc and uts are each worker's own; network, user, mount and root are all workers'"
            )
        if _choice.filter_layer:
            layers.append(_choice.filter_layer)
    if _choice.cgroup is not None:
        layers += _choice.cgroup.in_force
    return layers


def layers_missing() -> list[str]:
    """Returns the layers that a worker does not get, each with the reason and the way to get it."""
    missing = list(_choice.missing)
    if _choice.cgroup is not None:
        missing += _choice.cgroup.missing
    if not _LINUX:
        missing.append("kernel limits: this system has no prlimit; memory is sampled instead")
    if _choice.lacks_contexts:
        missing.append(
            "reuse: without kernel limits a later run's memory cannot be told from an earlier one's"
        )
    return missing
