"""Finds the local names that a script gives to what it imports from `@codemode/…`."""

from __future__ import annotations

from tree_sitter import Node


def imported_names(root: Node) -> dict[str, tuple[str, str]]:
    """Gives the local names that imports of `@codemode/…` bind: to a module, and an export of it or nothing."""
    names: dict[str, tuple[str, str]] = {}
    for statement in root.named_children:
        if statement.type != "import_statement":
            continue
        specifier = statement.child_by_field_name("source")
        if specifier is None or b"@codemode/" not in (specifier.text or b""):
            continue
        module = _decoded(specifier)[1:-1]
        stack = [child for child in statement.named_children if child.type == "import_clause"]
        while stack:
            here = stack.pop()
            if here.type == "import_specifier":
                exported = _decoded(here.child_by_field_name("name")).strip("\"'")
                bound = _decoded(here.child_by_field_name("alias")) or exported
                names[bound] = module, exported
            elif here.type == "identifier":
                names[_decoded(here)] = module, ""
            else:
                stack.extend(here.named_children)
    return names


def _decoded(node: Node | None) -> str:
    return ((node.text if node is not None else None) or b"").decode("utf-8", "replace")
