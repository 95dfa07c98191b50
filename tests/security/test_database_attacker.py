"""Who has the password of the brokers' database, but not their key: forges no answer, takes no run, stops no broker."""

import base64
import contextlib
from pathlib import Path

import psycopg

from cellblock import CellblockError
from support.local_tools import IMPORTS, MADE, broker_on
from support.waits import within

KEY = base64.b64encode(bytes(range(32))).decode()
PRINCIPALS = ("app:alice", "app:mallory", "app:carol")
READS = IMPORTS + "globalThis.__codemode_result__ = (await read({ n: 7 })).result;"
WRITES = IMPORTS + "await read({ n: 1 }); globalThis.__codemode_result__ = (await write({ n: 2 })).result;"


async def test_without_the_brokers_key_nothing_is_forged(postgres_url: str, tmp_path: Path) -> None:
    MADE.clear()
    asks = {"approve": ["local.write"]}
    policy = {"default": asks, "clients": dict.fromkeys(PRINCIPALS, asks)}
    state = {"url": postgres_url, "key": KEY}
    async with (
        broker_on(tmp_path / "a", policy=policy, state=state) as one,
        broker_on(tmp_path / "b", policy=policy, state=state) as other,
    ):
        answered = await within(one.run(WRITES, durable=True, client="app:mallory"))
        assert (await within(other.resume(str(answered.usage.run_id), "accepted"))).result == 20
        runs = {
            client: str((await within(one.run(WRITES, durable=True, client=client))).usage.run_id)
            for client in PRINCIPALS
        }
        attack(postgres_url, runs)
        for broker in (one, other):
            assert (await within(broker.run(READS))).result == 7
        for client, run_id in (("app:mallory", runs["app:alice"]), *runs.items()):
            with contextlib.suppress(CellblockError):
                response = await within(other.resume(run_id, "accepted", client=client))
                assert response.result is None, (client, response)
    assert MADE["write 2"] == 1, MADE


def attack(url: str, runs: dict[str, str]) -> None:
    with psycopg.connect(url, autocommit=True, options="-c search_path=cellblock") as connection:
        execute = connection.execute
        # A run is given to another principal; answers are made up, or another run's, and said to be there.
        execute("UPDATE runs SET principal = 'app:mallory' WHERE id = %s", (runs["app:alice"],))
        (another,) = execute("SELECT body FROM pieces WHERE kind = 'parked' LIMIT 1").fetchall()
        for client, body in (("app:mallory", b'{"2": "accepted"}'), ("app:carol", another[0])):
            execute("INSERT INTO pieces VALUES (%s, 999, 'answers', %s)", (runs[client], body))
            execute("UPDATE runs SET is_answered = 1 WHERE id = %s", (runs[client],))
        # Rows of no kind, of other forms, a large one, and a flood of notices.
        odd = (("pins", "../../x", 9), ("tokens", "a\u202e", 9), ("", "", 0), ("pins", "p", 1 << 25))
        for kind, name, size in odd:
            execute("INSERT INTO shared VALUES (%s, %s, 1, %s)", (kind, name, b"x" * size))
        many = "FROM generate_series(1, 20000) n"
        execute(f"SELECT count(pg_notify('cellblock', repeat('x', 7000) || n)) {many}".encode())
        execute(f"SELECT count(pg_notify('cellblock', 'shared' || n % 3)) {many}".encode())
