"""Documents: whatever is merged, in whatever steps and order, is what a naive join of all writes says."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.errors import ConfigError, Overloaded, RemoteError, RemoteProtocolError
from iris.patterns.state.entries import (
    BUCKETS,
    SET,
    VALUE,
    WRITERS,
    Edit,
    Entry,
    dot_of,
    encode,
    read_edit_untrusted,
    write_value,
)
from iris.patterns.state.kept_copy import load_copy, save_copy
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.sync import Header, pieces
from iris.patterns.state.watch import Changes, StateWatch
from iris.testing import Network, inspect_document
from tests.support.states import (
    ALL,
    EDITS,
    NOW,
    LoneDocument,
    Member,
    absorb,
    agree,
    attack,
    draw,
    edit,
    forged,
    give,
    merging,
    replica,
    send,
    with_number,
)  # fmt: skip

SEEDS: Final = pytest.mark.parametrize("seed", range(8))


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a merge take many steps of a few entries."""
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 5)


def check(one: Replica) -> None:
    """Make sure that a replica has each entry in all places where it is looked for, and counts it once."""
    contents = one.contents
    entries = {dot: entry for bucket in contents.buckets for dot, entry in bucket.items()}
    assert all(dot == entry.dot and contents.find(dot) is entry for dot, entry in entries.items())
    by_key = [
        entry.dot for group, cells in contents.groups.items() for key in cells for entry in contents.at(group, key)
    ]
    assert sorted(by_key) == sorted(entries)
    assert contents.size == sum(entry.size for entry in entries.values())
    sizes = Counter[int]()
    for entry in entries.values():
        sizes[entry.dot % WRITERS] += entry.size
        assert entry.dot // WRITERS <= one.vector.get(entry.dot % WRITERS, 0)
    assert +contents.bytes == sizes
    assert set(contents.names("map")) == {entry.map for entry in entries.values() if entry.map}
    own_sets = {entry.name for entry in entries.values() if entry.kind == SET and not entry.map}
    assert set(contents.names("set")) == own_sets
    kept = dict(contents.digests)
    contents.digests.clear()
    assert all(contents.digest(bucket) == digest for bucket, digest in kept.items())


