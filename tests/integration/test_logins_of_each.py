"""A server of `"login": "each"`: everybody's own session, tools and knowledge, with a real authorization server.

Logins are listed, end, and are removed with all that their principal has; brokers that run take notice. Somebody
without a login who is not at this machine is told the page at which they log in.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from cellblock import Broker, ConfigError
from cellblock.app.assembly import library_of
from cellblock.app.cli.auth import remove_all_of
from cellblock.base.store import LocalStore
from cellblock.record.scripts.script_file import Header, format_script
from cellblock.serve.kept_outputs import Output, keeping
from cellblock.serve.service import Owner
from cellblock.tools.upstream.auth.sources import OwnSecrets
from cellblock.tools.upstream.lifecycle import State
from cellblock.tools.upstream.pins import PinStore, Reviewer
from support.brokers import begun, ready
from support.entries import http_server, settings
from support.http_daemon import TOOL
from support.oauth_world import Site, World, site, world
from support.parked_runs import response_of
from support.responses import error_of, succeeded
from support.retries import retrying
from support.waits import until, until_found, within

pytestmark = pytest.mark.usefixtures("quick_retries")

PEOPLE = {"team:alice": "alice", "team:bob": "bob", "team:eve": "eve"}

WHOAMI = 'import { whoami } from "@codemode/servers/notes"; export default await whoami({});'


@asynccontextmanager
async def team(
    folder: Path, *people: str, login: str = "each", **options: Any
) -> AsyncGenerator[tuple[World, Broker]]:
    """A broker for three principals, of whom these have logged in."""
    policy = {"clients": {one: {} for one in PEOPLE}, "reuse": dict.fromkeys(PEOPLE, "principal")}
    async with world(folder, **{"policy": policy, **options}) as place:
        place.entry = {"login": login}
        for one in people:
            await place.log_in_for(one, PEOPLE[one])
        async with ready(place.settings) as broker:
            yield place, broker


BOTH = ("team:alice", "team:bob")


async def who(broker: Broker, *people: str) -> list[str]:
    """As whom the server knows each of these principals, or the first diagnostic of the run."""
    runs = [await within(broker.run(WHOAMI, client=one)) for one in people]
    return [str(run.result if run.ok else run.diagnostics[0]) for run in runs]


@pytest.fixture(scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that has connected two of them."""
    with retrying(0.05, 0.2):
        async with team(tmp_path_factory.mktemp("both"), *BOTH) as (_, broker):
            assert await who(broker, *BOTH) == ["alice", "bob"]
            yield broker


async def untold(broker: Broker, person: str, code: str = WHOAMI, kind: str = "IMPORT_FAILURE") -> Any:
    """The diagnostic of a run that ends so."""
    return error_of(await within(broker.run(code, client=person)), kind)


