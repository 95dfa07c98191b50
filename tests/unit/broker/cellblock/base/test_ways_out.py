"""Text of others leaves through one function for terminals, one for pages and one for what a model reads: what goes
around them is found in the source."""

import ast
from collections import Counter
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
        "tools/upstream/auth/authority.py": 1,
        "tools/upstream/connecting.py": 1,
        "tools/upstream/definitions.py": 1,
        "tools/upstream/listing.py": 3,
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
    found: dict[str, dict[str, int]] = {name: {} for name in names}
    for path in (path for folder in below for path in sorted((ROOT / folder).rglob("*.py"))):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        used = Counter(one.id for one in called if isinstance(one, ast.Name))
        used += Counter(
            node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr != "input"
        )
        for name in names & used.keys():
            found[name][path.relative_to(ROOT).as_posix()] = used[name]
    return found


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
