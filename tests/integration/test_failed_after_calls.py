"""A script that fails after calls that may have changed something: its diagnostic says which."""

from pathlib import Path

import pytest

from cellblock import Broker, Grantee, Question, Verdict, tool
from support.entries import plain_server, recorded, settings
from support.waits import until, within

IMPORTS = 'import { echo, fail, give, never } from "@codemode/servers/plain";\n'
CHECK = "Check what these calls did before you run the script again."


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('await give({ n: 1 }); await fail({ text: "There is no issue 9999" });', "Completed: plain.give."),
        ("await Promise.all([never({}), give({})]);", None),
        ('await fail({ text: "no" });', None),
        (
            'import { die } from "@codemode/servers/plain"; await Promise.all([die({}), give({})]);',
            "May have run: plain.die.",
        ),
    ],
    ids=["one failed", "read alone", "none before", "one denied"],
)
async def test_a_failed_script_says_which_calls_ran(tmp_path: Path, code: str, said: str | None) -> None:
    section = {"policy": {"default": {"approve": ["plain.die", *(["plain.give"] if "all" in code else [])]}}}
    ledger = tmp_path / "ledger"
    made_of = settings(
        tmp_path / "s", {"plain": plain_server("--ledger", ledger)}, typecheck="off", **section
    )

    async def one_alone(question: Question) -> Verdict:
        if question.tool_name == "die":
            return Verdict.ACCEPTED
        other = "never" if "never(" in code else "die"
        await until(lambda: recorded(ledger, tool=other), "the other call is made")
        return Verdict.DECLINED

    async with Broker(made_of) as broker:
        await within(broker.settled())
        response = await within(
            broker.run(IMPORTS + code, grantee=Grantee("embedding", approver=one_alone)), 60
        )
        assert not response.ok
        hint = response.diagnostics[0].hint or ""
        assert hint.endswith(f" {said} {CHECK}") if said else CHECK not in hint, response.diagnostics


@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        ("await give({ n: 1 }); await never({});", {"timeoutMs": 1_500}, "plain.give"),
        ("for (;;) await give({ n: 1 });", {"maxToolCalls": 1}, "plain.give"),
        ("await Promise.all([never({}), never({})]);", {"maxToolCalls": 1}, None),
    ],
    ids=["time", "calls", "read alone"],
)
async def test_a_script_that_reached_a_limit_says_which_calls_ran(
    tmp_path: Path, code: str, limits: dict[str, int], said: str | None
) -> None:
    """A larger limit alone would have them made again."""
    async with Broker(settings(tmp_path / "s", {"plain": plain_server()}, typecheck="off")) as broker:
        await within(broker.settled())
        (limit,) = (await within(broker.run(IMPORTS + code, limits=limits), 60)).diagnostics
        hint = limit.hint or ""
        assert "ask for a larger limits." in hint
        assert (f"Completed: {said}." in hint and hint.endswith(CHECK)) if said else CHECK not in hint, hint


@tool
def list_issues() -> list[int]:
    """Lists issues."""
    return [1]


@tool
def add_issue() -> int:
    """Adds an issue."""
    return 2


@pytest.mark.parametrize(("name", "is_told"), [("list_issues", False), ("add_issue", True)])
async def test_calls_of_tools_whose_names_read_are_not_told(tmp_path: Path, name: str, is_told: bool) -> None:
    made_of = settings(tmp_path / "s", {}, typecheck="off")
    code = f'import {{ {name} }} from "@codemode/servers/local"; await {name}({{}}); JSON.parse("{{");'
    async with Broker(made_of, tools=[list_issues, add_issue]) as broker:
        response = await within(broker.run(code), 60)
    hint = response.diagnostics[0].hint or ""
    assert (f"Completed: local.{name}. {CHECK}" in hint) is is_told, response.diagnostics
    assert not hint.startswith(" ")