class Oracle:
    """What a replica knows, as the papers have it: dots that it has seen, and the entries that are there."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.there: dict[int, Entry] = {}

    def join(self, seen: set[int], there: dict[int, Entry]) -> None:
        self.there = {
            dot: entry
            for dot, entry in {**self.there, **there}.items()
            if (dot in self.there or dot not in self.seen) and (dot in there or dot not in seen)
        }
        self.seen |= seen

    def take(self, made: Edit) -> None:
        dots = {dot_of(made.writer, made.first + at) for at in range(made.count)}
        self.join(dots | set(made.removed), {entry.dot: entry for entry in made.added})


@SEEDS
def test_a_merge_in_steps_is_the_join_of_a_naive_model(short_steps: None, seed: int) -> None:
    """Edits and comparisons run between the steps of longer ones; no two writers have one number."""
    rng = random.Random(seed)
    replicas = [replica(seed, claimed=[one for one in range(WRITERS) if one != at]) for at in range(4)]
    models = [Oracle() for _ in replicas]
    sent: list[Edit] = []
    running: dict[int, tuple[Iterator[None], set[int], dict[int, Entry]]] = {}

    def finish(at: int) -> None:
        steps, seen, there = running.pop(at)
        for _ in steps:
            pass
        models[at].join(seen, there)

    for _ in range(400):
        at = rng.randrange(4)
        one, model = replicas[at], models[at]
        match rng.randrange(5):
            case 0 | 1:
                edit(one, rng.randrange(EDITS), rng)
                for made in one.pop_edits():
                    model.take(made)
                    sent.append(made)
            case 2 if sent:
                made = rng.choice(sent)
                if made.writer != one.writer and one.apply(made):
                    model.take(made)
            case 3 if at not in running:
                source = rng.randrange(4)
                if source not in running:
                    steps = merging(replicas[source], one)
                    next(steps, None)
                    running[at] = steps, set(models[source].seen), dict(models[source].there)
            case _ if at in running and next(running[at][0], "ended") == "ended":
                finish(at)
            case _:
                pass
        if at not in running:
            assert {entry.dot: entry for entry in one.all_entries()} == model.there
            check(one)
    for at in list(running):
        finish(at)
    for one, model in zip(replicas, models, strict=True):
        assert {entry.dot: entry for entry in one.all_entries()} == model.there


@SEEDS
def test_an_edit_that_names_a_dot_twice_leaves_all_counts_right(seed: int) -> None:
    rng = random.Random(seed)
    replicas = [replica(at) for at in range(3)]
    for one in replicas:
        SharedMap(one, "")["k"] = 1
    for _ in range(60):
        writer = rng.randrange(3)
        first = rng.randrange(1, 6)
        dots = [dot_of(writer, rng.randrange(first, first + 3)) for _ in range(4)]
        added = [
            Entry(dot, VALUE, rng.choice(["", "m"]), "", rng.choice("ab"), encode(rng.randrange(4)))
            if rng.random() < 0.6
            else Entry(dot, SET, rng.choice(["", "m"]), "s", str(rng.randrange(3)), b"")
            for dot in dots
        ]
        made = encode(Edit(writer, first, 3, {}, added, [dots[0], dots[0], dots[1]]))
        for one in rng.sample(replicas, 2):
            attack(one, made)
            check(one)
    agree(*replicas)


@SEEDS
def test_what_is_removed_while_a_long_comparison_is_merged_stays_removed(short_steps: None, seed: int) -> None:
    rng = random.Random(seed)
    one, other = replica(1), replica(2)
    mine, theirs = SharedMap(one, ""), SharedMap(other, "")
    mine.update({f"k{number}": 0 for number in range(40)})
    SharedSet(one, "", "s").add("x")
    give(one, other)
    theirs.update({f"k{number}": 1 for number in range(20)})
    for number in range(20, 30):
        del theirs[f"k{number}"]
    steps = merging(other, one)
    left = [f"k{number}" for number in range(20, 40)]
    deleted = set[str]()
    for _ in steps:
        key = rng.choice(left)
        if key in mine:
            del mine[key]
            deleted.add(key)
        SharedSet(one, "", "s").discard("x")
    check(one)
    assert deleted
    assert not deleted & set(mine)
    assert "x" not in SharedSet(one, "", "s")
    agree(one, other)
    assert set(theirs) == {f"k{number}" for number in (*range(20), *range(30, 40))} - deleted


@SEEDS
def test_three_with_one_number_lose_nothing_between_the_steps_of_each_other(short_steps: None, seed: int) -> None:
    """Each merges what the others have in steps, and writes and counts in between."""
    rng = random.Random(seed)
    replicas = [with_number(at, 7) for at in range(3)]
    for at, one in enumerate(replicas):
        for number in range(30 * at):
            SharedMap(one, "")[f"own {at} {number % 9}"] = number  # which leaves few entries of many writes
    wrote, counted = {f"own {at} {number}" for at in (1, 2) for number in range(9)}, 0
    for turn in range(12):
        at = turn % 3
        one, source = replicas[at], replicas[rng.randrange(3)]
        for _ in merging(source, one):
            for _ in range(rng.randrange(3)):
                key = f"{at} {len(wrote)}"
                SharedMap(one, "")[key] = 1
                wrote.add(key)
                SharedCounter(one, "", "c").add(3)
                counted += 3
            if rng.random() < 0.3:
                send(one, *(other for other in replicas if other is not one))
        check(one)
    agree(*replicas)
    for one in replicas:
        assert set(SharedMap(one, "")) == wrote
        assert SharedCounter(one, "", "c").value == counted


@pytest.mark.parametrize("writes", [(30, 60), (60, 30), (40, 40)])
@pytest.mark.parametrize("order", range(6))
def test_two_with_one_number_that_overwrote_lose_nothing(writes: tuple[int, int], order: int) -> None:
    """Their entries have no dot in common, and who hears of one first takes writes of the other one for removed."""
    one, other, third = with_number(1, 7), with_number(2, 7), replica(3)
    for at, (each, count) in enumerate(zip((one, other), writes, strict=True)):
        for number in range(count):
            SharedMap(each, "")[f"{at} {number % 3}"] = number
            SharedCounter(each, "", "c").add(1)
        SharedMap(each, "")[f"{at} last"] = 1
        SharedSet(each, "", "s").add(at)
    edits = [made for each in (one, other) for made in each.pop_edits()]
    ways = [(one, third), (other, third), (third, one), (third, other), (one, other), (other, one)]
    match order:
        case 0 | 1:
            for made in edits if order else reversed(edits):
                third.apply(made)
            give(third, one)
            give(third, other)
        case 2 | 3:
            assert all(other.apply(made) for made in edits[:1])
            assert all(one.apply(made) for made in edits[1:])
        case _:
            random.Random(order).shuffle(ways)
    for _ in range(5):
        for source, target in ways:
            give(source, target)
            source.pop_edits()
    for each in (one, other, third):
        assert set(SharedMap(each, "")) == {f"{at} {key}" for at in range(2) for key in (0, 1, 2, "last")}
        assert SharedCounter(each, "", "c").value == sum(writes)
        assert set(SharedSet(each, "", "s")) == {0, 1}
    for key in list(SharedMap(third, "")):
        del SharedMap(third, "")[key]
    for _ in range(4):
        for source, target in ways:
            give(source, target)
            source.pop_edits()
    assert not SharedMap(one, ""), "what is removed later does not come back"
    assert not SharedMap(other, "")


@SEEDS
def test_two_with_one_number_that_compare_before_either_has_an_edit_lose_nothing(seed: int) -> None:
    """Fifteen histories: edits are lost, and what is written goes by others as well."""
    for turn in range(15):
        rng = random.Random(100 * seed + turn)
        members = [Member(at, with_number(at, 7) if at < 2 else replica(1000 * seed + turn + at)) for at in range(4)]
        for step in range(60):
            one = rng.choice(members)
            match rng.randrange(8):
                case 0:
                    one.send(*rng.sample(members, rng.randrange(3)))
                case 1 | 2:
                    one.compare(rng.choice(members))
                case _:
                    one.write(f"{one.at} {rng.randrange(4)}", step)
        for _ in range(4):
            for one in members:
                for other in members:
                    one.compare(other)
        agree(*(one.replica for one in members))
        for one in members:
            assert set(SharedMap(one.replica, "")) == {key for each in members for key in each.wrote}
            assert SharedCounter(one.replica, "", "c").value == sum(each.counted for each in members)


@pytest.mark.parametrize("way", ["edits", "comparisons", "questions"])
def test_who_forges_a_number_again_and_again_has_little_written_anew(way: str) -> None:
    """The writer leaves its number each time; it writes 4 MiB anew once, and then 128 KiB a second."""
    document = LoneDocument()
    one = Replica(document, random.Random(1), 10**8)
    for number in range(2000):
        SharedMap(one, "")[f"k{number}"] = bytes(2000)

    def forge() -> None:
        for _ in range(50):
            writer = one.writer
            if way == "edits":
                assert one.apply(Edit(max(writer, 0), 1, 1, {}, [], []))
            elif way == "comparisons":
                absorb(one, {max(writer, 0): 1}, (), {}, {writer})
            else:
                one.leave(writer)
            one.pop_edits()
            SharedMap(one, "")["k"] = 1  # which takes a number

    forge()
    while one.is_rewriting:
        one.pop_edits()
    first = one.hidden
    assert 2000 <= first < 2500
    forge()
    assert one.hidden == first
    document.now += 60
    forge()
    while one.is_rewriting:
        one.pop_edits()
    assert first < one.hidden <= 2 * first
    document.now -= 10**6
    forge()
    document.now += 60
    forge()
    while one.is_rewriting:
        one.pop_edits()
    assert one.hidden <= 3 * first, "a clock that was set back holds off nothing, and allows nothing"
    assert len(SharedMap(one, "")) == 2001
    check(one)


@SEEDS
def test_forged_edits_and_little_room_leave_all_counts_right(short_steps: None, seed: int) -> None:
    rng = random.Random(seed)
    replicas = [replica(at, max_bytes=6000) for at in range(3)]
    for _ in range(150):
        one, other = rng.sample(replicas, 2)
        try:
            edit(one, rng.randrange(EDITS), rng)
            SharedMap(one, "m")[rng.choice("uvwxyz")] = "x" * rng.randrange(900)
        except Overloaded:
            pass
        attack(other, encode(forged(rng, one)))
        if rng.random() < 0.3:
            give(one, other)
        send(one, other)
        for each in (one, other):
            check(each)
            assert each.size <= 2 * 6000 + 6000 // 32
    agree(*replicas)


@SEEDS
async def test_a_watch_ends_up_with_what_is_there(autojump_clock: MockClock, short_steps: None, seed: int) -> None:
    """It is read now and then, while edits and long comparisons come; so are several that began later."""
    rng = random.Random(seed)
    document = LoneDocument()
    one = Replica(document, random.Random(seed), 1_000_000)
    changes = Changes(one)
    document.following.append(changes)
    other = replica(seed + 1)
    views: list[tuple[StateWatch, dict[tuple[str, str], Any]]] = []

    async def read(watch: StateWatch, view: dict[tuple[str, str], Any], most: int) -> None:
        for _ in range(most):
            with trio.move_on_after(1):
                change = await anext(watch)
                if change.removed:
                    view.pop((change.kind, change.key), None)
                else:
                    view[change.kind, change.key] = change.value
                continue
            return

    for turn in range(150):
        for each in (one, other):
            edit(each, rng.randrange(EDITS), rng)
            SharedMap(each, "")[f"k{rng.randrange(12)}"] = turn
            SharedMap(each, "").pop(f"k{rng.randrange(12)}", None)
        if turn % 40 == 0:
            views.append((StateWatch(">", changes), {}))
        if rng.random() < 0.2:
            for _ in merging(other, one):
                edit(one, rng.randrange(EDITS), rng)
                await read(*rng.choice(views), rng.randrange(3))
        send(other, one)
        await read(*rng.choice(views), rng.randrange(8))
    for watch, view in views:
        for _ in range(20):
            await read(watch, view, 1000)
            await trio.lowlevel.checkpoint()
        names = {(kind, name) for kind in ("value", "counter", "map", "set") for name in one.contents.names(kind)}
        assert set(view) == names
        values = SharedMap(one, "")
        assert {key: value for (kind, key), value in view.items() if kind == "value"} == dict(values)
        counted = {key: value for (kind, key), value in view.items() if kind == "counter"}
        assert counted == {key: values.counter(key).value for key in counted}


def test_a_clock_that_jumps_parts_nobody_for_longer_than_it_is_wrong() -> None:
    """Far back all that comes is beyond the date; what was held off comes by comparing when the clock is right."""
    document = LoneDocument()
    one, other = Replica(document, random.Random(1), 1_000_000), replica(2)
    SharedMap(other, "")["a"] = 1
    high = int(NOW * 1e6)
    entry = Entry(dot_of(9, high), VALUE, "", "", "high", b"\x01")
    assert other.apply(Edit(9, 1, high, {}, [entry], []))
    send(other, one)
    give(other, one)
    assert SharedMap(one, "")["high"] == 1
    document.now = 0.0
    SharedMap(other, "")["b"] = 2
    del SharedMap(other, "")["high"]
    give(other, one)
    assert dict(SharedMap(one, "")) == {"a": 1, "b": 2} | {"high": 1}
    SharedMap(one, "")["c"] = 3
    for document.now in (NOW + 40 * 365 * 86_400.0, NOW):
        one.pop_edits()
        for _ in range(2):
            give(other, one)
            give(one, other)
        check(one)
        assert one.digest() == other.digest()
        assert dict(SharedMap(other, "")) == {"a": 1, "b": 2, "c": 3}


def test_a_copy_whose_checksum_is_right_and_whose_entries_are_not_is_named(tmp_path: Path) -> None:
    """Somebody who can write the file, or a version that was wrong."""
    path = tmp_path / "copy"
    good = Entry(dot_of(1, 1), VALUE, "", "", "k", b"\x01")
    save_copy(path, {1: 1}, [good])
    start = path.read_bytes()[: -len(encode((Header({1: 1}, [], list(range(BUCKETS))), list(pieces([good])))))]
    wrong: list[Any] = [
        (Header({}, [], list(range(BUCKETS))), list(pieces([good]))),
        (Header({1: 1}, [], []), [b"\xc1"]),
        (Header({1: 1}, [], []), [encode([Entry(dot_of(1, 1), VALUE, "", "", "", b"\x01")])]),
        (Header({1: 1}, [], []), [encode([good] * 2049)]),
        (Header({1: 1}, [], []), encode([good])),
        [Header({WRITERS: 1}, [], []), []],
        None,
    ]
    for what in wrong:
        document = encode(what)
        path.write_bytes(start[:-32] + hashlib.blake2b(document, digest_size=32).digest() + document)
        with pytest.raises(ConfigError, match="is damaged"):
            load_copy(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="is damaged"):
        load_copy(path)


def test_a_comparison_of_any_form_leaves_all_counts_right(short_steps: None) -> None:
    """Buckets that are named and not given, entries of buckets that are not named, vectors that count too much."""
    rng = random.Random(4)
    one = replica(1)
    for _ in range(400):
        edit(one, rng.randrange(EDITS), rng)
        vector = {rng.randrange(4): rng.choice([1, 5, 10**6, 2**53 - 1]) for _ in range(rng.randrange(4))}
        if rng.random() < 0.3:
            vector[max(one.writer, 0)] = one.vector.get(one.writer, 0) + rng.randrange(4)
        entries: dict[int, Entry] = {}
        for _ in range(rng.randrange(12)):
            writer = rng.choice([0, 1, 2, max(one.writer, 0)])
            dot = dot_of(writer, rng.randrange(1, 12))
            if dot // WRITERS <= vector.get(writer, 0):
                entries[dot] = Entry(
                    dot, VALUE, rng.choice(["", "m"]), "", rng.choice("abc"), write_value(rng.random())
                )
        for _ in one.absorb(vector, [rng.randrange(BUCKETS) for _ in range(rng.randrange(300))], entries):
            edit(one, rng.randrange(EDITS), rng)
            attack(one, encode(forged(rng, one)))
        check(one)
        if rng.random() < 0.1:
            absorb(one, dict(one.vector), ALL, {})
            check(one)


# -- whole nodes -----------------------------------------------------------------------------------------------


async def test_two_with_one_number_whose_edits_are_lost_see_it_by_comparing(
    autojump_clock: MockClock, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have overwritten keys; a third one writes, too."""

    def lose(state: object, edit: object) -> None:
        del state, edit

    monkeypatch.setattr("iris.patterns.state.shared_state.SharedState._receive_edit", lose)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        states = [await enter((await enter(network.open_node("prices"))).state("prices")) for _ in range(3)]
        for at, state in enumerate(states[:2]):
            draw(state, 5, at + 1)
        for at, state in enumerate(states):
            for number in range(20 + 15 * at):
                state[f"{at} {number % 3}"] = number
                state.counter("c").add(1)
        await trio.sleep(20)
        for state in states:
            assert set(state) == {f"{at} {key}" for at in range(3) for key in range(3)}
            assert int(state.counter("c")) == 20 + 35 + 50
        assert 5 not in {inspect_document(state).writer for state in states}


