"""`cellblock serve --http` with TLS and tokens of an authorization server."""

import json
import ssl
from pathlib import Path

from support.certificates import certificate
from support.commands import cellblock
from support.http_daemon import INITIALIZE, MCP_HEADERS, TOOL, daemon
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.waits import within


async def test_a_team_shares_a_daemon_over_tls(tmp_path: Path, issuer: Issuer) -> None:
    cert, key = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=cert)
    oauth = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.jwks_url}
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with daemon(tmp_path, *options, http={"oauth": oauth}, tls=trust, token=issuer.token()) as running:
        assert not (tmp_path / "s" / "token").exists(), "the token file is not used"
        # Whoever may run scripts would see the runs of all: a team has a dashboard only when it says so.
        assert (await running.ask("GET", "/dashboard/state", headers=running.auth)).status == 404
        assert (await running.ask("GET", "/metrics", headers=running.auth)).status == 200
        for mode in ("auto", "legacy"):
            async with running.client(mode) as client:
                code = {"code": "globalThis.__codemode_result__ = 1;"}
                result = await within(client.call_tool(TOOL, code))
                assert result.structured_content["result"] == 1

        refused = await running.ask(headers=MCP_HEADERS)
        assert refused.status == 401 and b"cellblock connect" in refused.body
        where = "/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer resource_metadata="https://cellblock.example{where}"'
        assert refused.headers["www-authenticate"] == challenge
        metadata = json.loads((await running.ask("GET", where)).body)
        assert metadata["authorization_servers"] == [ISSUER]
        assert metadata["resource"] == AUDIENCE

        # And `connect` trusts the certificate that it is told to trust, and no other.
        token_file = tmp_path / "mine"
        token_file.touch(0o600)
        token_file.write_text(issuer.token())
        for trusted, code in (([], 3), (["--tls-ca", str(cert)], 0)):
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            lines = f"{json.dumps(INITIALIZE)}\n{json.dumps(listing)}\n".encode()
            words = ("connect", "--url", running.url, "--token-file", token_file, *trusted)
            done = await cellblock(*words, given=lines)
            assert done.code == code, done.err
            answers = [json.loads(line) for line in done.out.splitlines()]
            assert [answer["id"] for answer in answers if "result" in answer] == ([] if code else [1, 2])
