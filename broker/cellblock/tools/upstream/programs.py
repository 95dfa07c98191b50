"""What the programs of servers are started with, what they lack, and how to get it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mcp.client.stdio import get_default_environment

from cellblock.base.settings.settings import ServerConfig

TO_INSTALL: Final[Mapping[str, str]] = {
    **dict.fromkeys(("npx", "npm"), "Install Node.js, which brings it: https://nodejs.org"),
    "node": "Install Node.js: https://nodejs.org",
    **dict.fromkeys(("bunx", "bun"), "Install Bun: https://bun.sh"),
    "uvx": "Install uv, which brings it: https://docs.astral.sh/uv",
    "uv": "Install uv: https://docs.astral.sh/uv",
    "docker": "Install Docker, and start it: https://docs.docker.com/engine/install",
    "python": "Name the interpreter that you have, such as python3.",
    "deno": "Install Deno: https://deno.com",
}
"""Says how to get the programs that entries of MCP servers start with."""


PASSED_VARIABLES: Final = (
    # Networks: proxies, and the certificates that they, or a company, have.
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # Words and times.
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "TMPDIR"),
    # The desktop: to open a browser, to ask for a password, to reach the agent that signs.
    *(
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "SSH_AUTH_SOCK",
    ),
)
"""Lists what a started server gets of Cellblock's environment, beside what the SDK passes. Of these, only a proxy's
address may hold a password, which a server cannot do without; keys and tokens are named in its own `env`."""

_CERTIFICATES: Final = re.compile(
    r"\bcertificate|\bCERT_|SELF_SIGNED|UNABLE_TO_(?:GET|VERIFY)|\bx509\b|\bUnknownIssuer\b", re.I
)
_NAMES: Final = re.compile(
    r"\bENOTFOUND|\bEAI_AGAIN|getaddrinfo|name resolution|Name or service not known|no such host|nodename nor servname"
    r"|could not resolve|dns error|failed to lookup address",
    re.I,
)
"""Find, in the last words of a program, that it trusts no certificate, or finds no name."""


def environment_of(config: ServerConfig) -> dict[str, str]:
    """Returns the variables that the program of an entry is started with."""
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    return get_default_environment() | passed | config.inherited() | config.env


def missing_variable(config: ServerConfig, said: str) -> str | None:
    """Returns which variable a program lacks, by its entry or its last words, and what to do; None for other words."""
    named = [] if isinstance(config.inherit_env, bool) else config.inherit_env
    if absent := [name for name in named if name not in os.environ]:
        return f"Its inheritEnv names {' and '.join(absent)}: not set where Cellblock is started."
    if _CERTIFICATES.search(said):
        what, names = (
            "trusts other certificates",
            ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
        )
        value = "the file of your network's certificates"
    elif _NAMES.search(said):
        what, names, value = "finds no names", ("HTTPS_PROXY", "HTTP_PROXY"), "your network's proxy"
    else:
        return None
    given = environment_of(config)
    lacking = [name for name in names if name not in given and name.lower() not in given]
    if not lacking:
        return f"It {what}, with {' and '.join(names)} set: check their values."
    verb = "is" if len(lacking) == 1 else "are"
    return (
        f"It {what}, and {' and '.join(lacking)} {verb} not set for it. Where it needs one, set it to {value} where "
        "Cellblock is started, or in the env of its entry."
    )


def missing_command(config: ServerConfig) -> str | None:
    """Returns why the program of an entry cannot be started, and what to do; None when it is there."""
    command = config.command
    if command is None:
        return None
    if config.cwd is not None and not config.cwd.is_dir():
        return f"Its cwd {config.cwd} is no folder. Correct cwd in its entry."
    if "/" in command:
        path = Path(config.cwd or ".") / command
        if os.access(path, os.X_OK) and not path.is_dir():
            return None
        why = "is no program that may be started" if path.exists() else "does not exist"
        return f"{path} {why}. Correct command in its entry."
    if shutil.which(command, path=config.env.get("PATH") or os.environ.get("PATH")) is not None:
        return None
    if " " in command.strip():
        return f"There is no program {command}. Its arguments go into args, one by one."
    install = TO_INSTALL.get(command, "Install it, or write its whole path.")
    return f"{command} is not on PATH. {install}"
