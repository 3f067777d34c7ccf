"""Reports of a bridge's members on each other, and answers that are none."""

from __future__ import annotations

import pytest

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.pubsub.queues.bridge_members import _members_untrusted

SHARD = {"address": "bridge-0", "of": 2}


def test_members_are_those_with_shards_and_those_they_know() -> None:
    assert _members_untrusted({"shards": [SHARD], "known": [[0, "bridge-0"], [1, "bridge-1"]]}) == {
        "bridge-0": 2,
        "bridge-1": 2,
    }
    assert _members_untrusted({"shards": [], "known": [[1, "bridge-1"]]}) == {"bridge-1": 0}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {"shards": [SHARD]},
        {"shards": {}, "known": []},
        {"shards": [SHARD | {"of": "2"}], "known": []},
        {"shards": [SHARD | {"address": "no name"}], "known": []},
        {"shards": ["bridge-0"], "known": []},
        {"shards": [SHARD], "known": [["1", "bridge-1"]]},
        {"shards": [SHARD], "known": [[1, "no name"]]},
        {"shards": [SHARD], "known": [[1]]},
    ],
)
def test_what_is_not_understood_is_refused(payload: object) -> None:
    with pytest.raises(RemoteProtocolError, match="in a form that is not understood"):
        _members_untrusted(payload)
