"""Text of others leaves through one function for terminals, one for pages and one for what a model reads: what goes
around them is found in the source."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock

ROOT = Path(cellblock.__file__).parent

# To a terminal all goes through `for_screen`, which the streams of commands call, but for these: what they draw or ask
# has been through `plain` or `spelled_out`.
AROUND_SCREEN = {
    "draw": {"app/cli/run.py": 1},
    "input": {"app/cli/streams.py": 1},
    "getpass": {"app/cli/auth.py": 1},
    "__stdout__": {"app/cli/streams.py": 1},
    "__stderr__": {"app/cli/streams.py": 1},
}

# To a page all JSON goes through `json_page`; these have no text of others, or make it visible themselves.
AROUND_PAGE = {
    "Response": {"serve/http/login_pages.py": 2, "serve/http/pages.py": 3, "serve/http/refusal.py": 3},
    "PlainTextResponse": {"serve/http/pages.py": 3},
    "JSONResponse": {"serve/http/pages.py": 1},
    "dumps": {"serve/http/pages.py": 1, "serve/http/refusal.py": 1, "serve/http/waiting_runs.py": 1},
}

# Where text of servers and scripts becomes fit for a model, or a page; the words of errors and logs do so, too.
FOR_MODELS = {
    "spelled_out": {"serve/http/waiting_runs.py": 8, "serve/mcp/approvals.py": 2},
    "visible": {
        "record/scripts/saving.py": 1,
        "record/scripts/script_file.py": 1,
        "run/results.py": 1,
        "run/policy/grants.py": 1,
        "serve/http/guards.py": 1,
        "serve/http/login_pages.py": 1,
        "serve/http/pages.py": 1,
        "serve/mcp/live.py": 1,
        "serve/mcp/skills.py": 1,
        "tools/upstream/auth/exchange.py": 1,
        "tools/upstream/definitions.py": 1,
        "tools/upstream/listing.py": 1,
        "tools/upstream/resources.py": 1,
        "tools/upstream/server_log.py": 1,
        "tools/upstream/session.py": 2,
        "tools/upstream/wire/messages.py": 1,
        "types/learning/overlay.py": 1,
        "types/typescript/text.py": 1,
    },
}


def uses(names: set[str], *below: str) -> dict[str, dict[str, int]]:
    """How often each file calls or reads something of these names."""
    found = {name: Counter[str]() for name in names}
    for file, node in nodes(*below):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in names:
            found[name][file] += 1
    return {name: dict(count) for name, count in found.items()}


def nodes(*below: str) -> Iterator[tuple[str, ast.Name | ast.Attribute]]:
    """Names and members of what is called, and members that are read."""
    for folder in below:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield path.relative_to(ROOT).as_posix(), node.func
                elif isinstance(node, ast.Attribute) and node.attr != "input":
                    yield path.relative_to(ROOT).as_posix(), node


@pytest.mark.parametrize(
    ("allowed", "below"),
    [
        (AROUND_SCREEN, ["app"]),
        (AROUND_PAGE, ["serve/http"]),
        (FOR_MODELS, ["tools", "types", "run", "record", "script", "serve"]),
    ],
)
def test_only_known_places_go_another_way(allowed: dict[str, dict[str, int]], below: list[str]) -> None:
    assert uses(set(allowed), *below) == allowed


def test_no_command_writes_to_a_descriptor_of_its_own() -> None:
    for path in sorted((ROOT / "app").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not any(way in text for way in ("/dev/tty", "os.write(", "stdout.buffer", "stderr.buffer")), (
            path
        )
