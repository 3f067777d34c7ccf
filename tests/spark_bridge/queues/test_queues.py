"""Queues of a bridge among nodes: what a job goes through from ``put`` to its end, and what survives a restart.

On the network in memory and the real clock, because the log works in threads.
"""

from __future__ import annotations

import errno
import logging
import math
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.errors import ConfigError, LeaseLost, NotAllowed, NotSent, RemoteError
from iris.node.node import Node
from iris.spark_bridge.log import quota
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member
from tests.support.bridges import BridgeProcess
from tests.support.queue_workers import first, status

bridge = partial(open_member, topics=["jobs"])


async def until(node: Node, name: str = "jobs", **wanted: int) -> dict[str, Any]:
    """Wait until the status of a queue says so."""
    found: dict[str, Any] = {}
    with trio.move_on_after(60):
        while not wanted.items() <= found.items():
            found = await status(node, name)
            await trio.sleep(0.01)
    assert wanted.items() <= found.items(), found
    return found


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[tuple[Network, Node]]:
    """A bridge that stores the topic ``jobs``, and a node."""
    async with open_network() as network, bridge(network, tmp_path), network.open_node("desk") as node:
        yield network, node


async def test_jobs_are_done_once_each_and_with_all_that_they_were_put_with(desk: tuple[Network, Node]) -> None:
    _, node = desk
    payloads: list[Any] = [b"bytes", "text", {"n": 1}, None, b"x" * 300_000, "y" * 100_000]
    async with node.bridge().queue("jobs") as jobs:
        for payload in payloads:
            await jobs.put(payload, key="k", headers={"h": "v"})
        found: list[Any] = []
        worker = jobs.receive()
        while len(found) < len(payloads):
            async with await first(worker) as job:
                found.append(job.payload)
                assert (job.key, job.headers, job.sender, job.attempt, job.queue) == (
                    "k",
                    {"h": "v"},
                    "desk",
                    1,
                    "jobs",
                )
    assert found == payloads
    assert (await until(node, done=len(payloads)))["waiting"] == 0


