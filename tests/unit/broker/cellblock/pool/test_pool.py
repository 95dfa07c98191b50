"""Hosts, leases and the queue: who is let in, no place is lost or given twice, no host is believed."""

import asyncio
from collections import Counter, deque
from unittest.mock import Mock, call

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cellblock.base.admission import Admission, Ticket
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.pool.pool import HOST_SILENCE_SECONDS, Lease
from cellblock_worker.wire import protocol
from support.memory_host import BOUND, MakeWorld, ScriptedHost, World, hold, turns
from support.waits import until, within


def acquire(world: World, events: Mock | None = None, client: str = "c") -> asyncio.Task[Lease]:
    """Asks for a place for a run whose `events` are told what becomes of its host."""
    return asyncio.ensure_future(world.pool.acquire(events or Mock(), client))


async def test_a_place_is_given_at_once_while_there_is_one(world: World) -> None:
    host = await world.host(hold, capacity=2)
    first, second = await within(acquire(world)), await within(acquire(world))
    assert first.host == second.host == host.identity
    assert len(first.token) == 16 and first.token != second.token
    counts = [world.pool.running]
    for lease in (first, first, second):
        lease.release()
        counts.append(world.pool.running)
    assert counts == [2, 1, 1, 0]


async def test_a_newcomer_cannot_take_the_place_of_who_waited(world: World) -> None:
    await world.host(hold, capacity=1)
    held = await within(acquire(world))
    waiting = acquire(world)
    await turns()
    held.release()
    # Asked in the very turn in which the place came free, before the waiting task could run.
    newcomer = acquire(world)
    lease = await within(waiting)
    assert not newcomer.done() and world.pool.running == 1
    lease.release()
    (await within(newcomer)).release()


async def test_a_host_that_comes_serves_the_queue(world: World) -> None:
    waiting = [acquire(world) for _ in range(3)]
    await turns()
    await world.host(hold, capacity=2)
    assert [task.done() for task in waiting] == [True, True, False]
    for task in waiting:
        (await within(task)).release()


async def test_a_share_is_refused_with_its_name_while_others_may_wait(make_world: MakeWorld) -> None:
    world = make_world(pool={"queue_size": 2})
    noisy = acquire(world, client="noisy")
    await turns()
    with pytest.raises(Overloaded, match=r"half of pool\.queue_size"):
        world.pool.check_room("noisy")
    world.pool.check_room("quiet")
    quiet = acquire(world, client="quiet")
    await world.host(hold)
    for task in (noisy, quiet):
        (await within(task)).release()


async def test_one_place_in_sixteen_is_reserved_by_default(world: World) -> None:
    await world.host(hold, identity=b"a", capacity=8)
    first = [await within(acquire(world)) for _ in range(8)]
    await world.host(hold, identity=b"b", capacity=8)
    first += [await within(acquire(world)) for _ in range(7)]
    last = acquire(world)
    await turns()
    assert not last.done()
    (await within(acquire(world, client="d"))).release()
    for lease in first:
        lease.release()
    (await within(last)).release()


async def test_who_waits_without_any_host_is_told_so(make_world: MakeWorld) -> None:
    world = make_world(pool={"queue_wait_ms": 20})
    # Without any host a larger capacity would not help, so that is not what is said.
    with pytest.raises(HostUnavailable, match=r"not ready within 20 ms .* still starting"):
        await within(acquire(world))


@pytest.mark.parametrize("turns_before", [0, 1, 2])
async def test_a_wait_that_is_cancelled_as_its_place_comes_gives_the_place_on(
    turns_before: int, world: World
) -> None:
    await world.host(hold, capacity=1)
    held = await within(acquire(world))
    first, second = acquire(world), acquire(world)
    await turns()
    held.release()
    await turns(turns_before)
    first.cancel()
    await asyncio.wait([first], timeout=BOUND)
    if not first.cancelled():
        first.result().release()
    (await within(second)).release()
    assert world.pool.running == 0


async def test_waits_that_are_cancelled_leave_the_queue(make_world: MakeWorld) -> None:
    world = make_world(pool={"queue_size": 1})
    for _ in range(5):
        task = acquire(world)
        await turns()
        task.cancel()
        await asyncio.wait([task], timeout=BOUND)
    assert world.pool.queued == 0


