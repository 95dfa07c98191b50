"""Hosts, leases and the queue: first come first served, no place lost or given twice, no host believed."""

import asyncio

import pytest

from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.pool.pool import HOST_SILENCE_SECONDS, Lease
from cellblock_worker.wire import protocol
from support.memory_host import BOUND, MakeWorld, ScriptedHost, World, hold, turns
from support.waits import until, within


class Events:
    """A run that only records that its host was lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def worker_says(self, message: protocol.FromHost, body: bytes) -> None:
        """Its worker says nothing of note."""

    def host_lost(self, why: str) -> None:
        self.lost.append(why)


def acquire(world: World, events: Events | None = None, client: str = "c") -> asyncio.Task[Lease]:
    return asyncio.ensure_future(world.pool.acquire(events or Events(), client))


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
    mine, other = Events(), Events()
    leases = [await within(acquire(world, mine)), await within(acquire(world, other))]
    assert [lease.host for lease in leases] == [b"a", b"b"]
    world.lose(first, "died")
    world.pool.host_gone(b"a", "again")
    world.pool.host_gone(b"never was", "x")
    assert (mine.lost, other.lost) == (["died"], [])
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
    other.release()
    lease.release()


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
