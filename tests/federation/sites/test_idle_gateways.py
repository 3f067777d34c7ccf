"""A gateway to which nothing happens does nothing."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.federation.advertising import Advertiser
from tests.support.federations import echo, open_federation


async def test_the_directory_is_not_gone_through_while_nothing_changes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway's report to its own node was a change of membership, so it reported all again: 20 times a second."""
    looked: list[float] = []
    messages = Advertiser.messages

    def noted(advertising: Advertiser, *arguments: object, **options: object) -> object:
        looked.append(trio.current_time())
        return messages(advertising, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Advertiser, "messages", noted)
    async with open_federation() as federation:
        await federation.two_sites(echo("store"))
        await trio.sleep(60)
        looked.clear()
        await trio.sleep(60)
        assert len(looked) <= 4
