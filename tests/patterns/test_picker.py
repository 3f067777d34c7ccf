"""Hints of the error for a cluster without members about the clusters that there are."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

import iris
from iris.patterns.picker import known_instead
from tests.support.stages import open_stage

MANY = [f"c{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("cluster", "clusters", "text"),
    [
        ("bikess", ["bikes", "shops"], "did you mean 'bikes'? 'iris clusters' shows all"),
        ("price", ["bikes", "prices", "pricey"], "did you mean 'pricey' or 'prices'? 'iris clusters' shows all"),
        ("acme/bikess", ["acme/bikes", "bikes"], "did you mean 'acme/bikes'? 'iris clusters' shows all"),
        ("shops", ["bikes", "iris.nodes"], "this node knows of 'bikes': see 'iris clusters'"),
        ("x", MANY, "this node knows of 'c0', 'c1', 'c2', 'c3', 'c4' and 3 more: see 'iris clusters'"),
        ("bikes", ["bikes", "bikess"], ""),
        ("bikes", ["iris.nodes"], "this node knows of no cluster: 'iris doctor' says whether it is linked to others"),
        ("name-0", [f"name-{number}" for number in range(1, 5000)], "did you mean 'name-"),
    ],
)
def test_a_caller_that_asked_for_another_name_is_told_which_there_are(
    cluster: str, clusters: list[str], text: str
) -> None:
    said = known_instead(cluster, clusters)
    assert said.startswith(text)
    assert bool(said) == bool(text)
    assert len(said) < 200


async def test_names_are_a_note_of_the_error_and_not_in_what_others_are_told(autojump_clock: MockClock) -> None:
    asking = iris.Service("asking")

    async with open_stage() as stage:
        member = await stage.member(iris.Service("secrets"))

        @asking.request
        async def ask(request: iris.Request) -> object:
            return await member.request("secret", request.payload)

        await stage.join(member, asking)
        desk = await stage.node("desk")
        await desk.wait_for("asking")
        with pytest.raises(iris.RemoteError, match="NoSuchCluster") as caught:
            await desk.request("asking", "x")
        assert caught.value.message == "no reachable member serves the cluster 'secret'"
        with pytest.raises(iris.NoSuchCluster) as own:
            await desk.request("secret", "x")
        assert str(own.value) == "no reachable member serves the cluster 'secret'"
        assert own.value.__notes__ == ["did you mean 'secrets'? 'iris clusters' shows all"]
        with pytest.raises(iris.RequestTimeout) as late:
            await desk.wait_for("secret", timeout=1)
        assert str(late.value) == "cluster 'secret' has 0 of 1 members after 1 s"
        assert late.value.__notes__ == ["did you mean 'secrets'? 'iris clusters' shows all"]
