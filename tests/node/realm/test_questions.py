"""Rounds of questions: a slow node is late, and holds up nobody."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.node.operators import ask_report
from iris.node.realm import open_survey
from iris.node.report import NodeReport
from iris.testing import open_network


async def test_a_slow_node_is_late_and_the_others_are_shown_in_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ask_report
    slow: dict[NodeId, float] = {}

    async def ask(node: Node, member: NodeId, timeout: float) -> NodeReport:
        await trio.sleep(slow.get(member, 0.0))
        return await original(node, member, timeout)

    monkeypatch.setattr("iris.node.realm.survey.ask_report", ask)
    async with (
        open_network() as network,
        network.open_node("quick", host="quick") as quick,
        network.open_node("slow") as sluggish,
        network.open_node("operator", host="operator") as operator,
    ):
        await trio.sleep(1)
        slow[sluggish.id] = 1.2
        async with open_survey(operator, timeout=2.0, patience=0.5) as survey:
            began = trio.current_time()
            view = await survey.collect()
            assert trio.current_time() - began < 0.6
            assert [seen.node.node for seen in view.nodes] == [quick.id]
            assert [(absent.node.node, absent.reason, absent.late) for absent in view.silent] == [
                (sluggish.id, "late: no answer for 0.5 s", True)
            ]
            await trio.sleep(1)  # its answer has come, and counts in the next view
            view = await survey.collect()
            assert {seen.node.node for seen in view.nodes} == {quick.id, sluggish.id}
            assert view.silent == ()
            assert [absent.node.node for absent in (await survey.collect()).silent] == [sluggish.id], (
                "asked again, it is late again"
            )
            slow.clear()
            await trio.sleep(2)
            await survey.collect()
            view = await survey.collect()
            assert ({seen.node.node for seen in view.nodes}, view.silent) == ({quick.id, sluggish.id}, ())


async def test_a_node_that_never_answers_is_late_at_first_and_then_silent(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("quick", host="quick") as quick,
        network.open_node("cut", host="cut") as cut,
        network.open_node("operator", host="operator") as operator,
    ):
        await trio.sleep(1)
        network.memory.partition(("cut",), ("quick", "operator"))
        async with open_survey(operator, timeout=1.0, patience=0.5) as survey:
            (absent,) = (await survey.collect()).silent
            assert (absent.node.node, absent.late) == (cut.id, True)
            await trio.sleep(0.6)
            view = await survey.collect()
            assert [seen.node.node for seen in view.nodes] == [quick.id]
            (absent,) = view.silent
            assert (absent.node.node, absent.late) == (cut.id, False)
            assert "no reply from cluster 'iris.nodes' within 1 s" in absent.reason


async def test_leaving_a_survey_leaves_no_question_behind(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("cut", host="cut"),
        network.open_node("operator", host="operator") as operator,
    ):
        await trio.sleep(1)
        network.memory.partition(("cut",), ("operator",))
        async with open_survey(operator, timeout=60.0, patience=0.1) as survey:
            assert len((await survey.collect()).silent) == len(operator._requests._waiting) == 1
        assert operator._requests._waiting == {}