async def test_a_lost_host_is_told_to_each_of_its_runs_once_and_to_no_other(world: World) -> None:
    first = await world.host(hold, identity=b"a")
    await world.host(hold, identity=b"b")
    mine, other = Mock(), Mock()
    leases = [await within(acquire(world, mine)), await within(acquire(world, other))]
    assert [lease.host for lease in leases] == [b"a", b"b"]
    world.lose(first, "died")
    world.pool.host_gone(b"a", "again")
    world.pool.host_gone(b"never was", "x")
    assert (mine.mock_calls, other.mock_calls) == ([call.host_lost("died")], [])
    for message in (protocol.Cancel(), RUN):
        with pytest.raises(OSError, match="gone"):
            leases[0].send(message)
    for lease in leases:
        lease.release()


RUN = protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1)


async def test_a_host_that_cannot_be_reached_gets_no_run_until_it_speaks(world: World) -> None:
    """Its death is noticed by a message that cannot be sent, before it is told."""
    host = await world.host(hold, capacity=4)
    lease = await within(acquire(world))
    world.link.detach(host.identity)
    with pytest.raises(OSError, match="no such host"):
        lease.send(protocol.Cancel(), b"")
    waiting = acquire(world)
    await turns(5)
    assert not waiting.done()
    world.link.attach(host.identity, host)
    world.pool.host_says(host.identity, b"", protocol.Status(warm=1, booting=0, wanted=1, running=0), b"")
    other = await within(waiting)
    assert other.host == host.identity
    for each in (lease, other):
        each.release()


async def test_a_host_that_has_not_greeted_is_not_heard(world: World) -> None:
    host = await world.host(hold, identity=b"a")
    world.lose(host)
    host.say(protocol.Status(warm=100, booting=0, running=0, wanted=1))
    await turns()
    assert (world.pool.warm, world.pool.hosts) == (0, [])


@pytest.mark.parametrize(("warm", "wanted", "is_warm"), [(0, 4, False), (1, 4, True), (0, 0, True)])
async def test_a_host_is_warm_that_has_a_worker_or_wants_none_as_it_said_last(
    warm: int, wanted: int, world: World, *, is_warm: bool
) -> None:
    host = await world.host(hold)
    assert not world.pool.is_warm
    for said in (3, warm):
        host.say(protocol.Status(warm=said, booting=0, running=0, wanted=wanted))
    await turns()
    assert (world.pool.warm, world.pool.is_warm) == (warm, is_warm)


async def test_another_protocol_version_is_replaced_and_never_used(make_world: MakeWorld) -> None:
    world = make_world(pool={"queue_wait_ms": 20})
    host = await world.host(hold)
    world.lose(host)
    world.link.attach(host.identity, host)
    host.hello(version=protocol.PROTOCOL_VERSION + 1)
    await turns()
    assert [identity for identity, _ in world.failed] == [host.identity]
    with pytest.raises(HostUnavailable):
        await within(acquire(world))


async def test_a_host_that_breaks_the_protocol_again_is_failed_once(world: World) -> None:
    host = await world.host(hold)
    for noise in (b"\xc1", b"\x80"):
        world.link.deliver(host.identity, b"", noise)
    await turns()
    assert [identity for identity, _ in world.failed] == [host.identity]


async def test_a_silent_host_is_failed_and_one_that_speaks_is_not(world: World) -> None:
    silent = await world.host(hold, identity=b"a")
    speaking = await world.host(hold, identity=b"b")
    for host in world.pool._hosts.values():
        host.heard -= HOST_SILENCE_SECONDS + 1
    world.pool.check_silence(late=HOST_SILENCE_SECONDS)
    assert world.failed == [], "nobody has listened meanwhile"
    for host in world.pool._hosts.values():
        host.heard -= HOST_SILENCE_SECONDS
    speaking.say(protocol.Status(warm=0, booting=0, running=0, wanted=1))
    await turns()
    world.pool.check_silence()
    assert [identity for identity, _ in world.failed] == [silent.identity]


async def test_every_host_that_can_be_reached_is_told_which_keys_come(world: World) -> None:
    gone, host = await world.host(hold, identity=b"a"), await world.host(hold, identity=b"b")
    world.link.detach(gone.identity)
    world.pool.keep_keys("new")
    async with asyncio.timeout(BOUND):
        while host.keys != ["new"]:
            await turns()
    assert gone.keys == []


def shared_host(world: World, capacity: int, granted: int = 0) -> ScriptedHost:
    host = ScriptedHost(world.link, hold, identity=b"shared")
    host.hello(capacity, shared=True)
    if granted:
        host.say(protocol.Grant(places=granted))
    return host