async def test_a_worker_that_has_waited_for_longer_than_a_lease_gets_the_next_job(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", lease=0.1) as jobs:
        worker = jobs.receive()
        await until(node, workers=1)
        await trio.sleep(0.2)
        await jobs.put("late")
        async with await first(worker) as job:
            assert job.payload == "late"


async def test_an_error_is_logged_and_the_job_comes_again_until_it_is_a_dead_letter(
    desk: tuple[Network, Node], caplog: pytest.LogCaptureFixture
) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", attempts=5, backoff=0.001) as jobs:
        await jobs.put({"n": 1}, key="k", headers={"h": "v"})
        worker = jobs.receive()
        for attempt in range(1, 6):
            async with await first(worker) as job:
                assert job.attempt == attempt
                raise ValueError("no good")
        found = await until(node, dead=1)
        assert (found["done"], found["waiting"], found["retried"]) == (0, 0, 4)
    assert [record.exc_info is not None for record in caplog.records if "has failed" in record.message] == [True] * 5
    async with node.bridge().queue("jobs.dead") as dead:
        letter = await first(dead.receive())
        assert (letter.payload, letter.key, letter.sender) == ({"n": 1}, "k", "desk")
        assert letter.headers == {
            "h": "v",
            "dead-queue": "jobs",
            "dead-attempts": "5",
            "dead-error": "ValueError: no good",
            "dead-place": "0:0",
        }
        await letter.commit()
    assert (await status(node, "jobs.dead"))["done"] == 1


async def test_a_job_that_cannot_succeed_is_dead_at_once(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", dead="graves") as jobs:
        await jobs.put(b"1")
        async with await first(jobs.receive()) as job:
            job.fail("malformed", permanent=True)
        await until(node, dead=1)
        async with node.bridge().queue("graves") as graves:
            assert (await first(graves.receive())).headers["dead-error"] == "malformed"


async def test_a_job_whose_block_is_cancelled_is_given_back_without_an_attempt(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs") as jobs:
        await jobs.put(b"1")
        worker = jobs.receive()
        with trio.CancelScope() as scope:
            async with await first(worker):
                scope.cancel()
                await trio.sleep_forever()
        assert (await first(worker)).attempt == 1


async def test_a_lease_that_ran_out_lets_another_worker_have_the_job(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", lease=0.3, backoff=0.0) as jobs:
        await jobs.put(b"1")
        job = await first(jobs.receive(1))
        again = await first(jobs.receive(1))
        assert again.attempt == 2
        assert job.is_lost
        await again.commit()
        with pytest.raises(LeaseLost):
            await job.commit()
    assert (await status(node))["done"] == 1


async def test_a_lease_that_is_extended_does_not_run_out(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", lease=2.0) as jobs:
        await jobs.put(b"1")
        job = await first(jobs.receive(1))
        began = trio.current_time()
        while trio.current_time() < began + 2.5:
            job.extend()
            await trio.sleep(0.1)
        assert not job.is_lost
        await job.commit()
    assert (await status(node))["lapsed"] == 0


async def test_a_worker_that_did_not_look_for_long_gets_jobs_again_when_it_does(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", lease=0.1) as jobs:
        worker = jobs.receive()
        await jobs.put(1)
        await until(node, in_hand=1)
        await until(node, waiting=1)
        job = await first(worker)
        assert (job.payload, job.attempt) == (1, 1)


async def test_a_worker_has_no_more_in_hand_than_its_limit(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs") as jobs:
        for number in range(12):
            await jobs.put(number)
        worker = jobs.receive(4)
        held = [await first(worker) for _ in range(4)]
        assert (await until(node, waiting=8))["in_hand"] == worker.in_hand == 4
        with trio.move_on_after(0.1) as scope:
            await anext(worker)
        assert scope.cancelled_caught
        await held[2].commit()
        assert (await first(worker)).payload == 4


async def test_delay_expiry_and_priority(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs") as jobs:
        await jobs.put("expired", expires=0.0)
        await jobs.put("late", delay=3.0)
        await jobs.put("low", priority=-1)
        await jobs.put("high", priority=3)
        await jobs.put("plain", expires=60)
        await until(node, waiting=4, delayed=1)
        worker = jobs.receive(1)
        found: list[str] = []
        while len(found) < 4:
            async with await first(worker) as job:
                found.append(job.payload)
        assert found == ["high", "plain", "low", "late"]
        await until(node, expired=1, done=4)


async def test_a_job_that_expires_at_a_worker_is_not_begun(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs") as jobs:
        worker = jobs.receive(2)
        await jobs.put(1)
        await jobs.put(2, expires=0.3)
        job = await first(worker)
        assert (await until(node, in_hand=2))["waiting"] == 0
        await trio.sleep(0.35)
        await job.commit()
        with trio.move_on_after(0.2) as scope:
            await anext(worker)
        assert scope.cancelled_caught
        await until(node, expired=1, done=1)


async def test_jobs_of_one_key_are_done_in_their_order_by_many_workers(desk: tuple[Network, Node]) -> None:
    _, node = desk
    done: list[tuple[str, int]] = []
    async with node.bridge().queue("jobs") as jobs, trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(partial(jobs.put, number, key=f"k{number % 3}", timeout=60))
            await trio.lowlevel.checkpoint()

        async def work() -> None:
            async for job in jobs.receive(4):
                async with job:
                    await trio.sleep(0.001)
                    done.append((job.key or "", job.payload))
                if len(done) == 60:
                    nursery.cancel_scope.cancel()

        for _ in range(3):
            nursery.start_soon(work)
    for key in ("k0", "k1", "k2"):
        order = [number for name, number in done if name == key]
        assert order == sorted(order)
        assert len(order) == 20


async def test_done_jobs_attempts_and_delays_survive_a_restart_of_the_bridge(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        async with bridge(network, tmp_path), node.bridge().queue("jobs", attempts=3, backoff=0.001) as jobs:
            await node.wait_for("bridge")
            for number in range(5):
                await jobs.put(number)
            await jobs.put("later", delay=3600)
            worker = jobs.receive(8)
            for _ in range(4):
                async with await first(worker) as job:
                    if job.payload == 2:
                        raise ValueError("two")
            await until(node, done=3, retried=1)
        async with bridge(network, tmp_path), node.bridge().queue("jobs", attempts=3) as jobs:
            await node.wait_for("bridge")
            found = await until(node, delayed=1, unread=0)
            assert (found["done"], found["waiting"]) == (3, 2)
            worker = jobs.receive(8)
            left = {(job.payload, job.attempt) for job in (await first(worker), await first(worker))}
            assert left == {(2, 2), (4, 1)}


async def test_attempts_that_a_cluster_has_no_room_for_count_until_the_bridge_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quota, "_ONE", 2**60)
    async with open_network() as network, network.open_node("desk") as node:
        async with bridge(network, tmp_path), node.bridge().queue("jobs", attempts=9, backoff=0.001) as jobs:
            await node.wait_for("bridge")
            await jobs.put(1)
            worker = jobs.receive()
            for attempt in (1, 2):
                job = await first(worker)
                assert job.attempt == attempt
                job.fail("e" * 5000)
            await until(node, retried=2)
            shown = await node.request("bridge", {"group": "queue/jobs", "most": 1}, operation="peek")
            assert (shown[0]["attempts"], shown[0]["error"]) == (2, "")
        (said,) = [record.message for record in caplog.records if "failed attempts" in record.message]
        assert said.startswith("queue jobs keeps no more failed attempts: cluster 'desk' has 0.0 of 0.0 MiB")
        async with bridge(network, tmp_path), node.bridge().queue("jobs") as jobs:
            await node.wait_for("bridge")
            assert (await first(jobs.receive())).attempt == 1


async def test_what_is_at_work_while_the_bridge_restarts_is_done_once(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node, node.bridge().queue("jobs") as jobs:
        begun: list[Any] = []
        async with bridge(network, tmp_path):
            await node.wait_for("bridge")
            for number in range(4):
                await jobs.put(number)
            worker = jobs.receive(2)
            mine = [await first(worker), await first(worker)]
        async with (
            bridge(network, tmp_path),
            network.open_node("desk") as other,
            other.bridge().queue("jobs") as others,
        ):
            await other.wait_for("bridge")
            beside = others.receive(8)
            begun = [await first(beside), await first(beside)]
            for job in (*mine, *begun):
                await job.commit()
            assert (await until(node, done=4))["lapsed"] == 0
        assert sorted(job.payload for job in (*mine, *begun)) == [0, 1, 2, 3]


async def test_a_queue_reads_its_topic_alone_and_begins_with_what_was_published_before(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path, shards=[0, 1]),
        network.open_node("desk") as node,
    ):
        async with node.confirming(timeout=60) as confirmed:
            for number in range(3000):
                await confirmed.publish("jobs" if number % 7 == 0 else "other", b"%d" % number, key=str(number))
        async with node.bridge().queue("jobs") as jobs:
            worker = jobs.receive(500)
            found = [await first(worker) for _ in range(429)]
            for job in found:
                async with job:
                    pass
            await until(node, done=429, unread=0)
        assert sorted(int(job.payload) for job in found) == list(range(0, 3000, 7))


async def test_purging_forgets_what_waits(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs") as jobs:
        for number in range(6):
            await jobs.put(number)
        worker = jobs.receive(1)
        job = await first(worker)
        assert await node.request("bridge", {"group": "queue/jobs"}, operation="purge") == 6
        await job.commit()
        await jobs.put("new")
        assert (await first(worker)).payload == "new"


async def test_peeking_shows_the_jobs_in_the_order_of_the_log(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", backoff=60) as jobs:
        for number in range(3):
            await jobs.put(str(number), delay=3600 if number == 2 else 0)
        async with await first(jobs.receive(1)):
            raise ValueError("zero")
        await until(node, delayed=2)
        shown = await node.request("bridge", {"group": "queue/jobs", "most": 9}, operation="peek")
    assert [(job["value"], job["attempts"], job["error"]) for job in shown] == [
        (b"0", 1, "ValueError: zero"),
        (b"1", 0, ""),
        (b"2", 0, ""),
    ]
    assert math.isclose(shown[2]["due_in"], 3600, abs_tol=60)
    assert [job["expires_in"] for job in shown] == [None] * 3


async def test_a_queue_belongs_to_the_cluster_that_takes_from_it_first(desk: tuple[Network, Node]) -> None:
    network, node = desk
    async with node.bridge().queue("jobs") as jobs:
        await jobs.put(1)
        await first(jobs.receive(1))
        async with network.open_node("others") as stranger, stranger.bridge().queue("jobs") as theirs:
            await stranger.wait_for("bridge")
            await theirs.put(2)
            with pytest.raises(NotAllowed, match="belongs to cluster 'desk'"):
                await first(theirs.receive())


async def test_a_topic_that_no_bridge_stores_has_no_queue(desk: tuple[Network, Node]) -> None:
    _, node = desk
    async with node.bridge().queue("elsewhere") as jobs:
        with pytest.raises(NotSent, match="no durable subscriber"):
            await jobs.put(1)


async def test_members_that_do_not_divide_the_events_have_no_queues(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "0", topics=["jobs"], member="a"),
        open_member(network, tmp_path / "1", topics=["jobs"], member="b", shards=[1]),
        network.open_node("desk") as node,
        node.bridge().queue("jobs") as jobs,
    ):
        await node.wait_for("bridge", 2)
        with pytest.raises(ConfigError, match="start them with --of"):
            await first(jobs.receive())


async def test_members_that_divide_the_events_have_a_queue_together(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "0", topics=["jobs"], shards=[0], of=2),
        open_member(network, tmp_path / "1", topics=["jobs"], shards=[1], of=2),
        network.open_node("desk") as node,
        node.bridge().queue("jobs", attempts=1) as jobs,
    ):
        await node.wait_for("bridge", 2)
        for number in range(20):
            await jobs.put(number, key=str(number))
        worker = jobs.receive(8)
        found: list[int] = []
        while len(found) < 20:
            async with await first(worker) as job:
                found.append(job.payload)
                raise ValueError("dead")
        assert sorted(found) == list(range(20))
        async with node.bridge().queue("jobs.dead") as dead:
            taking = dead.receive(8)
            letters: list[int] = []
            for _ in range(20):
                async with await first(taking) as letter:
                    letters.append(letter.payload)
            assert sorted(letters) == list(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": 0}, "lease is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"backoff": math.nan}, "backoff is nan"),
        ({"dead": "jobs"}, "another topic"),
        ({"dead": "a b"}, "dead is 'a b'"),
        ({"bridge": ""}, "''"),
    ],
)
async def test_what_a_queue_cannot_be_opened_with_is_an_error(options: dict[str, Any], message: str) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with pytest.raises(ConfigError, match=message):
            async with node.bridge(options.pop("bridge", "bridge")).queue("jobs", **options):
                pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"delay": -1}, "delay"), ({"expires": -1}, "expires"), ({"priority": 10}, "priority")],
)
async def test_what_a_job_cannot_be_put_with_is_an_error(
    desk: tuple[Network, Node], arguments: dict[str, Any], message: str
) -> None:
    _, node = desk
    async with node.bridge().queue("jobs") as jobs:
        with pytest.raises(ConfigError, match=message):
            await jobs.put(1, **arguments)
        with pytest.raises(ConfigError, match="limit"):
            jobs.receive(0)


REPORTS = ("begun", "done", "failed", "released", "expired", "extended")
NO_PLACES: tuple[Any, ...] = (
    [0], [[0]], [[0, -1]], [[0, 2**63]], [[True, 1]], [[0.0, 1]], [[None, 0]], [1], ["a", "b"], "ab", {}, {"a": 1},
)  # fmt: skip


async def test_a_worker_that_reports_nonsense_is_told_so_and_hurts_nobody(desk: tuple[Network, Node]) -> None:
    _, node = desk
    terms = {"group": "queue/jobs", "limit": 1, "lease": 5.0, "attempts": 2, "dead": "jobs.dead", "backoff": 1.0}
    reports: list[Any] = [{name: places} for name in REPORTS for places in NO_PLACES]
    reports += [b"x", {"failed": [[1, 2, 3]]}, {"failed": [[0, -1, 1, "", True]]}]
    sent: list[tuple[Any, Any]] = [([], report) for report in reports]
    sent += [(places, None) for places in NO_PLACES]
    for held, report in sent:
        async with node.open_tunnel("bridge", operation="take") as tunnel:
            await tunnel.send({**terms, "held": held})
            message: Any = await tunnel.receive()
            if report is not None:
                assert set(message) == {"now", "shards"}
                await tunnel.send(report)
                with trio.fail_after(60):
                    message = await tunnel.receive()
            assert message["error"] == "bad_request", (held, report)
    async with node.bridge().queue("jobs") as jobs:
        await jobs.put(1)
        await (await first(jobs.receive())).commit()


@pytest.mark.parametrize(
    "change",
    [{"limit": 0}, {"lease": "x"}, {"attempts": -1}, {"dead": "jobs"}, {"group": "jobs"}, {"group": "queue/a b"}],
)
async def test_a_worker_that_begins_with_nonsense_is_refused(
    desk: tuple[Network, Node], change: dict[str, Any]
) -> None:
    _, node = desk
    terms = {"group": "queue/jobs", "limit": 1, "lease": 5.0, "attempts": 2, "dead": "jobs.dead", "backoff": 1.0}
    async with node.open_tunnel("bridge", operation="take") as tunnel:
        await tunnel.send(terms | change)
        assert (await tunnel.receive())["error"] == "bad_request"


async def test_headers_that_make_no_sense_count_as_none(desk: tuple[Network, Node]) -> None:
    _, node = desk
    for name in ("job-delay", "job-priority", "expires"):
        await node.publish_confirmed("jobs", name, headers={name: "soon"})
    await node.publish_confirmed("jobs", "nan", headers={"job-delay": "nan", "expires": "nan"})
    async with node.bridge().queue("jobs") as jobs:
        worker = jobs.receive()
        found = [(await first(worker)).payload for _ in range(4)]
    assert sorted(found) == ["expires", "job-delay", "job-priority", "nan"]


async def test_a_bridge_that_is_away_is_said_once_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_network() as network, network.open_node("desk") as node, node.bridge().queue("jobs") as jobs:
        worker = jobs.receive()
        with caplog.at_level(logging.WARNING, "iris"), trio.move_on_after(0.7):
            await anext(worker)
        assert [record.message for record in caplog.records] == [
            "queue jobs waits for bridge: is 'iris bridge --name bridge' running?"
        ]
        async with bridge(network, tmp_path):
            await node.wait_for("bridge")
            await jobs.put(1)
            await (await first(worker)).commit()


async def test_on_a_full_disk_it_is_noted_which_jobs_are_done(
    desk: tuple[Network, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention that spares what is unread makes room by it."""
    _, node = desk

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    async with node.bridge().queue("jobs") as jobs:
        await jobs.put("before")
        with monkeypatch.context() as patch:
            patch.setattr("iris.spark_bridge.log.segments.FileSystem.write", fail)
            await node.publish("jobs", "no room for this one")
            job = await first(jobs.receive())
            with trio.fail_after(60):
                await job.commit()
            assert (await status(node))["unread"] == 0
        await until(node, done=1, in_hand=1)


async def test_a_queue_whose_names_are_too_many_or_bad_is_refused(desk: tuple[Network, Node]) -> None:
    _, node = desk
    for payload in (None, {"group": "queue/"}, {"group": 3}):
        with pytest.raises(RemoteError, match="bad_request"):
            await node.request("bridge", payload, operation="queue")


async def test_a_commit_ends_with_the_error_of_a_queue_that_has_failed_for_good(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node, trio.open_nursery() as nursery:
        async with node.bridge().queue("jobs") as jobs:
            async with bridge(network, tmp_path):
                await node.wait_for("bridge")
                await jobs.put(1)
                worker = jobs.receive()
                job = await anext(worker)

            async def commit() -> None:
                with pytest.raises(NotAllowed, match="may not read"):
                    await job.commit()

            nursery.start_soon(commit)
            async with bridge(network, tmp_path, readers=["others"]):
                with pytest.raises(NotAllowed, match="may not read"), trio.fail_after(30):
                    await anext(worker)
                with trio.fail_after(1), pytest.raises(NotAllowed, match="may not read"):
                    await job.commit()
            left = trio.current_time()
        assert trio.current_time() - left < 4, "a queue that has failed has nothing to wait for when it is left"


@pytest.mark.parametrize("way", ["block", "group", "bare", "error"])
async def test_a_job_that_ends_its_program_counts_an_attempt_and_dies_of_it(
    desk: tuple[Network, Node], way: str
) -> None:
    """``sys.exit`` in its block, below a nursery there, without a block; and an error of a job without a block."""
    network, node = desk

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        raise SystemExit(3)

    async def run_program() -> int:
        """Run the worker as if the program was started again; return the attempt of the job."""
        async with network.open_node("desk") as worker:
            await worker.wait_for("bridge")
            attempt = 0
            try:
                async with worker.bridge().queue("jobs", attempts=3, backoff=0.0) as jobs:
                    job = await first(jobs.receive(1))
                    attempt = job.attempt
                    if way == "bare":
                        await leave()
                    elif way == "error":
                        raise KeyError
                    async with job:
                        if way == "block":
                            await leave()
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(leave)
            except (SystemExit, KeyError, BaseExceptionGroup):
                return attempt
            raise AssertionError("the error goes on")

    async with node.bridge().queue("jobs") as jobs:
        await jobs.put("bad")
    assert [await run_program() for _ in range(3)] == [1, 2, 3]
    assert (await until(node, dead=1))["waiting"] == 0


async def test_a_job_that_was_never_begun_is_no_dead_letter(desk: tuple[Network, Node]) -> None:
    """Its worker is lost with it in hand, once and again; then it is begun when the bridge knows of that."""
    _, node = desk
    terms = {"group": "queue/jobs", "limit": 4, "lease": 30.0, "attempts": 1, "dead": "jobs.dead", "backoff": 0.0}
    async with node.bridge().queue("jobs", attempts=1) as jobs:
        await jobs.put("good")
        for turn in range(3):
            with pytest.raises(KeyError):  # noqa: PT012 -- a block is what is tested
                async with node.open_tunnel("bridge", operation="take") as tunnel:
                    await tunnel.send({**terms, "held": []})
                    assert "now" in await tunnel.receive()
                    if turn:
                        assert await tunnel.receive() == {"suspect": [[0, 0]]}
                    assert len((await tunnel.receive())["jobs"]) == 1
                    raise KeyError
        job = await first(jobs.receive())
        assert (await status(node))["in_hand"] == 1
        assert (job.payload, job.attempt) == ("good", 1)
        await job.commit()
    assert (await status(node)) | {"done": 1, "dead": 0, "lapsed": 0} == await status(node)


async def test_a_suspect_that_is_waited_for_is_given_back_when_its_worker_is_cancelled(
    desk: tuple[Network, Node],
) -> None:
    _, node = desk
    async with node.bridge().queue("jobs", attempts=1) as jobs:
        worker = jobs.receive()
        await jobs.put("good")
        while not worker._jobs.ready:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.01)
        worker._jobs.ready[0]._is_suspect = True  # the bridge does not know that it is one, and confirms nothing
        with trio.move_on_after(0.1) as scope:
            await anext(worker)
        assert scope.cancelled_caught
        assert (await first(worker)).attempt == 1


KILLED = """
import os, sys, trio, iris

async def main():
    async with iris.open_node("desk") as node, node.bridge().queue("jobs", attempts=2, backoff=0.0) as jobs:
        async for job in jobs.receive(4):
            print(job.payload, job.attempt, flush=True)
            async with job:
                if job.payload == "bad":
                    os._exit(9)
            await job.commit()
            if job.payload == "last":
                return

trio.run(main)
"""


async def test_a_job_that_kills_its_process_is_dead_after_its_attempts_and_takes_no_other_with_it(
    tmp_path: Path, own_home: None
) -> None:
    runs: list[str] = []

    async def work() -> None:
        for _ in range(4):
            done = await trio.run_process([sys.executable, "-c", KILLED], capture_stdout=True, check=False)
            runs.append(done.stdout.decode())
            if done.returncode != 9:
                break

    with BridgeProcess(tmp_path / "data"):
        async with iris.open_node("desk") as node, node.bridge().queue("jobs") as jobs, trio.open_nursery() as nursery:
            await node.wait_for("bridge")
            for payload in ("bad", "good", "good"):
                await jobs.put(payload)
            nursery.start_soon(work)
            await until(node, dead=1, done=2)
            await jobs.put("last")
            await until(node, dead=1, done=3)
    began = "".join(runs).splitlines()
    assert [line for line in began if line.startswith("good")] == ["good 1", "good 1"]
    assert began[-1] == "last 1"
    bad = [line for line in began if line.startswith("bad")]
    assert bad in (["bad 1", "bad 2"], ["bad 1", "bad 1", "bad 2"]), "its first end may come before its report"


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return 1.8e9 + time.monotonic() + self.ahead


@pytest.mark.parametrize("restart", [False, True])
async def test_a_clock_that_is_set_delays_no_job_and_lets_none_expire(tmp_path: Path, restart: bool) -> None:
    """Set back, ahead, and back again; with a restart, or a copy on another machine, in between each time."""
    wall = Wall()

    async def serve(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with bridge(network, tmp_path, wall_clock=wall):
                task_status.started(scope)
                await trio.sleep_forever()
        gone.set()

    async with open_network() as network, network.open_node("desk") as node, trio.open_nursery() as nursery:
        gone = trio.Event()
        serving = await nursery.start(serve)
        async with node.bridge().queue("jobs", backoff=0.2) as jobs:
            await node.wait_for("bridge")
            for number, step in enumerate((0.0, -240.0, 240.0, -480.0)):
                wall.ahead += step
                if restart:
                    serving.cancel()
                    await gone.wait()
                    gone = trio.Event()
                    serving = await nursery.start(serve)
                    await node.wait_for("bridge")
                await jobs.put(number, expires=None if number % 2 else 60.0)
            async with node.bridge().queue("jobs", backoff=0.2) as others:
                taken = others.receive()
                with trio.fail_after(20):
                    for number in range(4):
                        job = await anext(taken)
                        assert (job.payload, job.attempt) == (number, 1)
                        wall.ahead -= 1000
                        job.fail("again")
                    for number in range(4):
                        job = await anext(taken)
                        assert (job.payload, job.attempt) == (number, 2)
                        await job.commit()
        found = await status(node)
        assert (found["done"], found["expired"], found["waiting"], found["delayed"]) == (4, 0, 0, 0)
        nursery.cancel_scope.cancel()


async def test_a_retry_is_due_in_time_after_a_start_with_a_clock_that_is_behind(tmp_path: Path) -> None:
    """Nothing was stored for an hour before the job failed, so the events do not say how late it was."""
    wall = Wall()
    async with open_network() as network, network.open_node("desk") as node:
        async with bridge(network, tmp_path, wall_clock=wall), node.bridge().queue("jobs", backoff=0.5) as jobs:
            await node.wait_for("bridge")
            await jobs.put(1)
            wall.ahead += 3600
            (await first(jobs.receive())).fail()
            await until(node, delayed=1)
        wall.ahead -= 240
        async with bridge(network, tmp_path, wall_clock=wall), node.bridge().queue("jobs") as jobs:
            await node.wait_for("bridge")
            with trio.fail_after(20):
                assert (await anext(jobs.receive())).attempt == 2