async def test_who_says_that_all_use_all_numbers_has_each_leave_its_own_once(
    autojump_clock: MockClock, network: Network
) -> None:
    """By what it answers and by what it asks, and in the names of the others; the others tell it on."""
    evil_service = iris.Service("prices")
    names: list[Any] = []

    @evil_service.tunnel("sync")
    async def answer(tunnel: iris.Tunnel) -> None:
        await tunnel.receive()
        await tunnel.send(b"\x01")
        claims = [(number, names[(number + at) % len(names)]) for number in range(WRITERS) for at in range(2)]
        await tunnel.send(encode(Header({0: 2**20}, claims, [])))
        await tunnel.send(b"")

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nodes = [await enter(network.open_node("prices")) for _ in range(4)]
        states = [await enter(node.state("prices")) for node in nodes[:3]]
        names += [node.id for node in nodes]
        for at, state in enumerate(states):
            state.update({f"{at} {number}": number for number in range(100)})
        await trio.sleep(5)
        await enter(nodes[3].join("prices", evil_service))
        await nodes[3].wait_for("prices", 4)
        by_node = dict(zip(names, states, strict=False))
        for _ in range(180):
            with suppress(iris.IrisError, trio.BrokenResourceError, trio.EndOfChannel):
                async with nodes[3].open_tunnel("prices", operation="sync") as tunnel:
                    await tunnel.send(bytes(16))
                    await tunnel.receive()
                    state = by_node.get(tunnel.sender.node, states[0])  # it may reach itself
                    writer = inspect_document(state).writer
                    await tunnel.send(encode(({}, [bytes(16)] * BUCKETS, writer)))
                    while await tunnel.receive():
                        pass
            await trio.sleep(0.2)
        assert all(0 < inspect_document(state).hidden <= 3 * 100 for state in states)
        hidden = [inspect_document(state).hidden for state in states]
        await trio.sleep(60)
        assert hidden == [inspect_document(state).hidden for state in states]
        assert all(len(state) == 300 for state in states)


