"""A fork: the child can use neither sessions nor half-finished handshakes; the parent notices nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from iris.kernel.errors import LocalProtocolError
from iris.security.noise import HandshakeState
from iris.security.secret import Secret
from tests.support.forks import in_child
from tests.support.realms import WALL, TestRealm
from tests.support.sessions import finish, held_by, sessions, start


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except LocalProtocolError as error:
        return "parent process" in str(error)
    return False


def test_a_session_raises_in_the_child_of_a_fork_and_works_on_in_the_parent() -> None:
    near, far = sessions()
    frame = far.seal(b"before")
    assert in_child(lambda: refuses(lambda: near.seal(b"x")))
    assert in_child(lambda: refuses(lambda: near.open_untrusted(frame)))
    assert in_child(lambda: near.closed and far.closed)
    assert near.open_untrusted(frame) == b"before"
    assert far.open_untrusted(near.seal(b"after")) == b"after"
    assert near.statistics().sent_frames == 1


def test_the_keys_are_gone_from_the_sessions_of_the_child() -> None:
    near, _ = sessions()
    assert len(held_by(near, Secret)) == 2
    assert in_child(lambda: near.closed and not held_by(near, Secret))


def test_closing_in_the_child_does_not_hide_the_reason() -> None:
    near, _ = sessions()

    def close_and_seal() -> bool:
        near.close()
        return refuses(lambda: near.seal(b"x"))

    assert in_child(close_and_seal)


def test_half_finished_handshakes_raise_in_the_child_too() -> None:
    realm = TestRealm()
    initiator, responder = start(realm.identity("orders"), realm.identity("billing"))
    responder.receive_first_untrusted(initiator.frame)
    assert in_child(lambda: refuses(lambda: responder.respond(b"", wall_now=WALL)))
    assert in_child(lambda: refuses(lambda: initiator.receive_untrusted(b"", now=0.0, wall_now=WALL)))


def test_a_grandchild_is_no_better_off() -> None:
    near, _ = sessions()
    assert in_child(lambda: in_child(lambda: refuses(lambda: near.seal(b"x"))))


def test_a_child_can_make_sessions_of_its_own() -> None:
    assert in_child(lambda: (pair := sessions())[1].open_untrusted(pair[0].seal(b"x")) == b"x")


def test_sessions_that_are_gone_are_not_remembered() -> None:
    near, far = sessions()
    gone = weakref.ref(near), weakref.ref(far)
    del near, far
    gc.collect()
    assert [session() for session in gone] == [None, None]


@pytest.mark.parametrize("finished", [True, False])
def test_the_finished_handshake_holds_no_keys(finished: bool) -> None:
    realm = TestRealm()
    initiator, responder = start(realm.identity("orders"), realm.identity("billing"))
    if finished:
        finish(initiator, responder)
    assert bool(held_by(initiator, HandshakeState)) is not finished
