"""Clients of a door: their tokens, what these permit, how much they may have going on, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import iris
from iris.doors import Problem, grant, load_tokens, withdraw
from iris.doors import clients as clients_module
from iris.doors import tokens as tokens_module
from iris.doors.clients import ClientLimits, Clients


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())


def test_a_token_is_granted_once_and_its_file_holds_none(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    secret = grant(file, "web", call=("quotes", "shop.*"), subscribe=("orders.>",))
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    client = Clients(file, Clock()).admit(secret)
    assert client.name == "web"
    client.check("call", "shop.tea")
    client.check("subscribe", "orders.*.tea")
    for right, wanted in [("call", "shop"), ("subscribe", ">"), ("subscribe", "*.tea"), ("publish", "orders.tea")]:
        with pytest.raises(Problem, match=f"client web may not {right}") as caught:
            client.check(right, wanted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert caught.value.status == 403


def test_a_right_is_one_in_the_realm_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    grant(file, "web", call=("*", "acme/orders", "acme/shop.*"), subscribe=(">",), publish=("acme/>",))
    client = Clients(file, Clock()).named("web")
    for right, wanted in [
        ("call", "quotes"), ("call", "quotes@lab"), ("call", "acme/orders"), ("call", "acme/shop.tea"),
        ("subscribe", "a.>"), ("publish", "acme/a.b"),
    ]:  # fmt: skip
        client.check(right, wanted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for right, wanted in [
        ("call", "acme/quotes"), ("call", "other/orders"), ("subscribe", "acme/a"), ("call", "/quotes"),
        ("subscribe", "acme/>"), ("publish", "a"), ("call", "acme/orders@lab"),
    ]:  # fmt: skip
        with pytest.raises(Problem, match=f"may not {right} '{wanted}'"):
            client.check(right, wanted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for wrong in ("*/x", "/x", "a b/x", "acme/", "acme/a..b"):
        with pytest.raises(iris.ConfigError):
            grant(file, "web", call=(wrong,))


@pytest.mark.parametrize("expires", ["NaN", "1e400", "1" + "0" * 400, "-1", "true", '"x"', "[]"])
def test_a_time_that_is_none_is_a_file_that_is_malformed(tmp_path: Path, expires: str) -> None:
    file = tmp_path / "tokens"
    grant(file, "web", expires=1e9)
    file.write_text(file.read_text().replace("1000000000.0", expires))
    with pytest.raises(iris.ConfigError, match="malformed"):
        load_tokens(file)


def test_a_file_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    grant(file, "web")
    monkeypatch.setattr(tokens_module, "MAX_FILE", 200)
    with pytest.raises(iris.ConfigError, match=r"2 clients take [0-9]+ bytes, and 200 are the limit: withdraw some"):
        grant(file, "other")
    assert [*load_tokens(file)] == ["web"]
    withdraw(file, "web")


def test_a_right_to_serve_is_one_in_the_own_realm_and_stands_in_the_file_only_if_there_is_one(tmp_path: Path) -> None:
    """An earlier version takes no file with a right that it does not know."""
    file = tmp_path / "tokens"
    grant(file, "web", call=("greeters",))
    assert "serve" not in file.read_text()
    grant(file, "shop", serve=("orders.*",))
    assert load_tokens(file)["shop"].may("serve", "orders.tea")
    assert not load_tokens(file)["web"].may("serve", "greeters")
    with pytest.raises(iris.ConfigError, match="leave 'acme/' out of serve"):
        grant(file, "shop", serve=("acme/orders",))


def test_rights_to_the_bridge_name_a_queue_a_group_and_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    grant(file, "web", take=("jobs.*",), read=("billing/orders.>", "news"), lease=("orders/leader", "shop/>"))
    token = load_tokens(file)["web"]
    wanted = {
        "take": {"jobs.a": True, "jobs": False, "acme/jobs.a": False},
        "read": {"billing/orders.tea": True, "orders.tea": False, "news": True, "billing/news": False, ">": False},
        "lease": {
            "orders/leader": True,
            "orders/other": False,
            "shop/any": True,
            "leader": False,
            "other/leader": False,
        },
    }
    for right, names in wanted.items():
        assert {name: token.may(right, name) for name in names} == names
    with pytest.raises(iris.ConfigError, match="leave 'acme/' out of take"):
        grant(file, "web", take=("acme/jobs",))
    with pytest.raises(iris.ConfigError, match="write CLUSTER/PATTERN"):
        grant(file, "web", lease=("leader",))
    with pytest.raises(iris.ConfigError, match="group"):
        grant(file, "web", read=("a b/news",))


def test_a_second_token_of_a_client_takes_the_place_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first, other = grant(file, "web"), grant(file, "other")
    second = grant(file, "web", publish=(">",))
    clients = Clients(file, Clock())
    assert len(clients) == 2
    assert clients.admit(second).name == "web"
    assert clients.admit(other).name == "other"
    for wrong in (first, "", "web", "ä", "\ud800"):
        with pytest.raises(Problem, match="unknown here") as caught:
            clients.admit(wrong)
        assert caught.value.status == 401


def test_a_token_expires(tmp_path: Path) -> None:
    file, clock = tmp_path / "tokens", Clock()
    secret = grant(file, "web", expires=clock.now + 1)
    clients = Clients(file, clock)
    assert clients.admit(secret) is clients.named("web")
    clock.now += 1
    with pytest.raises(Problem):
        clients.admit(secret)
    with pytest.raises(Problem):
        clients.named("web")


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "{", '{"format": "iris tokens 1"}', '{"format": "iris tokens 1", "tokens": []}',
        '{"format": "iris tokens 1", "tokens": {"web": {}}}', '{"format": "iris tokens 1", "tokens": {"web": 1}}',
        '{"format": "iris tokens 1", "tokens": {"a b": {"sha256": "%s"}}}' % ("0" * 64),
        '{"format": "iris tokens 1", "tokens": {"web": {"sha256": "0"}}}',
        '{"format": "iris tokens 1", "tokens": {"web": {"sha256": "%s", "call": "x"}}}' % ("0" * 64),
        '{"format": "iris tokens 1", "tokens": {"web": {"sha256": "%s", "call": ["a b"]}}}' % ("0" * 64),
        '{"format": "iris tokens 1", "tokens": {"web": {"sha256": "%s", "calls": []}}}' % ("0" * 64),
        '{"format": "iris tokens 1", "tokens": {"web": {"sha256": "%s", "expires": "x"}}}' % ("0" * 64),
        '{"format": "iris tokens 2", "tokens": {}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_file_that_is_malformed_is_one_clear_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(iris.ConfigError):
        load_tokens(file)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    grant(file, "web")
    file.chmod(0o644)
    with pytest.raises(iris.ConfigError, match="tokens file"):
        Clients(file, Clock())


def test_only_who_is_there_can_be_taken_out(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    secret = grant(file, "web")
    with pytest.raises(iris.ConfigError, match="it has web"):
        withdraw(file, "site")
    withdraw(file, "web")
    assert json.loads(file.read_text())["tokens"] == {}
    with pytest.raises(Problem):
        Clients(file, Clock()).admit(secret)


def test_calls_and_streams_of_one_client_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    clients = Clients(file, Clock(), ClientLimits(calls=1, streams=1)) if grant(file, "web") else None
    assert clients is not None
    client = clients.named("web")
    with client.calling(), pytest.raises(Problem, match="1 calls at a time") as caught, client.calling():
        pass
    assert caught.value.status == 429
    with client.calling():
        pass

    async def open_two() -> None:
        async with client.streaming():
            with pytest.raises(Problem, match="1 streams at a time"):
                async with client.streaming():
                    pass
        async with client.streaming():
            pass

    run(open_two)


def test_what_is_open_ends_when_the_token_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients_module, "_REREAD", 0.01)
    file = tmp_path / "tokens"
    grant(file, "web")
    kept = grant(file, "kept")
    clients = Clients(file, Clock())

    async def hold(name: str, opened: asyncio.Event) -> None:
        async with clients.named(name).streaming():
            opened.set()
            await asyncio.Event().wait()

    async def work() -> None:
        following = asyncio.create_task(clients.follow())
        opened = [asyncio.Event(), asyncio.Event()]
        web, other = (asyncio.create_task(hold(*who)) for who in zip(("web", "kept"), opened, strict=True))
        for event in opened:
            await event.wait()
        withdraw(file, "web")
        with pytest.raises(Problem, match="token has ended"):
            await web
        assert not other.done()
        assert clients.admit(kept) is clients.named("kept")
        file.write_text("{")
        while "the tokens of before still count" not in caplog.text:
            await asyncio.sleep(0.01)
        assert clients.admit(kept).name == "kept"
        clients.end_streams()
        with pytest.raises(Problem, match="the door closes"):
            await other
        following.cancel()

    run(work)


def test_what_ends_already_does_not_keep_others_from_ending(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    grant(file, "web")
    clients = Clients(file, Clock())

    async def hold(ending: asyncio.Event, go: asyncio.Event) -> None:
        async with clients.named("web").streaming():
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await go.wait()

    async def work() -> None:
        ending, go = asyncio.Event(), asyncio.Event()
        holding = asyncio.create_task(hold(ending, go))
        await asyncio.sleep(0)
        clients.end_streams()
        await ending.wait()
        clients.end_streams()
        go.set()
        with pytest.raises(Problem, match="token has ended"):
            await holding

    run(work)


def test_what_is_open_ends_when_the_token_expires(tmp_path: Path) -> None:
    file, clock = tmp_path / "tokens", Clock()
    grant(file, "web", expires=clock.now + 0.01)
    client = Clients(file, clock).named("web")

    async def hold() -> None:
        with pytest.raises(Problem, match="token has ended"):
            async with client.streaming():
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            async with client.streaming():
                raise TimeoutError

    run(hold)


def test_nothing_begins_for_a_client_whose_token_was_taken_away_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "tokens"
        secret = grant(file, "web", call=(">",))
        clients = Clients(file, Clock())
        client = clients.admit(secret)
        client.check("call", "shop")
        client.withdraw()
        with pytest.raises(Problem, match="token has ended"):
            client.check("call", "shop")
        with pytest.raises(Problem, match="token has ended"):
            async with client.streaming():
                raise AssertionError("it has begun")

    run(work)
