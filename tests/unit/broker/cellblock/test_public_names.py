"""Whoever embeds Cellblock finds all that its signatures mention at the top of the package."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

import cellblock
from cellblock.base.internal import is_internal

SECTIONS: Final = (
    cellblock.CellblockSettings,
    cellblock.PolicySettings,
    cellblock.Grant,
    cellblock.FlowLabel,
)
"""Their fields are the configuration file's, for which docs/configuration.md is the reference."""

WORD: Final = re.compile(r"(?<![\w.])[A-Z]\w+")


def names_for_checkers(module: Any) -> dict[str, Any]:
    """What a module imports for type checkers alone."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cellblock"):
            origin = importlib.import_module(node.module)
            found |= {name.name: getattr(origin, name.name, None) for name in node.names}
    return found


def annotations_of(name: str, public: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each place, its annotation as it is written, and what names stand for there."""
    if inspect.isfunction(public):
        space = {**names_for_checkers(inspect.getmodule(public)), **public.__globals__}
        for what, text in public.__annotations__.items():
            yield f"{name}({what})", str(text), space
    elif inspect.isclass(public) and public not in SECTIONS:
        bases = [base for base in inspect.getmro(public) if base.__module__.startswith("cellblock")]
        # What annotations may use: names of its module, and of its bases' of ours.
        space: dict[str, Any] = {}
        for base in reversed(bases):
            module = importlib.import_module(base.__module__)
            space |= {**names_for_checkers(module), **vars(module)}
        for base in bases:
            for attribute, text in inspect.get_annotations(base).items():
                if not attribute.startswith("_") and attribute != "model_config":
                    yield f"{name}.{attribute}", str(text), space
            for member_name, member in vars(base).items():
                function = (
                    member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                )
                if not inspect.isfunction(function) or is_internal(member):
                    continue
                if not member_name.startswith("_") or member_name in ("__init__", "__aenter__"):
                    for what, text in function.__annotations__.items():
                        yield f"{name}.{member_name}({what})", str(text), space


@pytest.mark.parametrize("name", [name for name in cellblock.__all__ if name != "__version__"])
def test_all_that_a_public_signature_mentions_can_be_imported_from_the_top(name: str) -> None:
    missing = {
        f"{place}: {word}"
        for place, text, space in annotations_of(name, getattr(cellblock, name))
        for word in WORD.findall(text)
        if ours(word, space) and word not in cellblock.__all__
    }
    assert not missing, "import it in cellblock/__init__.py, or mark what mentions it with @internal"


def ours(word: str, space: dict[str, Any]) -> bool:
    """Whether a word of an annotation is a name of Cellblock's own, and no type variable."""
    value = space.get(word)
    if value is None or type(value).__name__ in ("TypeVar", "ModuleType"):
        return False
    module = getattr(value, "__module__", "")
    # An alias, such as `Approver`, says nothing of where it is made.
    return module.startswith("cellblock") or not (inspect.isclass(value) or module in ("typing", "pathlib"))


def test_what_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(inspect.getsource(cellblock))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        (name.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert imported == set(vars(cellblock)["_WHERE"].items())
    assert sorted(["__version__", *vars(cellblock)["_WHERE"]]) == sorted(cellblock.__all__)


def test_a_name_costs_only_what_it_needs() -> None:
    code = "import sys, cellblock; cellblock.tool, cellblock.CellblockError; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"mcp", "pydantic", "zmq", "cellblock.app.broker"} & set(done.stdout.split())