async def test_who_has_no_login_is_told_how_to_log_in_and_sees_nothing_of_others(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice") as (place, broker):
        assert await who(broker, "team:alice") == ["alice"]
        diagnostic = await untold(broker, "team:eve")
        assert "it needs a login of your own" in diagnostic.message
        how = "log in (run: cellblock auth login notes) and run the script again."
        assert diagnostic.hint == f"Do without it, or {how}"
        shown = (*broker.catalogs_of("team:eve"), broker.catalog, broker.known_catalog)
        assert ["notes" in catalog.servers for catalog in shown] == [False] * 4
        assert "only_alice" in str(broker.catalogs_of("team:alice")[1].servers["notes"].tools)
        # A login that comes later is seen by the next run.
        await place.log_in_for("team:eve", "eve")
        assert await who(broker, "team:eve") == ["eve"]


async def test_lists_of_tools_are_each_persons_own(tmp_path: Path) -> None:
    look = """
        import { listTools } from "@codemode/discovery";
        export default (await listTools("notes")).map((tool) => tool.toolName);
    """
    async with team(tmp_path, *BOTH, pins="warn") as (_, broker):
        await who(broker, *BOTH)
        for one in BOTH:
            names = succeeded(await within(broker.run(look, client=one)))
            assert [name for name in names if name.startswith("only_")] == [f"only_{PEOPLE[one]}"]
        steal = 'import { only_alice } from "@codemode/servers/notes"; export default await only_alice({});'
        assert "only_alice" in (await untold(broker, "team:bob", steal)).message


async def test_a_kept_script_calls_with_the_login_of_its_caller(both: Broker) -> None:
    header = Header(description="Says who calls.", tools={"notes.whoami": ""})
    library_of(both.settings, both.store).approvals.approve(format_script("who", header, WHOAMI))
    await until(lambda: "scripts" in both.catalog.servers, "what was approved is seen")
    call = 'import { who } from "@codemode/scripts"; export default await who({});'
    assert [succeeded(await within(both.run(call, client=one))) for one in BOTH] == ["alice", "bob"]


async def test_a_tool_that_others_do_not_have_is_approved_with_the_login_of_who_has_it(
    tmp_path: Path,
) -> None:
    use = 'import { only_bob } from "@codemode/servers/notes"; export default await only_bob({});'
    async with team(tmp_path, *PEOPLE) as (place, broker):
        await who(broker, *BOTH)
        assert "only_bob" in (await untold(broker, "team:bob", use)).message
        said = await place.run("pins", "approve", "notes", "--all")
        assert "you have no login there" in said.err, said
        said = await place.run("pins", "approve", "notes", "--all", "--principal", "team:bob")
        assert "approved: only_bob" in said.out, said
        # Without a run: by looking. The tools of others are reviewed there, too.
        await until(lambda: "notes" in broker.catalogs_of("team:eve")[0].servers, "eve's tools are there")
        assert succeeded(await within(broker.run(use, client="team:bob"))) == "bob"


def pinned(place: World) -> list[str]:
    """The tools that are shown before a server is connected."""
    made = place.settings
    reviewer = Reviewer(made.cellblock.pins, PinStore(LocalStore(made.state_dir)))
    return [tool.name for tool in reviewer.pinned("notes", made.servers["notes"])]


async def test_tools_that_persons_had_are_shown_to_nobody_where_all_share_a_login_now(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice") as (place, broker):
        await within(broker.run(WHOAMI, client="team:alice"))
        said = await place.run("auth", "status", "notes")
        assert said.out.startswith("notes: no login of your own; 1 login of others (cellblock auth list)"), (
            said
        )
        assert "; if it asks for one, run: cellblock auth login notes" in said.out
        await broker.__aexit__(None, None, None)
        place.entry = {}
        # Pins are what is known of it until it is connected.
        assert pinned(place) == []
        async with ready(place.settings) as other:
            await place.log_in()
            await until(lambda: "notes" in other.catalog.servers, "it is connected")
            assert succeeded(await within(other.run(WHOAMI))) == "alice"
        # Since then they are a list that all see.
        assert "whoami" in pinned(place)


async def test_tools_that_the_entry_makes_public_are_seen_before_a_login(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", login="each-public-tools") as (place, broker):
        await within(broker.run(WHOAMI, client="team:alice"))
        script = """
            import { whoami } from "@codemode/servers/notes";
            try { await whoami({}); } catch (error) { globalThis.__codemode_result__ = `${error.name}: ${error.hint}`; }
        """
        said = [succeeded(await within(broker.run(script, client="team:eve"))) for _ in range(2)]
        assert said == ["AuthenticationError: Run: cellblock auth login notes."] * 2
        assert {event["person"] for event in place.events("call")} == {"alice"}
        # As before a login after it, too.
        await place.run("auth", "logout", "notes", "--principal", "team:alice")
        await until(lambda: broker.registry.counts("notes")[1] == 0, "her session has ended")
        said = [succeeded(await within(broker.run(script, client="team:alice"))) for _ in range(2)]
        assert said == ["AuthenticationError: Run: cellblock auth login notes."] * 2


async def test_what_one_persons_results_teach_nobody_else_sees(both: Broker) -> None:
    await within(both.learnt())
    alice, bob = (both.catalogs_of(one)[0].servers["notes"] for one in BOTH)
    assert alice.learnt_as != bob.learnt_as and alice.session != bob.session


async def test_the_change_of_one_persons_list_leaves_the_catalogs_of_others(tmp_path: Path) -> None:
    async with team(tmp_path, *BOTH) as (place, broker):
        await within(broker.run(WHOAMI, client="team:alice"))
        before = broker.catalogs_of("team:alice")[0]
        await within(broker.run(WHOAMI, client="team:bob"))
        assert broker.catalogs_of("team:alice")[0] is before
        await place.log_in_for("team:eve", "eve")
        await within(broker.run(WHOAMI, client="team:eve"))
        assert broker.catalogs_of("team:alice")[0] is before


async def test_an_idle_session_rests_and_comes_back_with_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.registry.IDLE_SECONDS", 0.2)
    async with team(tmp_path, "team:alice") as (_, broker):
        assert await who(broker, "team:alice") == ["alice"]
        await until(lambda: broker.registry.counts("notes") == (1, 0), "the session rests")
        assert "notes" in broker.catalogs_of("team:alice")[0].servers
        session = broker.registry.sessions_of("team:alice")["notes"]
        run = asyncio.create_task(broker.run(WHOAMI, client="team:alice"))
        await until(lambda: session.life.state is State.CONNECTING, "it comes back", pause=0)
        assert await who(broker, "team:alice") == ["alice"], "in its midst"
        assert succeeded(await within(run)) == "alice"


async def test_one_more_connection_than_there_may_be_ends_the_one_that_is_idle_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.registry.MAX_OF_SERVER", 2)
    async with team(tmp_path, *PEOPLE) as (_, broker):
        for one, name in PEOPLE.items():
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == name
            assert broker.registry.counts("notes")[1] <= 2
        # Who was sent to rest has lost nothing.
        assert await who(broker, "team:alice") == ["alice"]
        assert broker.registry.counts("notes")[1] <= 2


CAUGHT = """
    import { whoami } from "@codemode/servers/notes";
    export default await whoami({}).catch((error) => [error.name, error.certainty]);
"""


async def test_a_parked_run_goes_on_with_its_own_persons_login_and_with_no_other(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", login="each-public-tools") as (place, broker):
        await within(broker.run(WHOAMI, client="team:alice"))
        run_id = str((await within(broker.run(CAUGHT, client="team:eve", durable=True))).usage.run_id)
        # Somebody else's login is none of hers.
        await place.log_in_for("team:bob", "bob")
        await place.log_in_for("team:alice", "alice")
        assert await who(broker, "team:bob") == ["bob"]
        assert [one.id for one in await broker.parked("team:eve")] == [run_id]
        assert await broker.parked("team:bob") == []
        await broker.__aexit__(None, None, None)
        # In another broker, which has no session of hers yet.
        async with ready(place.settings) as other:
            await place.log_in_for("team:eve", "eve")
            assert succeeded(await response_of(other, run_id, "team:eve")) == "eve"
    assert {event["person"] for event in place.events("call")} == {"alice", "bob", "eve"}


async def test_a_server_that_is_changed_begins_everybodys_session_anew(tmp_path: Path) -> None:
    async with team(tmp_path, *BOTH) as (place, broker):
        assert await who(broker, *BOTH) == ["alice", "bob"]
        before = broker.catalogs_of("team:alice")[0].servers["notes"].session
        # Another list of tools needs no other session.
        place.entry = {"login": "each", "disabledTools": ["slow"]}
        broker.reconfigure(place.settings)
        ruled = broker.catalogs_of("team:alice")[0].servers["notes"]
        assert ruled.session == before and "slow" not in {tool.tool_name for tool in ruled.tools}
        assert await who(broker, "team:alice") == ["alice"]
        place.entry = {"login": "each", "headers": {"X-Other": "1"}}
        broker.reconfigure(place.settings)
        assert await who(broker, *BOTH) == ["alice", "bob"]
        assert broker.catalogs_of("team:alice")[0].servers["notes"].session != before
        # From one login for all to each one's own, and back.
        place.entry = {}
        broker.reconfigure(place.settings)
        assert await untold(broker, "team:bob")
        place.entry = {"login": "each"}
        broker.reconfigure(place.settings)
        assert await who(broker, "team:bob") == ["bob"]


async def test_a_server_that_is_restarted_is_connected_anew_for_everybody(both: Broker) -> None:
    assert both.restart_server("notes")
    assert await who(both, *BOTH) == ["alice", "bob"]


async def test_headers_hold_each_persons_own_secret_as_it_is_now(tmp_path: Path) -> None:
    headers = {"login": "each", "headers": {"X-Key": "key ${secret:NOTES}"}}
    show = (
        'import { headers } from "@codemode/servers/keyed"; export default await headers({ name: "x-key" });'
    )
    policy: dict[str, Any] = {"clients": {one: {} for one in PEOPLE}}
    with http_server("--tools", "1") as url:
        made = settings(tmp_path / "state", {"keyed": {"url": url, **headers}}, policy=policy)
        store = LocalStore(made.state_dir)
        async with ready(made) as broker:
            diagnostic = await untold(broker, "team:alice", show)
            assert "ask whoever runs Cellblock to set your own NOTES" in diagnostic.hint
            for one, key in (("team:alice", "alices-secret"), ("team:bob", "bobs-secret")):
                OwnSecrets(store, one).put("NOTES", key)
                assert succeeded(await within(broker.run(show, client=one))) == f"key {key}"
            OwnSecrets(store, "team:alice").put("NOTES", "alices-other")
            assert succeeded(await within(broker.run(show, client="team:alice"))) == "key alices-other"
            OwnSecrets(store, "team:alice").remove("NOTES")
            assert "set your own NOTES" in (await untold(broker, "team:alice", show)).hint
            await until(lambda: broker.registry.counts("keyed") == (1, 1), "her session has ended")
            assert succeeded(await within(broker.run(show, client="team:bob"))) == "key bobs-secret"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"command": "true", "login": "each"}, "`login` is for servers with a `url`"),
        ({"url": "https://a.example/mcp", "headers": {"X-Key": "${secret:NOTES}"}}, "secret:NAME"),
        ({"url": "https://a.example/${secret:NOTES}", "login": "each"}, "secret:NAME"),
        (
            {"url": "https://a.example/mcp", "login": "each", "headers": {"X-Key": "${secret:no name}"}},
            "secret:NAME",
        ),
        ({"command": "true", "args": ["${secret:NOTES}"]}, "secret:NAME"),
    ],
)
async def test_logins_are_of_servers_with_a_url_and_secrets_stand_in_headers_of_everybodys_own_alone(
    tmp_path: Path, entry: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(tmp_path, {"keyed": entry})


async def test_who_finds_all_connections_at_work_is_told_so_and_connected_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.registry.MAX_OF_SERVER", 1)
    slow = 'import { slow } from "@codemode/servers/notes"; export default await slow({ ms: 4000 });'
    async with team(tmp_path, *PEOPLE) as (place, broker):
        assert await who(broker, "team:eve") == ["eve"]
        at_work = asyncio.create_task(broker.run(slow, client="team:alice"))
        await until(lambda: len(place.events("call")) == 2, "alice's call is there")
        # One who comes first, and one whose tools are known.
        assert "at work for others" in broker.catalogs_of("team:bob")[0].unavailable["notes"]
        diagnostic = await untold(broker, "team:bob")
        assert "at work for others" in diagnostic.message and "login" not in diagnostic.message
        diagnostic = await untold(broker, "team:eve", kind="UNCAUGHT_EXCEPTION")
        assert "at work for others" in diagnostic.message
        assert broker.registry.counts("notes") == (3, 1)
        assert succeeded(await within(at_work)) == "alice"
        assert await who(broker, "team:bob", "team:eve") == ["bob", "eve"]
        assert broker.registry.counts("notes") == (3, 1)


async def test_a_login_that_comes_right_after_a_refusal_is_not_taken_for_the_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.AT_ONCE_SECONDS", 10.0)
    async with team(tmp_path, "team:alice", login="each-public-tools") as (place, broker):
        assert await who(broker, "team:alice") == ["alice"]
        await untold(broker, "team:eve", kind="UNCAUGHT_EXCEPTION")
        await place.log_in_for("team:eve", "eve")
        response = await within(broker.run(WHOAMI, client="team:eve", durable=True))
        done = (
            await response_of(broker, str(response.usage.run_id), "team:eve") if response.parked else response
        )
        assert succeeded(done) == "eve"


async def test_public_tools_that_nobody_has_listed_yet_come_with_the_first_login(tmp_path: Path) -> None:
    async with team(tmp_path, login="each-public-tools") as (place, broker):
        for one in ("team:eve", "team:bob"):
            await untold(broker, one)
        known = broker.catalogs_of("team:bob")[1]
        assert "notes" not in known.servers and broker.catalogs_of("team:bob")[1] is known
        await place.log_in_for("team:eve", "eve")
        session = broker.registry.sessions_of("team:eve")["notes"]
        session.wake()
        await until(lambda: session.life.state is State.CONNECTING, "it connects", pause=0)
        assert await who(broker, "team:eve") == ["eve"]
        # Who has looked before sees them now, too.
        assert "notes" in broker.catalogs_of("team:bob")[1].servers


async def test_a_tool_that_only_one_has_is_not_gone_when_another_lists(both: Broker) -> None:
    (file,) = (both.settings.state_dir / "pins").glob("notes*.json")
    pins = json.loads(file.read_text(encoding="utf-8"))
    assert "only_alice" in pins["tools"] and pins["gone"] == []


async def test_strangers_do_not_end_the_sessions_of_who_has_a_login(
    both: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.registry.MAX_PERSONS", 3)
    before = both.catalogs_of("team:alice")[0].servers["notes"].session
    assert not any("notes" in both.catalogs_of(f"oauth:{number}")[0].servers for number in range(20))
    assert both.catalogs_of("team:alice")[0].servers["notes"].session == before


async def test_the_clients_own_credentials_are_everybodys(tmp_path: Path) -> None:
    robot = {
        "grant": "client_credentials",
        "client_id": "robot",
        "client_secret": "secret",
        "issuer": "ISSUER",
    }
    async with world(tmp_path, "--client", "robot:secret", auth={"servers": {"notes": robot}}) as place:
        place.entry = {"login": "each"}
        async with ready(place.settings) as broker:
            assert succeeded(await within(broker.run(WHOAMI))) == "ada"


async def test_a_broker_that_is_closed_connects_nobody(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice") as (_, broker):
        await broker.registry.close()
        broker.registry.catalogs_of("team:alice")
        assert broker.registry.counts("notes") == (0, 0)


SLOW = """
import { slow } from "@codemode/servers/notes";
console.log("now");
export default await slow({ ms: 60000 }).catch((error) => error.message);
"""


async def test_all_logins_are_listed_and_one_persons_end_alone(tmp_path: Path) -> None:
    async with team(tmp_path, *BOTH, pins="off") as (place, _):
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

        for words in (("notes", "--principal", "team:alice"), ("--principal", "team:bob")):
            ended = await place.run("auth", "logout", *words)
            assert ended.out == f"The login of {words[-1]} to notes is revoked and forgotten.\n", ended
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
        assert (
            "revoked and forgotten" in (await place.run("auth", "logout", "notes")).out and not file.exists()
        )
        place.url = url
        await place.log_in()
        file.write_text("{")
        (found,) = json.loads((await place.run("auth", "list", "--json")).out)
        assert (found["principal"], found["state"]) == (None, "unreadable") and "damaged" in found["problem"]
        assert "could not be read" in (await place.run("auth", "logout", "notes")).out and not file.exists()


async def test_a_session_that_is_connected_ends_with_its_login(tmp_path: Path) -> None:
    async with team(tmp_path, *BOTH, pins="off") as (place, broker):
        await who(broker, *BOTH)
        under_way = await begun(broker, SLOW, client="team:alice")
        await until(lambda: place.events("call")[-1]["tool"] == "slow", "the call is at the server")
        await place.run("auth", "logout", "notes", "--principal", "team:alice")
        assert "its login has ended" in succeeded(await within(under_way, 30))
        assert broker.registry.counts("notes") == (2, 1)
        assert "it needs a login of your own" in (await untold(broker, "team:alice")).message
        now, known = broker.catalogs_of("team:alice")
        assert "notes" not in now.servers and "notes" not in known.servers
        assert await who(broker, "team:bob") == ["bob"]
        # As somebody else: nothing of before is left.
        await place.log_in_for("team:alice", "zoe")
        assert await who(broker, "team:alice") == ["zoe"]
        tools = str(broker.catalogs_of("team:alice")[1].servers["notes"].tools)
        assert "only_zoe" in tools and "only_alice" not in tools


async def test_another_login_in_the_place_of_one_begins_an_idle_session_anew(tmp_path: Path) -> None:
    async with team(tmp_path, *BOTH, pins="off") as (place, broker):
        assert await who(broker, "team:alice") == ["alice"]
        await place.log_in_for("team:alice", "zoe")
        await until(lambda: broker.registry.counts("notes") == (1, 0), "the session has ended")
        assert await who(broker, "team:alice") == ["zoe"]
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
    policy = {"clients": {one: {"approve": ["notes.slow"]} for one in BOTH}}
    async with team(tmp_path, *BOTH, policy=policy, journal="all", audit=["calls"]) as (place, broker):
        async with keeping(broker.settings.cellblock.frontend.outputs, broker.store) as outputs:
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
            assert [OwnSecrets(broker.store, one).get("KEY") for one in BOTH] == [
                None,
                "k",
            ]
            await until(lambda: not broker.running, "the run that went on has ended")
            assert [run.principal for run in await broker.parked()] == ["team:bob"]
            assert not await outputs.listed(Owner("team:alice", "client"))
            assert len(await outputs.listed(Owner("team:bob", "client"))) == 1
            assert await who(broker, "team:bob") == ["bob"]
            assert "it needs a login of your own" in (await untold(broker, "team:alice")).message
        assert "0 secrets" in await remove_all_of(place.settings, "team:alice")
    lines = [json.loads(line) for line in (place.state / "audit.jsonl").read_text().splitlines()]
    assert {line["client"] for line in lines if line["event"] == "call"} == {"team:alice", "team:bob"}


async def ran(made: Site, token: str, code: str = WHOAMI) -> dict[str, Any]:
    async with replace(made.daemon, token=token).client() as client:
        result = await within(client.call_tool(TOOL, {"code": code}))
    return result.structured_content


async def until_used(made: Site, token: str) -> None:
    """Waits until a login is used that has come."""

    async def is_used() -> bool:
        return (await ran(made, token)).get("result") == "ada"

    await until_found(is_used, "the new login is used")


async def logged_in(made: Site, token: str) -> None:
    browser = made.browser()
    done = await browser.followed(await browser.post(made.page, {"token": token}))
    assert "is logged in" in done.text, done.text


async def test_each_is_told_the_way_that_is_theirs(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        eve, mine = await made.token("eve"), made.daemon.token
        (told,) = (await ran(made, eve))["diagnostics"]
        assert f"log in at {made.page}" in told["hint"] and "cellblock auth" not in told["hint"], told
        (told,) = (await ran(made, mine))["diagnostics"]
        assert "run: cellblock auth login notes" in told["hint"], told
        await logged_in(made, eve)
        await until_used(made, eve)
        (told,) = (await ran(made, mine))["diagnostics"]
        assert "cellblock auth login notes" in told["hint"], "it is not his"


async def test_a_client_that_can_leads_its_user_to_the_page_and_the_call_waits_for_the_login(
    tmp_path: Path,
) -> None:
    asked: list[types.ElicitRequestParams] = []
    visits: list[asyncio.Task[None]] = []

    async with site(tmp_path, login="each-public-tools") as made:
        eve, mine = await made.token("eve"), made.daemon.token
        await logged_in(made, mine)
        # Its tools are known then.
        await until_used(made, mine)

        async def opens(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
            # Its user agrees to open the page, and has not logged in yet.
            asked.append(params)
            visits.append(asyncio.create_task(logged_in(made, eve)))
            return types.ElicitResult(action="accept")

        for mode in ("legacy", "auto"):
            headers = {"Authorization": f"Bearer {eve}"}
            http = httpx2.AsyncClient(headers=headers, timeout=120, trust_env=False, verify=False)
            transport = streamable_http_client(made.daemon.url, http_client=http)
            async with http, Client(transport, mode=mode, elicitation_callback=opens) as client:
                run = await within(client.call_tool(TOOL, {"code": WHOAMI, "durable": True}))
            assert run.structured_content["result"] == "ada", (mode, asked, run.structured_content)
            await asyncio.gather(*visits)
            (params, *more) = asked
            # A client that is away meanwhile comes back, and is asked again until the login is there.
            assert mode == "auto" or not more
            assert isinstance(params, types.ElicitRequestURLParams) and params.url == made.page
            assert "needs a login" in params.message
            asked.clear()
            visits.clear()
            await made.place.end_logins()
            await logged_in(made, mine)