async def test_a_shared_host_has_the_places_that_it_has_lent(world: World) -> None:
    host = shared_host(world, 8)
    first, second = acquire(world), acquire(world)
    await until(lambda: host.places == [protocol.Demand(waiting=1), protocol.Demand(waiting=2)], "demand")
    assert world.pool.capacity == 0 and not first.done()

    host.say(protocol.Grant(places=1))
    lease = await within(first)
    await until(lambda: host.places[2:] == [protocol.Granted(places=1), protocol.Demand(waiting=1)], "told")
    assert not second.done()

    lease.send(protocol.Cancel())
    host.say(protocol.Grant(places=0))
    await until(lambda: host.places[-1] == protocol.Granted(places=0), "it is repeated, whatever runs")
    lease.release()
    await turns()
    assert not second.done() and world.pool.capacity == 0

    host.say(protocol.Grant(places=1))
    (await within(second)).release()
    await until(lambda: host.places[-1] == protocol.Demand(waiting=0), "nobody waits")


@pytest.mark.parametrize("begins", [True, False])
async def test_a_place_is_not_given_back_before_a_run_that_has_it_is_sent(begins: bool, world: World) -> None:
    """Else the host lends it to another broker, and refuses the run that comes behind."""
    host = shared_host(world, 1, granted=1)
    lease = await within(acquire(world))
    host.say(protocol.Grant(places=0))
    await turns()
    assert host.places == [protocol.Granted(places=1)] and world.pool.capacity == 0
    if begins:
        lease.send(protocol.Cancel())
    else:
        lease.release()
    await until(lambda: host.places[1:] == [protocol.Granted(places=0)], "it is told behind the run")
    lease.release()


async def test_a_host_that_has_taken_its_places_back_takes_none_from_another(world: World) -> None:
    host = shared_host(world, 2, granted=2)
    leases = [await within(acquire(world)), await within(acquire(world))]
    host.say(protocol.Grant(places=0))
    await until(lambda: world.pool.capacity == 0, "taken back")
    await world.host(hold, identity=b"own", capacity=1)
    leases.append(await within(acquire(world)))
    assert [lease.host for lease in leases] == [b"shared", b"shared", b"own"]
    for lease in leases:
        lease.release()


async def test_a_host_that_is_not_shared_grants_nothing(world: World) -> None:
    (await world.host(hold, capacity=2)).say(protocol.Grant(places=9))
    await until(lambda: world.pool.hosts == [], "it is given up")


def clients_of(admission: Admission[str] | Admission[int]) -> dict[str, tuple[int, int]]:
    """Of each client that is known: how many runs wait, and how many places it holds."""
    return {name: (len(state.tickets), state.places) for name, state in admission._clients.items()}


def test_who_waits_may_not_start_a_newer_run_before() -> None:
    admission: Admission[str] = Admission(9)
    admission.join("a", "a0")
    assert not admission.may_start("a", free=1, reserve=0)
    assert admission.may_start("b", free=1, reserve=0)


def test_a_client_over_its_share_is_refused_and_others_are_not() -> None:
    admission: Admission[str] = Admission(queue_size=4)
    for number in range(2):
        admission.join("noisy", str(number))
    with pytest.raises(Overloaded, match=r"half of pool\.queue_size\); 2 runs wait in all") as refused:
        admission.join("noisy", "x")
    assert "2 runs waiting" in refused.value.message and refused.value.hint
    admission.join("quiet", "0")
    admission.join("third", "0")
    with pytest.raises(Overloaded, match=r"4 runs wait, .*queue_size\); 0 of them"):
        admission.join("fourth", "x")
    with pytest.raises(Overloaded, match=r"pool\.queue_size\); 2 of them"):
        admission.join("noisy", "x")
    assert admission.waiting == 4
    assert clients_of(admission) == {"noisy": (2, 0), "quiet": (1, 0), "third": (1, 0)}


def test_clear_gives_all_that_waits() -> None:
    admission: Admission[str] = Admission(9)
    for item in ("a0", "a1", "b0"):
        admission.join(item[0], item)
    admission.start("b")
    assert sorted(ticket.item for ticket in admission.clear()) == ["a0", "a1", "b0"]
    assert (admission.waiting, clients_of(admission)) == (0, {"b": (0, 1)})
    admission.end("b")
    assert clients_of(admission) == {}


