"""Linearizability of registers, against tables and against every order there is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.testing.checks.history import History, Operation, find_violation


def read(value: object, begun: int, ended: int | None) -> Operation:
    return Operation(key="k", kind="read", value=value, begun=begun, ended=ended, host="h")


def write(value: object, begun: int, ended: int | None) -> Operation:
    return Operation(key="k", kind="write", value=value, begun=begun, ended=ended, host="h")


def swap(expected: object, value: object, result: bool, begun: int, ended: int | None) -> Operation:
    return Operation(
        key="k", kind="swap", expected=expected, value=value, result=result, begun=begun, ended=ended, host="h"
    )


@pytest.mark.parametrize(
    ("operations", "holds"),
    [
        ([], True),
        ([write(1, 1, 2), read(1, 3, 4)], True),
        ([write(1, 1, 2), read(0, 3, 4)], False),
        ([write(1, 1, 4), read(0, 2, 3)], True),
        ([write(1, 1, 6), read(1, 2, 3), read(0, 4, 5)], False),
        ([write(1, 1, None), read(0, 2, 3), read(1, 4, 5)], True),
        ([write(1, 1, None), read(1, 2, 3), read(0, 4, 5)], False),
        ([swap(0, 1, True, 1, 2), swap(0, 2, True, 3, 4)], False),
        ([swap(0, 1, True, 1, 4), swap(0, 2, False, 2, 3), read(1, 5, 6)], True),
        ([swap(0, 1, False, 1, None), read(1, 2, 3)], True),
        ([write([1], 1, 2), read([1], 3, 4)], True),
    ],
)
def test_histories_that_one_register_could_have_and_others(operations: list[Operation], holds: bool) -> None:
    assert (find_violation(operations, 0) == []) is holds


def explained(operations: list[Operation]) -> bool:
    """Try every order of every subset that has all operations whose outcome is known."""
    known = [operation for operation in operations if operation.ended is not None]
    unknown = [operation for operation in operations if operation.ended is None]
    for count in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *some]):
                if any(
                    later.ended is not None and later.ended < earlier.begun
                    for earlier, later in itertools.combinations(order, 2)
                ):
                    continue
                value, fits = 0, True
                for operation in order:
                    if operation.kind == "read":
                        fits = fits and operation.value == value
                    elif operation.kind == "write":
                        value = operation.value
                    else:
                        matches = operation.expected == value
                        fits = fits and (operation.ended is None or operation.result == matches)
                        value = operation.value if matches else value
                if fits:
                    return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(0, 5))
    moments = draw(st.permutations(range(2 * count)))
    operations: list[Operation] = []
    for number in range(count):
        begun, ended = sorted(moments[2 * number : 2 * number + 2])
        kind = draw(st.sampled_from(("read", "write", "swap")))
        end = None if kind != "read" and draw(st.integers(0, 3)) == 0 else ended
        value, other = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        if kind == "read":
            operations.append(read(value, begun, end))
        elif kind == "write":
            operations.append(write(value, begun, end))
        else:
            operations.append(swap(other, value, draw(st.booleans()), begun, end))
    return operations


@given(histories())
def test_the_search_finds_an_order_exactly_if_there_is_one(operations: list[Operation]) -> None:
    assert (find_violation(operations, 0) == []) is explained(operations)


async def test_a_history_notes_what_came_of_requests_and_names_what_fits_no_order() -> None:
    history = History()

    async def told(value: object) -> object:
        return value

    async def fails() -> object:
        raise OSError("gone")

    await history.write("a", 1, told(None))
    with pytest.raises(OSError, match="gone"):
        await history.write("a", 2, fails())
    assert await history.read("a", told(2)) == 2
    history.check_linearizable()
    assert await history.read("a", told(1)) == 1
    with pytest.raises(AssertionError, match=r"the register 'a' is not linearizable(?s:.*)read 'a' = 1"):
        history.check_linearizable()


def test_long_histories_are_searched_in_no_time() -> None:
    operations: list[Operation] = []
    for number in range(3000):
        operations += [write(number, 4 * number, 4 * number + 2), read(number, 4 * number + 1, 4 * number + 3)]
    assert find_violation(operations, 0) == []
    operations.append(read(-1, 20_000, 20_001))
    assert find_violation(operations, 0)[-1].value == -1
