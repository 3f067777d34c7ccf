"""Memory for publishers: so many bytes for each cluster, and for all."""

from __future__ import annotations

from iris.spark_bridge.log.dedup import PublisherMemory


def kept(memory: PublisherMemory[int]) -> set[str]:
    return {name for name in map(str, range(100)) if memory.get(name) is not None}


def test_a_cluster_has_those_that_were_used_last_and_takes_nothing_from_others() -> None:
    memory = PublisherMemory[int](most=1000, most_of_owner=100)
    memory.keep("99", "honest", 1, 40)
    for publisher in range(50):
        memory.keep(str(publisher), "evil", 1, 30)
        assert memory.used("evil") <= 100
    assert kept(memory) == {"47", "48", "49", "99"}
    memory.keep("47", "evil", 2, 30)
    memory.keep("1", "evil", 1, 30)
    assert kept(memory) == {"49", "47", "1", "99"}
    assert memory.get("47") == 2
    assert memory.size == 130


def test_where_all_have_too_much_the_one_that_has_most_forgets() -> None:
    memory = PublisherMemory[int](most=100, most_of_owner=80)
    for publisher in range(8):
        memory.keep(str(publisher), "large", 1, 10)
    memory.keep("8", "small", 1, 10)
    memory.keep("9", "small", 1, 15)
    assert kept(memory) == {"1", "2", "3", "4", "5", "6", "7", "8", "9"}
    assert memory.size == 95


def test_one_that_is_larger_than_what_its_cluster_may_have_is_kept_alone() -> None:
    memory = PublisherMemory[int](most=100, most_of_owner=50)
    memory.keep("1", "a", 1, 10)
    memory.keep("2", "a", 1, 70)
    assert kept(memory) == {"2"}


def test_a_publisher_is_counted_once_as_it_is_now_and_for_whom_it_is_known_to_be_of() -> None:
    memory = PublisherMemory[int](most=1000, most_of_owner=100)
    memory.keep("1", "a", 1, 10)
    memory.keep("1", "", 1, 20)
    assert (memory.used("a"), memory.used("")) == (20, 0)
    memory.keep("1", "b", 1, 5)
    assert (memory.used("a"), memory.used("b"), memory.size) == (0, 5, 5)
    memory.forget("1")
    memory.forget("1")
    memory.keep("2", "b", 1, 5)
    memory.clear()
    assert (memory.size, kept(memory)) == (0, set())
