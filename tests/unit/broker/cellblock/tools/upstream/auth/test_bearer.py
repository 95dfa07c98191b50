"""What a refusal says about a login goes to whoever words it."""

from __future__ import annotations

import httpx2
import pytest

from cellblock.base.secrets.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.auth.bearer import Login


class Tokens(Login):
    """One token that is never renewed, and perhaps a wider one."""

    def __init__(self, wider: str | None = None) -> None:
        super().__init__("notes", Redactor(ServerConfig(url="https://notes.example/mcp")))
        self.said: list[str | None] = []
        self.wider = wider

    async def token(self) -> str | None:
        return "secret"

    async def renewed(
        self, used: str | None, request: httpx2.Request, refused: httpx2.Response
    ) -> str | None:
        return None

    def note_problem(self, problem: str | None) -> None:
        self.said.append(problem)

    async def widened(self, used: str, scopes: str | None) -> str | None:
        assert used == "secret"
        return self.wider

    async def lacks(self, scopes: str | None) -> None:
        self.said.append(f"lacks {scopes}")


async def asked(status: int, challenge: str) -> list[str | None]:
    """What is said after one answer."""
    tokens = Tokens()

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        return httpx2.Response(status, headers=[(b"WWW-Authenticate", challenge.encode())])

    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(answer), auth=tokens, trust_env=False
    ) as http:
        await http.get("https://notes.example/mcp")
    return tokens.said


async def test_scopes_that_are_missing_are_named() -> None:
    (said,) = await asked(403, 'Bearer error="insufficient_scope", scope="pages:read pages:write"')
    assert said == "lacks pages:read pages:write"


@pytest.mark.parametrize("scope", ["", ', scope="a\x1b[2Jb"', ', scope="évil"', f', scope="{"x" * 300}"'])
async def test_scopes_in_other_characters_are_not_quoted(scope: str) -> None:
    (said,) = await asked(403, f'Bearer error="insufficient_scope"{scope}')
    assert said == "lacks None"


async def test_another_refusal_says_nothing_of_the_login() -> None:
    assert await asked(403, "Bearer") == []
    assert await asked(200, "") == [None]


@pytest.mark.parametrize(("reaches", "said"), [(True, [None]), (False, ["lacks a"])])
async def test_a_wider_token_is_tried_once(reaches: bool, said: list[str | None]) -> None:
    tokens = Tokens("wider")
    shown: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        shown.append(request.headers["Authorization"])
        assert request.content == b"{}", "the whole request comes again"
        if reaches and shown[-1] == "Bearer wider":
            return httpx2.Response(200)
        return httpx2.Response(
            403, headers={"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="a"'}
        )

    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(transport=transport, auth=tokens, trust_env=False) as http:
        await http.post("https://notes.example/mcp", content=b"{}")
    assert shown == ["Bearer secret", "Bearer wider"]
    assert tokens.said == said
