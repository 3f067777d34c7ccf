"""Frames from other sites that are lost, repeated or changed all the time are reported, once for each site."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from iris.cluster.sites.reports import BAD, FEWEST, PART, WINDOWS, LossReport
from iris.kernel.errors import AuthenticationError
from iris.security.channel.session import Session
from tests.support.federations import reports_of
from tests.support.sessions import sessions


class Line:
    """A session to a site, of which frames are lost, repeated or changed."""

    def __init__(self) -> None:
        self.near, self.far = sessions()

    def carry(self, fine: int, *, lost: int = 0, repeated: int = 0, changed: int = 0) -> None:
        for _ in range(lost):
            self.near.seal(b"x")
        for number in range(fine):
            frame = bytes(self.near.seal(b"x"))
            if number < changed:
                take(self.far, frame[:-1] + bytes((frame[-1] ^ 1,)))
            take(self.far, frame)
            if number < repeated:
                take(self.far, frame)


def take(session: Session, frame: bytes) -> None:
    with contextlib.suppress(AuthenticationError):
        session.open_untrusted(frame)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return reports_of(caplog, "all the time")


@pytest.mark.parametrize("what", ["lost", "repeated", "changed"])
def test_what_happens_again_and_again_is_reported_once(caplog: pytest.LogCaptureFixture, what: str) -> None:
    losses, line, other = LossReport(str.upper), Line(), Line()
    for number in range(40):
        line.carry(50, **{what: FEWEST})
        other.carry(50)
        losses.look([("eu", line.far), ("us", other.far)])
        assert len(reports(caplog)) == (number >= BAD - 1)
    count, wrong = BAD * 50, BAD * FEWEST
    lost, refused = (wrong, 0) if what == "lost" else (0, wrong)
    assert f"from site 'EU' in the last minute {count} came, {lost} were lost and {refused} were" in reports(caplog)[0]


def test_what_happens_now_and_then_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    losses, line = LossReport(), Line()
    for number in range(10 * WINDOWS):
        line.carry(50, lost=1000 if number % WINDOWS < BAD - 1 else 0)
        losses.look([("eu", line.far)])
    assert reports(caplog) == []


@pytest.mark.parametrize(("fine", "lost"), [(FEWEST * PART, FEWEST), (10, FEWEST - 1), (0, 0)])
def test_little_is_not_reported(caplog: pytest.LogCaptureFixture, fine: int, lost: int) -> None:
    losses, line = LossReport(), Line()
    for _ in range(2 * WINDOWS):
        line.carry(fine, lost=lost)
        losses.look([("eu", line.far)])
    assert reports(caplog) == []


def test_sessions_of_one_site_count_together_also_when_they_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossReport()
    for number in range(BAD):
        lines = [Line() for _ in range(FEWEST)]
        for line in lines:
            line.carry(3, lost=1)
        losses.look([("eu", line.far) for line in lines])
        assert len(reports(caplog)) == (number == BAD - 1)


def test_nothing_is_kept_of_a_site_without_sessions() -> None:
    losses, line = LossReport(), Line()
    for _ in range(BAD - 1):
        line.carry(3, lost=FEWEST)
        losses.look([("eu", line.far)])
    assert repr(losses) == "<LossReport: 1 sites, 0 reported>"
    session = weakref.ref(line.far)
    del line
    losses.look([])
    gc.collect()
    assert repr(losses) == "<LossReport: 0 sites, 0 reported>"
    assert session() is None


def test_no_more_sites_are_remembered_than_there_may_be() -> None:
    losses, line = LossReport(), Line()
    for _ in range(BAD + 1):
        line.carry(1, lost=FEWEST)
        losses.look([(f"site-{number}", line.far) for number in range(2000)])
    assert repr(losses) == "<LossReport: 1024 sites, 1024 reported>"
