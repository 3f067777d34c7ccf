"""History: what clients have asked of registers and been told, and whether one copy could have told them that.

A history is *linearizable* if each operation could have taken effect at one moment between its beginning and its end.
The search is that of Wing and Gong (1993) with Lowe's memory of configurations that were tried (2017), one key at a
time, as Porcupine does it (Horn and Kroening, 2015).  An operation whose outcome nobody knows, because the request
failed, may have taken effect at any moment after its beginning, or never.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Hashable
from typing import Any, Final, Literal, TypeVar, final

from iris.testing.machine import HOST
from iris.testing.trace import TRACE

T = TypeVar("T")

_MOST_CONFIGURATIONS: Final = 2_000_000


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class Operation:
    """One operation on the register of a key.

    Attributes:
        key: the key of the register.
        kind: ``swap`` sets it to ``value`` if it is ``expected``; its result says whether it was.
        value: the value that it sets it to; of a read, the one that it has returned.
        expected: the expected value of a ``swap``; else None.
        result: True if a ``swap`` has set the value.
        begun: position in the order of all beginnings and ends.
        ended: likewise; None: its outcome is not known.
        host: the host that asked.
    """

    key: Hashable
    kind: Literal["read", "write", "swap"]
    value: Any = None
    expected: Any = None
    result: bool = False
    begun: int
    ended: int | None = None
    host: str

    def __str__(self) -> str:
        text = {
            "read": f"read {self.key!r} = {self.value!r}",
            "write": f"write {self.key!r} = {self.value!r}",
            "swap": f"swap {self.key!r} from {self.expected!r} to {self.value!r}: {self.result}",
        }[self.kind]
        return f"{self.host}: {text}{'' if self.ended is not None else ' (outcome unknown)'}"


@final
class History:
    """Operations on registers, by key, as the clients of a test ask them.

    Each method awaits the request that it is given, notes what came of it and returns that; what the request raises
    comes out, and the outcome is unknown.
    """

    def __init__(self) -> None:
        self.operations: Final[list[Operation]] = []
        self._moment = 0

    async def read(self, key: Hashable, request: Awaitable[T]) -> T:
        """Await a request that returns the value of a register."""
        operation = self._begin(Operation(key=key, kind="read", begun=self._next(), host=HOST.get()))
        operation.value = value = await request
        self._end(operation)
        return value

    async def write(self, key: Hashable, value: object, request: Awaitable[T]) -> T:
        """Await a request that sets a register."""
        operation = self._begin(Operation(key=key, kind="write", value=value, begun=self._next(), host=HOST.get()))
        came = await request
        self._end(operation)
        return came

    async def swap(self, key: Hashable, expected: object, value: object, request: Awaitable[bool]) -> bool:
        """Await a request that sets a register if it has the ``expected`` value, and returns whether it had."""
        operation = self._begin(
            Operation(key=key, kind="swap", value=value, expected=expected, begun=self._next(), host=HOST.get())
        )
        operation.result = await request
        self._end(operation)
        return operation.result

    def check_linearizable(self, initial: object = None) -> None:
        """Check that every register has behaved as a single copy that does one operation at a time.

        Args:
            initial: the value of each register at first.

        Raises:
            AssertionError: one has not; the message names the operations that cannot be put in an order.
            RuntimeError: the search for an order has taken too long: too many operations of one key at the same time,
                or with unknown outcomes.
        """
        by_key: dict[Hashable, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if operation.kind != "read" or operation.ended is not None:
                by_key[operation.key].append(operation)
        for key, operations in by_key.items():
            stuck = find_violation(operations, initial)
            if stuck:
                listed = "".join(f"\n  {operation}" for operation in stuck)
                raise AssertionError(f"the register {key!r} is not linearizable: no order explains{listed}")

    def _next(self) -> int:
        self._moment += 1
        return self._moment

    def _begin(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation

    def _end(self, operation: Operation) -> None:
        operation.ended = self._next()
        trace = TRACE.get(None)
        if trace is not None:
            trace.note("note", operation.host, str(operation).partition(": ")[2])


def find_violation(operations: list[Operation], initial: object) -> list[Operation]:
    """Return nothing if operations on one register are linearizable, else those around which no order is found."""
    order = sorted(operations, key=lambda operation: operation.begun)
    count = len(order)
    needed = sum(1 << place for place, operation in enumerate(order) if operation.ended is not None)
    # A configuration: which operations have taken effect, and the value then.  The lowest place that has not is kept.
    start = (0, _frozen(initial))
    tried: set[tuple[int, object]] = {start}
    waiting: list[tuple[int, object, int]] = [(0, initial, 0)]
    furthest: tuple[int, int] = (-1, 0)
    while waiting:
        done, value, lowest = waiting.pop()
        if done & needed == needed:
            return []
        while done >> lowest & 1:
            lowest += 1
        furthest = max(furthest, ((done & needed).bit_count(), done))
        first_end = None
        for place in range(lowest, count):
            operation = order[place]
            if first_end is not None and operation.begun > first_end:
                break
            if done >> place & 1:
                continue
            if operation.ended is not None and (first_end is None or operation.ended < first_end):
                first_end = operation.ended
        following: list[tuple[int, object, int]] = []
        for place in range(lowest, count):
            operation = order[place]
            if first_end is not None and operation.begun > first_end:
                break
            if done >> place & 1:
                continue
            possible, after = _apply(operation, value)
            if possible:
                configuration = (done | 1 << place, _frozen(after))
                if configuration not in tried:
                    tried.add(configuration)
                    following.append((done | 1 << place, after, lowest))
        if len(tried) > _MOST_CONFIGURATIONS:
            raise RuntimeError(
                f"after {_MOST_CONFIGURATIONS} configurations it is not known whether the register of "
                f"{order[0].key!r} is linearizable: ask for fewer operations at the same time, or of more keys"
            )
        waiting += reversed(following)
    _, done = furthest
    left = [operation for place, operation in enumerate(order) if not done >> place & 1]
    before = [operation for place, operation in enumerate(order) if done >> place & 1]
    known = [operation for operation in left if operation.ended is not None]
    return [*before[-4:], *known[:4]]


def _apply(operation: Operation, value: object) -> tuple[bool, object]:
    match operation.kind:
        case "read":
            return operation.value == value, value
        case "write":
            return True, operation.value
        case "swap":
            matches = operation.expected == value
            if operation.ended is None:
                return True, operation.value if matches else value
            return operation.result == matches, operation.value if matches else value


def _frozen(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
