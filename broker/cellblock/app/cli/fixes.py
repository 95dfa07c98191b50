"""What keeps Cellblock or a server from working on this machine, and what to do about it; no broker is asked."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from cellblock.base.errors import MORE_THREADS, ConfigError
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.state_dir import check_state_dir
from cellblock.serve.http.address import check_certificate, validity
from cellblock.serve.http.token import FILE_NAME, read_token
from cellblock.tools.upstream.programs import missing_command, missing_variable
from cellblock_worker.confinement.confinement import deno_binary

LOW_DISK_BYTES: Final = 64 * 1024 * 1024
"""Names the free space below which logs and stores will soon find none."""

DENO_FIX: Final = "Install Cellblock anew (pip install --force-reinstall cellblock): it brings Deno along."

_BY_REASON: Final = (
    (r"closed by the server|ended by itself", "All that it said is in {log}."),
    (r"start new thread", MORE_THREADS),
    (r"HTTP 40[13]", "Correct its credentials: the headers of its entry."),
    (r"HTTP 404", "Check its URL: many servers answer at /mcp, older ones at /sse with type sse."),
    (r"no tool list within \d+ s", "Start it by hand to see why it lists no tools."),
    (
        r"upstream\.connect_timeout_ms",
        "Start it by hand once, so that it is downloaded; or raise upstream.connect_timeout_ms.",
    ),
    (
        r"connect|resolve|refused|unreachable|name or service|listens",
        "Check that it runs, and its URL.",
    ),
)


def fix_of(config: ServerConfig | None, reason: str, log: Path) -> str:
    """Returns what to do about a server that is not connected; its stderr goes to `log`."""
    if config is not None:
        if config.missing is not None:
            return "Set it where Cellblock is started; the warning above has its place."
        missing = missing_command(config)
        if missing is not None:
            return missing
        if config.command is not None and (lacks := missing_variable(config, reason)) is not None:
            return lacks
    for pattern, fix in _BY_REASON:
        if re.search(pattern, reason, re.I):
            return fix.format(log=log)
    return f"Start it by hand to see why{f'; what it said is in {log}' if log.exists() else ''}."


def with_fix(config: ServerConfig | None, reason: str, log: Path) -> str:
    """Returns a reason with what to do, as for `fix_of`, where it does not say so itself."""
    fix = fix_of(config, reason, log)
    return reason if fix.rstrip(".") in reason else f"{reason.rstrip('.')}. {fix}"


def state_dir_trouble(state_dir: Path) -> str | None:
    """Returns why nothing can be kept in the state directory, and what to do; None when it can."""
    try:
        check_state_dir(state_dir)
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=state_dir) as file:
            file.write(b"x")
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return (
            f"The state directory {state_dir} cannot be written: {error.strerror}. "
            "Make it yours (chown, chmod 700), free space on its disk, or use another --state-dir."
        )
    return None


def deno_trouble() -> str | None:
    """Returns what is wrong with the Deno that runs scripts, and what to do; None when it is there."""
    try:
        binary = deno_binary()
    except OSError as error:
        return f"Deno is missing: {error}. {DENO_FIX}"
    return None if os.access(binary, os.X_OK) else f"Deno cannot be started: {binary}. {DENO_FIX}"


def low_disk(state_dir: Path) -> str | None:
    """Returns what to do about a disk that is nearly full; None when it is not."""
    free = shutil.disk_usage(state_dir).free
    if free >= LOW_DISK_BYTES:
        return None
    return (
        f"The disk of the state directory {state_dir} has only {free // 1024:,} KiB left: logs and what is learnt "
        "will be lost. Free space on it, or use another --state-dir."
    )


_APPARMOR: Final = (
    "kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap an AppArmor profile that allows `userns`"
)

_KERNEL_SETTINGS: Final = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", _APPARMOR),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)
"""Lists what forbids user namespaces: the setting, the value that does, and what allows them."""

_CONTAINERS: Final = ("/.dockerenv", "/run/.containerenv")


def isolation_fix(
    missing: str, proc: Path = Path("/proc/sys"), containers: tuple[str, ...] = _CONTAINERS
) -> str:
    """Returns how to get what a host says is missing around workers.

    Returns:
        What to do, or nothing when that is said already, or is the user's own choice.
    """
    if "bwrap failed" not in missing:
        return ""
    for name, forbids, allows in _KERNEL_SETTINGS:
        try:
            value = (proc / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == forbids:
            return f"This kernel forbids user namespaces. Allow them: sudo sysctl -w {allows}."
    if any(Path(file).exists() for file in containers):
        return (
            "This container forbids user namespaces. Start it so that they are allowed (Docker: --security-opt "
            "seccomp=PROFILE with a profile that allows unshare, mount and pivot_root)."
        )
    return (
        "Allow user namespaces to this user; inside a container or another sandbox, its own settings decide."
    )


# ---- what a daemon is shown with ----------------------------------------------------------------------

RENEW_DAYS: Final = 14
"""Counts the days before its end in which a certificate should be renewed."""


def served_certificate(cert: Path) -> str | None:
    """Returns a warning about the certificate of a daemon that serves, where it ends soon."""
    try:
        _, end = validity(cert.read_bytes())
    except (OSError, ValueError):
        return None
    return _renewal(end, f"The certificate {cert} of the daemon", "and restart the daemon")


def certificate_state(cert: Path | None, key: Path | None) -> tuple[str | None, str | None]:
    """Returns what keeps a daemon from serving with a certificate, and a warning about one that ends soon."""
    if cert is None and key is None:
        return None, None
    if cert is None or key is None:
        return "--tls-cert and --tls-key belong together. Give both.", None
    try:
        end = check_certificate(cert, key)
    except ConfigError as error:
        return str(error), None
    return None, _renewal(end, f"The certificate {cert}", "before that")


def _renewal(end: datetime.datetime, what: str, how: str) -> str | None:
    left = end - datetime.datetime.now(datetime.UTC)
    if left > datetime.timedelta(days=RENEW_DAYS):
        return None
    ends = "expired" if left <= datetime.timedelta() else "expires"
    return f"{what} {ends} at {end:%Y-%m-%d %H:%M} UTC. Renew it, {how}."


def token_trouble(state_dir: Path) -> str | None:
    """Returns what is wrong with the token file, and what to do; None when there is none or all is well."""
    file = state_dir / FILE_NAME
    try:
        if file.exists():
            read_token(file)
    except ConfigError as error:
        return str(error)
    return None
