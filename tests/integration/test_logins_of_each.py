"""A server of `"login": "each"`: everybody's own session, tools and knowledge, with a real authorization server."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.app.assembly import library_of
from cellblock.base.errors import ConfigError
from cellblock.base.store import LocalStore
from cellblock.record.scripts.script_file import Header, format_script
from cellblock.tools.upstream import registry
from cellblock.tools.upstream.auth.sources import OwnSecrets
from cellblock.tools.upstream.lifecycle import State
from cellblock.tools.upstream.pins import PinStore, Reviewer
from support.brokers import ready
from support.entries import http_server, settings
from support.oauth_world import World, world
from support.parked_runs import response_of
from support.responses import error_of, succeeded
from support.waits import until, within

pytestmark = pytest.mark.usefixtures("quick_retries")

PEOPLE = {"team:alice": "alice", "team:bob": "bob", "team:eve": "eve"}

WHOAMI = 'import { whoami } from "@codemode/servers/notes"; export default await whoami({});'


@asynccontextmanager
async def team(
    folder: Path, *people: str, login: str = "each", **options: Any
) -> AsyncGenerator[tuple[World, Broker]]:
    """A broker for three principals, of whom these have logged in."""
    policy: dict[str, Any] = {
        "clients": {one: {} for one in PEOPLE},
        "reuse": dict.fromkeys(PEOPLE, "principal"),
    }
    async with world(folder, policy=policy, **options) as place:
        place.entry = {"login": login}
        for one in people:
            await place.log_in_for(one, PEOPLE[one])
        async with ready(place.settings) as broker:
            yield place, broker


async def test_who_has_no_login_is_told_how_to_log_in_and_sees_nothing_of_others(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice") as (place, broker):
        assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice"
        diagnostic = error_of(await within(broker.run(WHOAMI, client="team:eve")), "IMPORT_FAILURE")
        assert "it needs a login of your own" in diagnostic.message
        how = "log in (run: cellblock auth login notes) and run the script again."
        assert diagnostic.hint == f"Do without it, or {how}"
        now, known = broker.catalogs_of("team:eve")
        assert "notes" not in now.servers and "notes" not in known.servers
        assert "notes" not in broker.catalog.servers and "notes" not in broker.known_catalog.servers
        assert "only_alice" in str(broker.catalogs_of("team:alice")[1].servers["notes"].tools)
        # A login that comes later is seen by the next run.
        await place.log_in_for("team:eve", "eve")
        assert succeeded(await within(broker.run(WHOAMI, client="team:eve"))) == "eve"


async def test_lists_of_tools_are_each_persons_own(tmp_path: Path) -> None:
    look = """
        import { listTools } from "@codemode/discovery";
        export default (await listTools("notes")).map((tool) => tool.toolName);
    """
    async with team(tmp_path, "team:alice", "team:bob", pins="warn") as (_, broker):
        for one in ("team:alice", "team:bob"):
            await within(broker.run(WHOAMI, client=one))
        for one in ("team:alice", "team:bob"):
            names = succeeded(await within(broker.run(look, client=one)))
            assert [name for name in names if name.startswith("only_")] == [f"only_{PEOPLE[one]}"]
        steal = 'import { only_alice } from "@codemode/servers/notes"; export default await only_alice({});'
        assert (
            "only_alice"
            in error_of(await within(broker.run(steal, client="team:bob")), "IMPORT_FAILURE").message
        )


async def test_a_kept_script_calls_with_the_login_of_its_caller(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", "team:bob") as (_, broker):
        header = Header(description="Says who calls.", tools={"notes.whoami": ""})
        library_of(broker.settings, broker.store).approvals.approve(format_script("who", header, WHOAMI))
        await until(lambda: "scripts" in broker.catalog.servers, "what was approved is seen")
        call = 'import { who } from "@codemode/scripts"; export default await who({});'
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(call, client=one))) == PEOPLE[one]


async def test_a_tool_that_others_do_not_have_is_approved_with_the_login_of_who_has_it(
    tmp_path: Path,
) -> None:
    use = 'import { only_bob } from "@codemode/servers/notes"; export default await only_bob({});'
    async with team(tmp_path, "team:alice", "team:bob") as (place, broker):
        for one in ("team:alice", "team:bob"):
            await within(broker.run(WHOAMI, client=one))
        assert (
            "only_bob" in error_of(await within(broker.run(use, client="team:bob")), "IMPORT_FAILURE").message
        )
        said = await place.run("pins", "approve", "notes", "--all")
        assert "you have no login there" in said.err, said
        said = await place.run("pins", "approve", "notes", "--all", "--principal", "team:bob")
        assert "approved: only_bob" in said.out, said
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
        for _ in range(2):
            said = succeeded(await within(broker.run(script, client="team:eve")))
            assert said == "AuthenticationError: Run: cellblock auth login notes."
        assert {event["person"] for event in place.events("call")} == {"alice"}
        # As before a login after it, too.
        await place.run("auth", "logout", "notes", "--principal", "team:alice")
        await until(lambda: broker.registry.counts("notes")[1] == 0, "her session has ended")
        for _ in range(2):
            said = succeeded(await within(broker.run(script, client="team:alice")))
            assert said == "AuthenticationError: Run: cellblock auth login notes."


async def test_what_one_persons_results_teach_nobody_else_sees(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", "team:bob") as (_, broker):
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]
        await within(broker.learnt())
        entries = [broker.catalogs_of(one)[0].servers["notes"] for one in ("team:alice", "team:bob")]
        assert len({entry.learnt_as for entry in entries}) == 2
        assert len({entry.session for entry in entries}) == 2


async def test_the_change_of_one_persons_list_leaves_the_catalogs_of_others(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", "team:bob") as (place, broker):
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
        assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice"
        await until(lambda: broker.registry.counts("notes") == (1, 0), "the session rests")
        assert "notes" in broker.catalogs_of("team:alice")[0].servers
        session = broker.registry.sessions_of("team:alice")["notes"]
        run = asyncio.create_task(broker.run(WHOAMI, client="team:alice"))
        await until(lambda: session.state is State.CONNECTING, "it comes back", pause=0)
        assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice", "in its midst"
        assert succeeded(await within(run)) == "alice"


async def test_one_more_connection_than_there_may_be_ends_the_one_that_is_idle_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_OF_SERVER", 2)
    async with team(tmp_path, *PEOPLE) as (_, broker):
        for one, name in PEOPLE.items():
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == name
            assert broker.registry.counts("notes")[1] <= 2
        # Who was sent to rest has lost nothing.
        assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice"
        assert broker.registry.counts("notes")[1] <= 2


async def test_a_server_that_is_started_cannot_be_each_persons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`login` is for servers with a `url`"):
        settings(tmp_path, {"files": {"command": "true", "login": "each"}})


CAUGHT = """
    import { whoami } from "@codemode/servers/notes";
    export default await whoami({}).catch((error) => [error.name, error.certainty]);
