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


CROSSED = """
import faulthandler, importlib, sys, threading, types
from cellblock.app.cli.main import _load_when_used
faulthandler.dump_traceback_later(60, exit=True)
_load_when_used()
inside, begun, found = threading.Event(), threading.Event(), []

class Held(types.ModuleType):
    # Holds who is inside `mcp.client.client`, which asks this one, until another has begun with the whole package.
    def __getattr__(self, name):
        if name != "InMemoryTransport":
            raise AttributeError(name)
        inside.set()
        begun.wait()
        del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)

class Look:
    def find_spec(self, name, path, target=None):
        if name == "mcp.types":
            begun.set()

def load():
    from mcp.client.client import Client
    found.append(Client)

sys.modules["mcp.client._memory"] = Held("mcp.client._memory")
sys.meta_path.insert(0, Look())
other = threading.Thread(target=load)
other.start()
inside.wait()
from mcp import Client
other.join()
print(found == [Client])
"""


def test_two_threads_that_load_a_package_and_a_module_of_it_do_not_wait_for_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", CROSSED], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
