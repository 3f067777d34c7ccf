"""Errors that Iris does not expect say what to report, and no others do."""

from __future__ import annotations

import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.kernel.tasks.background import open_background
from iris.kernel.unexpected import note_unexpected, noting_unexpected
from iris.kernel.wire.payload import decode_payload_untrusted

REPORT = "Iris did not expect this error. Please report the whole traceback, what was being done, and: iris-mesh "


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def test_it_is_said_once_and_with_the_versions() -> None:
    error = KeyError("inside")
    note_unexpected(error)
    note_unexpected(error)
    (note,) = notes(error)
    assert note.startswith(REPORT)
    assert f"; trio {trio.__version__}; " in note
    assert "; Python 3." in note


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("x"),
        PermissionError("x"),
        trio.ClosedResourceError("x"),
        trio.TooSlowError("x"),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
    ids=repr,
)
def test_it_is_not_said_of_what_is_raised_on_purpose_or_by_the_system(error: BaseException) -> None:
    note_unexpected(BaseExceptionGroup("together", [error]))
    assert notes(error) == []


async def test_an_error_of_a_background_task_says_it_and_one_of_the_block_does_not() -> None:
    async def task() -> None:
        raise KeyError("inside")

    async def block(error: Exception | None) -> None:
        async with open_background() as nursery:
            if error is not None:
                raise error
            nursery.start_soon(task)
            await trio.sleep_forever()

    with pytest.raises(KeyError) as inside:
        await block(None)
    assert notes(inside.value)[0].startswith(REPORT)
    with pytest.raises(ValueError, match="mine") as mine:
        await block(ValueError("mine"))
    assert notes(mine.value) == []


def test_of_errors_that_leave_a_node_it_is_said_where_the_code_of_iris_raised_them() -> None:
    def fail_in_iris() -> None:
        decode_payload_untrusted(None)  # type: ignore[arg-type]

    def fail() -> None:
        with noting_unexpected():
            try:
                fail_in_iris()
            except AttributeError as error:
                raise ExceptionGroup("together", [error, ValueError("mine")]) from None

    with pytest.raises(ExceptionGroup) as caught:
        fail()
    inside, mine = caught.value.exceptions
    assert notes(inside)[0].startswith(REPORT)
    assert notes(mine) == []