CLIENTS = st.sampled_from(["a", "b", "c", "d"])


class Turns(RuleBasedStateMachine):
    """Random clients, cancelled waits, places that come free: the pool's use of the queue, against a plain model."""

    @initialize(places=st.integers(1, 5), reserve=st.integers(0, 2), size=st.integers(0, 16))
    def start(self, places: int, reserve: int, size: int) -> None:
        self.places, self.reserve, self.size, self.share = places, reserve, size, -(-size // 2)
        self.admission: Admission[int] = Admission(size)
        self.lines: dict[str, deque[Ticket[int]]] = {name: deque() for name in "abcd"}
        self.running: Counter[str] = Counter()
        self.served: set[int] = set()
        self.number = 0
        # Since its own last lease: who has waited all along, and got none.
        self.passed_over: dict[str, set[str]] = {name: set() for name in "abcd"}

    @property
    def free(self) -> int:
        return self.places - self.running.total()

    def waits(self) -> set[str]:
        return {name for name, line in self.lines.items() if line}

    def got_a_place(self, client: str) -> None:
        for other in self.passed_over[client] & self.waits():
            assert self.running[other] > self.running[client], (client, other)
        self.running[client] += 1
        self.passed_over[client] = self.waits() - {client}
        for others in self.passed_over.values():
            others.discard(client)

    def let_in(self) -> None:
        while self.free > 0 and (ticket := self.admission.next_up(self.free, self.reserve)) is not None:
            assert self.lines[ticket.client][0] is ticket, "not first come, first served within a client"
            assert ticket.item not in self.served, "served twice"
            fewest = min(self.running[name] for name in self.waits())
            assert self.running[ticket.client] == fewest, "another client holds fewer places"
            assert fewest == 0 or self.free > self.reserve, "the reserve was given away"
            self.admission.admit(ticket)
            self.lines[ticket.client].popleft()
            self.served.add(ticket.item)
            self.got_a_place(ticket.client)
        if self.free > 0 and self.waits():
            assert self.free <= self.reserve and all(self.running[name] for name in self.waits()), (
                "a place is idle"
            )

    @rule(client=CLIENTS)
    def come(self, client: str) -> None:
        self.number += 1
        if self.free > 0 and self.admission.may_start(client, self.free, self.reserve):
            assert not self.lines[client]
            assert not self.running[client] or self.free > self.reserve, "the reserve was given away"
            self.admission.start(client)
            self.got_a_place(client)
            return
        full = sum(map(len, self.lines.values())) >= self.size or len(self.lines[client]) >= self.share
        try:
            ticket = self.admission.join(client, self.number)
        except Overloaded as refusal:
            assert full
            assert ("queue_size" in refusal.message) and str(len(self.lines[client])) in refusal.message
            return
        assert not full
        self.lines[client].append(ticket)
        for others in self.passed_over.values():
            # It has not waited since their last lease.
            others.discard(client) if len(self.lines[client]) == 1 else None

    @precondition(lambda self: self.running.total())
    @rule(number=st.integers(0, 20))
    def end(self, number: int) -> None:
        held = sorted(self.running.elements())
        client = held[number % len(held)]
        self.running[client] -= 1
        self.admission.end(client)
        self.let_in()

    @precondition(lambda self: self.waits())
    @rule(number=st.integers(0, 20), place=st.integers(0, 20))
    def give_up(self, number: int, place: int) -> None:
        client = sorted(self.waits())[number % len(self.waits())]
        line = self.lines[client]
        ticket = line[place % len(line)]
        line.remove(ticket)
        self.admission.leave(ticket)
        if not line:
            for others in self.passed_over.values():
                others.discard(client)

    @rule(places=st.integers(1, 5))
    def hosts_come_and_go(self, places: int) -> None:
        self.places = max(places, self.running.total())
        self.let_in()

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.waiting == sum(map(len, self.lines.values())) <= self.size
        assert all(len(line) <= self.share for line in self.lines.values())
        assert clients_of(self.admission) == {
            name: (len(line), self.running[name])
            for name, line in self.lines.items()
            if line or self.running[name]
        }

    def teardown(self) -> None:
        if not hasattr(self, "admission"):
            return
        left = {ticket.item for line in self.lines.values() for ticket in line}
        self.reserve = 0
        while self.waits():
            if self.free == 0:
                self.end(0)
            self.let_in()
        assert left <= self.served, "a run was lost"


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase
