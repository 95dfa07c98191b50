"""What a command does before its work."""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import sys
ROOMS = tuple("cellblock." + room for room in ("app.broker", "run", "serve", "tools", "types"))
from cellblock.app.cli.main import _load_when_used
_load_when_used()
import importlib, pkgutil, cellblock
for module in pkgutil.walk_packages(cellblock.__path__, "cellblock."):
    if module.name.startswith(ROOMS):
        importlib.import_module(module.name)
print("mcp.client.client" in sys.modules, "cryptography" in sys.modules)
import mcp
from mcp.client import Client
from mcp import ClientSession, MCPError
print(ClientSession is mcp.client.session.ClientSession, mcp.server.MCPServer.__name__, Client.__name__)
import jwt
print(issubclass(jwt.PyJWTError, Exception), "cryptography" in sys.modules, hasattr(jwt, "absent"))
"""


def test_a_package_that_is_loaded_when_used_is_whole_then() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["False False", "True MCPServer Client", "True True False", ""]
