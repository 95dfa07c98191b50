"""Logins are listed, end, and are removed with all that their principal has; brokers that run take notice."""

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.auth import remove_all_of
from cellblock.serve.kept_outputs import Output, keeping
from cellblock.serve.service import Owner
from cellblock.tools.upstream.auth.sources import OwnSecrets
from support.brokers import begun, ready
from support.oauth_world import World, world
from support.responses import error_of, succeeded
from support.waits import until, within

pytestmark = pytest.mark.usefixtures("quick_retries")

WHOAMI = 'import { whoami } from "@codemode/servers/notes"; export default await whoami({});'

SLOW = """
import { slow } from "@codemode/servers/notes";
console.log("now");
export default await slow({ ms: 60000 }).catch((error) => error.message);
"""

EACH: dict[str, Any] = {"pins": "off", "policy": {"clients": {"team:alice": {}, "team:bob": {}}}}


async def of_team(folder: Path, place: World) -> None:
    place.entry = {"login": "each"}
    await place.log_in_for("team:alice", "alice")
    await place.log_in_for("team:bob", "bob")


async def test_all_logins_are_listed_and_one_persons_end_alone(tmp_path: Path) -> None:
    async with world(tmp_path, **EACH) as place:
        await of_team(tmp_path, place)
        await place.log_in()
        said = await place.run("auth", "list", "--json")
        found = json.loads(said.out)
        assert [(one["server"], one["principal"], one["state"]) for one in found] == [
            ("notes", "", "logged in"),
            ("notes", "team:alice", "logged in"),
            ("notes", "team:bob", "logged in"),
        ]
        for one in found:
            assert one["scope"] == "notes offline_access" and one["issuer"] == place.issuer
            assert 0 < one["since"] <= one["renewedAt"] and 0 < one["expiresInSeconds"] <= 600
        lines = await place.run("auth", "list")
        assert "team:alice to notes: logged in; since 20" in lines.out
        assert not [token for token in place.tokens() if token in said.out + lines.out]

        ended = await place.run("auth", "logout", "notes", "--principal", "team:alice")
        assert ended.out == "The login of team:alice to notes is revoked and forgotten.\n", ended
        ended = await place.run("auth", "logout", "--principal", "team:bob")
        assert ended.out == "The login of team:bob to notes is revoked and forgotten.\n", ended
        assert len(place.events("revoke")) == 2
        assert (
            "There is no login of team:bob"
            in (await place.run("auth", "logout", "--principal", "team:bob")).out
        )
        (left,) = json.loads((await place.run("auth", "list", "--json")).out)
        assert left["principal"] == ""
        for wrong, why in (
            ((), "name a server, or --principal"),
            (("--principal", ""), "'' is no client"),
            (("--principal", "bob"), "'bob' is no client"),
            (("notes", "--everything"), "--everything needs --principal"),
            (("--principal", "cli", "--everything"), "somebody else than you"),
        ):
            refused = await place.run("auth", "logout", *wrong)
            assert refused.code == 2 and why in refused.err, refused


