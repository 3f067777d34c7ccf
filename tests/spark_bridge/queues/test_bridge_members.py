"""Reports of a bridge's members on each other, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.bridge_protocol import MemberShards, read_reply
from iris.patterns.pubsub.queues.bridge_members import members_of

SHARD: dict[str, Any] = {
    "id": "0@0000000000000000", "number": 0, "address": "bridge-0", "earliest": 0, "next": 0, "size": 0,
    "timestamp": 0, "of": 2, "gap": -1, "term": 1,
}  # fmt: skip


def test_members_are_those_with_shards_and_those_they_know() -> None:
    told = read_reply(MemberShards, {"shards": [SHARD], "known": {"0": "bridge-0", "1": "bridge-1"}})
    assert members_of(told) == {"bridge-0": 2, "bridge-1": 2}
    assert members_of(read_reply(MemberShards, {"shards": [], "known": {"1": "bridge-1"}})) == {"bridge-1": 0}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {"shards": [SHARD]},
        {"shards": {}, "known": {}},
        {"shards": [SHARD | {"of": "2"}], "known": {}},
        {"shards": [SHARD | {"address": "no name"}], "known": {}},
        {"shards": ["bridge-0"], "known": {}},
        {"shards": [SHARD], "known": {"one": "bridge-1"}},
        {"shards": [SHARD], "known": {"1": "no name"}},
        {"shards": [SHARD], "known": [[1, "bridge-1"]]},
    ],
)
def test_what_is_not_understood_is_refused(payload: object) -> None:
    with pytest.raises(RemoteProtocolError, match="in a form that is not understood"):
        read_reply(MemberShards, payload)