"""


async def test_a_parked_run_goes_on_with_its_own_persons_login_and_with_no_other(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", login="each-public-tools") as (place, broker):
        await within(broker.run(WHOAMI, client="team:alice"))
        response = await within(broker.run(CAUGHT, client="team:eve", durable=True))
        assert response.parked and response.usage.run_id is not None, response
        run_id = response.usage.run_id
        # Somebody else's login is none of hers.
        await place.log_in_for("team:bob", "bob")
        await place.log_in_for("team:alice", "alice")
        assert succeeded(await within(broker.run(WHOAMI, client="team:bob"))) == "bob"
        assert [one.id for one in await broker.parked("team:eve")] == [run_id]
        assert await broker.parked("team:bob") == []
        await broker.__aexit__(None, None, None)
        # In another broker, which has no session of hers yet.
        async with ready(place.settings) as other:
            await place.log_in_for("team:eve", "eve")
            assert succeeded(await response_of(other, run_id, "team:eve")) == "eve"
    assert {event["person"] for event in place.events("call")} == {"alice", "bob", "eve"}


async def test_a_server_that_is_changed_begins_everybodys_session_anew(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", "team:bob") as (place, broker):
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]
        before = broker.catalogs_of("team:alice")[0].servers["notes"].session
        # Another list of tools needs no other session.
        place.entry = {"login": "each", "disabledTools": ["slow"]}
        broker.reconfigure(place.settings)
        ruled = broker.catalogs_of("team:alice")[0].servers["notes"]
        assert ruled.session == before and "slow" not in {tool.tool_name for tool in ruled.tools}
        assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice"
        place.entry = {"login": "each", "headers": {"X-Other": "1"}}
        broker.reconfigure(place.settings)
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]
        assert broker.catalogs_of("team:alice")[0].servers["notes"].session != before
        # From one login for all to each one's own, and back.
        place.entry = {}
        broker.reconfigure(place.settings)
        assert error_of(await within(broker.run(WHOAMI, client="team:bob")), "IMPORT_FAILURE")
        place.entry = {"login": "each"}
        broker.reconfigure(place.settings)
        assert succeeded(await within(broker.run(WHOAMI, client="team:bob"))) == "bob"


async def test_a_server_that_is_restarted_is_connected_anew_for_everybody(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", "team:bob") as (_, broker):
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]
        assert broker.restart_server("notes")
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]


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
            diagnostic = error_of(await within(broker.run(show, client="team:alice")), "IMPORT_FAILURE")
            assert "ask whoever runs Cellblock to set your own NOTES" in diagnostic.hint
            for one, key in (("team:alice", "alices-secret"), ("team:bob", "bobs-secret")):
                OwnSecrets(store, one).put("NOTES", key)
                assert succeeded(await within(broker.run(show, client=one))) == f"key {key}"
            OwnSecrets(store, "team:alice").put("NOTES", "alices-other")
            assert succeeded(await within(broker.run(show, client="team:alice"))) == "key alices-other"
            OwnSecrets(store, "team:alice").remove("NOTES")
            assert (
                "set your own NOTES"
                in error_of(await within(broker.run(show, client="team:alice")), "IMPORT_FAILURE").hint
            )
            await until(lambda: broker.registry.counts("keyed") == (1, 1), "her session has ended")
            assert succeeded(await within(broker.run(show, client="team:bob"))) == "key bobs-secret"


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "https://a.example/mcp", "headers": {"X-Key": "${secret:NOTES}"}},
        {"url": "https://a.example/${secret:NOTES}", "login": "each"},
        {"url": "https://a.example/mcp", "login": "each", "headers": {"X-Key": "${secret:no name}"}},
        {"command": "true", "args": ["${secret:NOTES}"]},
    ],
)
async def test_a_principals_secret_stands_in_headers_of_everybodys_own_servers_alone(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="secret:NAME"):
        settings(tmp_path, {"keyed": entry})


async def test_who_finds_all_connections_at_work_is_told_so_and_connected_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_OF_SERVER", 1)
    slow = 'import { slow } from "@codemode/servers/notes"; export default await slow({ ms: 4000 });'
    async with team(tmp_path, *PEOPLE) as (place, broker):
        assert succeeded(await within(broker.run(WHOAMI, client="team:eve"))) == "eve"
        at_work = asyncio.create_task(broker.run(slow, client="team:alice"))
        await until(lambda: len(place.events("call")) == 2, "alice's call is there")
        # One who comes first, and one whose tools are known.
        assert "at work for others" in broker.catalogs_of("team:bob")[0].unavailable["notes"]
        diagnostic = error_of(await within(broker.run(WHOAMI, client="team:bob")), "IMPORT_FAILURE")
        assert "at work for others" in diagnostic.message and "login" not in diagnostic.message
        diagnostic = error_of(await within(broker.run(WHOAMI, client="team:eve")), "UNCAUGHT_EXCEPTION")
        assert "at work for others" in diagnostic.message
        assert broker.registry.counts("notes") == (3, 1)
        assert succeeded(await within(at_work)) == "alice"
        for one in ("team:bob", "team:eve"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]
        assert broker.registry.counts("notes") == (3, 1)


async def test_a_login_that_comes_right_after_a_refusal_is_not_taken_for_the_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.AT_ONCE_SECONDS", 10.0)
    async with team(tmp_path, "team:alice", login="each-public-tools") as (place, broker):
        assert succeeded(await within(broker.run(WHOAMI, client="team:alice"))) == "alice"
        error_of(await within(broker.run(WHOAMI, client="team:eve")), "UNCAUGHT_EXCEPTION")
        await place.log_in_for("team:eve", "eve")
        response = await within(broker.run(WHOAMI, client="team:eve", durable=True))
        run_id = str(response.usage.run_id)
        done = await response_of(broker, run_id, "team:eve") if response.parked else response
        assert succeeded(done) == "eve"


async def test_public_tools_that_nobody_has_listed_yet_come_with_the_first_login(tmp_path: Path) -> None:
    async with team(tmp_path, login="each-public-tools") as (place, broker):
        for one in ("team:eve", "team:bob"):
            error_of(await within(broker.run(WHOAMI, client=one)), "IMPORT_FAILURE")
        known = broker.catalogs_of("team:bob")[1]
        assert "notes" not in known.servers and broker.catalogs_of("team:bob")[1] is known
        await place.log_in_for("team:eve", "eve")
        session = broker.registry.sessions_of("team:eve")["notes"]
        session.wake()
        await until(lambda: session.state is State.CONNECTING, "it connects", pause=0)
        assert succeeded(await within(broker.run(WHOAMI, client="team:eve"))) == "eve"
        # Who has looked before sees them now, too.
        assert "notes" in broker.catalogs_of("team:bob")[1].servers


async def test_an_approval_is_seen_though_the_tools_of_others_were_reviewed_since(tmp_path: Path) -> None:
    use = 'import { only_bob } from "@codemode/servers/notes"; export default await only_bob({});'
    async with team(tmp_path, *PEOPLE) as (place, broker):
        for one in ("team:alice", "team:bob"):
            await within(broker.run(WHOAMI, client=one))
        error_of(await within(broker.run(use, client="team:bob")), "IMPORT_FAILURE")
        said = await place.run("pins", "approve", "notes", "--all", "--principal", "team:bob")
        assert "approved: only_bob" in said.out, said
        # Without a run: by looking.
        await until(lambda: "notes" in broker.catalogs_of("team:eve")[0].servers, "eve's tools are there")
        assert succeeded(await within(broker.run(use, client="team:bob"))) == "bob"


async def test_a_tool_that_only_one_has_is_not_gone_when_another_lists(tmp_path: Path) -> None:
    async with team(tmp_path, "team:alice", "team:bob") as (place, broker):
        for one in ("team:alice", "team:bob"):
            await within(broker.run(WHOAMI, client=one))
        (file,) = (place.state / "pins").glob("*.json")
        pins = json.loads(file.read_text(encoding="utf-8"))
        assert "only_alice" in pins["tools"] and pins["gone"] == []


async def test_strangers_do_not_end_the_sessions_of_who_has_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_PERSONS", 3)
    async with team(tmp_path, "team:alice", "team:bob") as (_, broker):
        for one in ("team:alice", "team:bob"):
            assert succeeded(await within(broker.run(WHOAMI, client=one))) == PEOPLE[one]
        before = broker.catalogs_of("team:alice")[0].servers["notes"].session
        for number in range(20):
            assert "notes" not in broker.catalogs_of(f"oauth:{number}")[0].servers
        assert broker.catalogs_of("team:alice")[0].servers["notes"].session == before


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