async def test_logins_of_an_earlier_release_and_of_a_server_that_is_gone_are_listed_and_end(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as place:
        await place.log_in()
        (file,) = (place.state / "auth").glob("notes-*.json")
        kept = json.loads(file.read_text())
        del kept["server"]
        file.write_text(json.dumps({"version": 1, "record": kept}))
        (found,) = json.loads((await place.run("auth", "list", "--json")).out)
        assert (found["server"], found["principal"], found["state"]) == ("notes", "", "logged in")
        url, place.url = place.url, "http://127.0.0.1:1/mcp"
        ended = await place.run("auth", "logout", "notes")
        assert "revoked and forgotten" in ended.out and not file.exists()
        place.url = url
        await place.log_in()
        file.write_text("{")
        (found,) = json.loads((await place.run("auth", "list", "--json")).out)
        assert (found["principal"], found["state"]) == (None, "unreadable") and "damaged" in found["problem"]
        assert "could not be read" in (await place.run("auth", "logout", "notes")).out and not file.exists()


async def test_a_session_that_is_connected_ends_with_its_login(tmp_path: Path) -> None:
    async with world(tmp_path, **EACH) as place:
        await of_team(tmp_path, place)
        async with ready(place.settings) as broker:
            for one in ("team:alice", "team:bob"):
                await within(broker.run(WHOAMI, client=one))
            under_way = await begun(broker, SLOW, client="team:alice")
            await until(lambda: place.events("call")[-1]["tool"] == "slow", "the call is at the server")
            await place.run("auth", "logout", "notes", "--principal", "team:alice")
            assert "its login has ended" in succeeded(await within(under_way, 30))
            assert broker.registry.counts("notes") == (2, 1)
            told = error_of(await within(broker.run(WHOAMI, client="team:alice")), "IMPORT_FAILURE")
            assert "it needs a login of your own" in told.message
            now, known = broker.catalogs_of("team:alice")
            assert "notes" not in now.servers and "notes" not in known.servers
            assert succeeded(await within(broker.run(WHOAMI, client="team:bob"))) == "bob"
            # As somebody else: nothing of before is left.
            await place.log_in_for("team:alice", "zoe")
            assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "zoe"
            tools = str(broker.catalogs_of("team:alice")[1].servers["notes"].tools)
            assert "only_zoe" in tools and "only_alice" not in tools


async def test_another_login_in_the_place_of_one_begins_an_idle_session_anew(tmp_path: Path) -> None:
    async with world(tmp_path, **EACH) as place:
        await of_team(tmp_path, place)
        async with ready(place.settings) as broker:
            assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice"
            await place.log_in_for("team:alice", "zoe")
            await until(lambda: broker.registry.counts("notes") == (1, 0), "the session has ended")
            assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "zoe"
            tools = str(broker.catalogs_of("team:alice")[1].servers["notes"].tools)
            assert "only_zoe" in tools and "only_alice" not in tools


async def test_a_shared_session_ends_with_its_login(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        await place.log_in()
        async with ready(place.settings) as broker:
            assert succeeded(await within(broker.run(WHOAMI))) == "ada"
            await place.run("auth", "logout", "notes")
            await until(lambda: "notes" not in broker.catalog.servers, "the session has ended")
            assert (
                "cellblock auth login notes"
                in error_of(await within(broker.run(WHOAMI)), "IMPORT_FAILURE").message
            )
            await place.log_in()
            await until(lambda: "notes" in broker.catalog.servers, "it is connected again")


async def test_all_that_a_principal_has_is_removed(tmp_path: Path) -> None:
    forever = """
        import { slow } from "@codemode/servers/notes";
        await slow({ ms: 1 });
        await new Promise((done) => setTimeout(done, 1e6));
    """
    policy = {"clients": {one: {"approve": ["notes.slow"]} for one in ("team:alice", "team:bob")}}
    async with world(tmp_path, policy=policy, journal="all", audit=["calls"]) as place:
        await of_team(tmp_path, place)
        made = place.settings
        async with ready(made) as broker, keeping(broker.front_config.outputs, broker.store) as outputs:
            for one, name in (("team:alice", "alice"), ("team:bob", "bob")):
                OwnSecrets(broker.store, one).put("KEY", "k")
                await outputs.keep(Owner(one, "client"), [Output("result", "text/plain", b"secret")])
                assert succeeded(await within(broker.run(WHOAMI, client=one))) == name
                assert (await within(broker.run(forever, client=one, durable=True), 60)).parked
            response = await within(broker.run(forever, client="team:alice", durable=True), 60)
            assert (await place.run("runs", "approve", str(response.usage.run_id))).code == 0
            await until(lambda: place.events("call")[-1]["tool"] == "slow", "a run goes on by itself")
            await within(broker.learnt())

            said = await place.run("auth", "logout", "--principal", "team:alice", "--everything")
            assert said.code == 0 and "The login of team:alice to notes is revoked" in said.out, said
            assert (
                "Removed of team:alice: 1 secret, 3 kept runs, 1 kept output, and what was learnt of "
                in said.out
            )
            assert [OwnSecrets(broker.store, one).get("KEY") for one in ("team:alice", "team:bob")] == [
                None,
                "k",
            ]
            await until(lambda: not broker.running, "the run that went on has ended")
            assert [run.principal for run in await broker.parked()] == ["team:bob"]
            assert not await outputs.listed(Owner("team:alice", "client"))
            assert len(await outputs.listed(Owner("team:bob", "client"))) == 1
            assert succeeded(await within(broker.run(WHOAMI, client="team:bob"))) == "bob"
            told = error_of(await within(broker.run(WHOAMI, client="team:alice")), "IMPORT_FAILURE")
            assert "it needs a login of your own" in told.message
        assert "0 secrets" in await remove_all_of(made, "team:alice")
    lines = [json.loads(line) for line in (place.state / "audit.jsonl").read_text().splitlines()]
    assert {line["client"] for line in lines if line["event"] == "call"} == {"team:alice", "team:bob"}