@pytest.fixture
async def lossy(autojump_clock: MockClock) -> AsyncIterator[Network]:
    async with iris.testing.open_network(seed=3, loss=0.08) as network:
        yield network


@pytest.mark.long
async def test_who_has_settled_under_loss_has_its_writes_everywhere(autojump_clock: MockClock, lossy: Network) -> None:
    """Two of the four have drawn one number; a newcomer that comes then has all of it."""
    rng = random.Random(2)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        states = [await enter((await enter(lossy.open_node("prices"))).state("prices")) for _ in range(4)]
        for at, state in enumerate(states[:2]):
            draw(state, 5, at + 1)
        for turn in range(25):
            state = rng.choice(states)
            state[f"k{turn}"] = turn
            state.counter("c").add(1)
            if turn % 3 == 0:
                other = rng.choice(states)
                other[f"o{turn}"] = turn
                await other.settled(4, timeout=60)
                assert all(f"o{turn}" in each for each in states)
            await state.settled(4, timeout=60)
            assert all(each[f"k{turn}"] == turn for each in states)
            assert {int(each.counter("c")) for each in states} == {turn + 1}
        async with lossy.open_node("prices") as node, node.state("prices", timeout=60) as late:
            assert dict(late) == dict(states[0])


@pytest.mark.parametrize("depth", [16, 17, 60, 300])
async def test_an_element_of_any_depth_is_answered(
    autojump_clock: MockClock, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        iris.testing.open_network(seed=3) as network,
        network.open_node("prices") as node,
        network.open_node("door") as door,
        node.state("prices", allow=["door"]) as state,
    ):
        await door.wait_for("prices")
        element: Any = 1
        for _ in range(depth):
            element = [element]
        for operation in ("add", "remove"):
            if depth <= 16:
                await door.request("prices", {"set": "s", "element": element}, operation=operation)
            else:
                with pytest.raises((RemoteError, iris.LocalProtocolError), match=r"bad_request|deep|nested"):
                    await door.request("prices", {"set": "s", "element": element}, operation=operation)
        assert not state.set("s")
        assert not [record for record in caplog.records if record.exc_info]


def test_nothing_that_is_no_bytes_is_read() -> None:
    nothing: list[Any] = [None, 1, "x", [], bytearray(b"\x90"), memoryview(b"\x90")]
    for what in nothing:
        with pytest.raises(RemoteProtocolError, match="is malformed"):
            read_edit_untrusted(what)
