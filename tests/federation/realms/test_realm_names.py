"""Names of sites where two realms meet: what is said on the link, and what a neighbour may speak of."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from iris.cluster.directory.exports import ExportTable
from iris.cluster.directory.messages import (
    CLUSTER,
    COMPANION,
    TOPIC,
    Export,
    ExportsUpdate,
    Hop,
    RouteAdvertisement,
    exports_untrusted,
)
from iris.cluster.directory.messages import route_untrusted as read_route
from iris.federation.realm_names import inward_untrusted, outward_exports, outward_route, outward_site, split_peer
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.names import NodeId, check_address, cluster_of, is_site, realm_of_site, split_address
from iris.kernel.wire import encode_batch, kinds
from tests.support.messages import arrived, decoded, raw

OURS, THEIRS, THIRD = "0a" * 16, "0b" * 16, "0c" * 16
NODE, OTHER = NodeId("1" * 32), NodeId("2" * 32)
ONE, TWO = bytes.fromhex(NODE), bytes.fromhex(OTHER)
T = TypeVar("T", bound=kinds.Message)


def inward(message: T) -> T:
    return inward_untrusted(message, OURS, THEIRS)


def test_what_leaves_has_its_realm_before_it_and_what_comes_in_has_not() -> None:
    assert outward_site("eu", OURS) == f"{OURS}/eu"
    assert outward_site(f"{THEIRS}/eu", OURS) == f"{THEIRS}/eu"
    for frame in (kinds.Carry, b"frame"), (kinds.CarryRefused, 3):
        kind, content = frame
        sent = arrived(kind, 5, f"{OURS}/eu", ONE, f"{THEIRS}/us", TWO, content)
        assert inward(sent) == arrived(kind, 5, "eu", ONE, f"{THEIRS}/us", TWO, content)
    copy = kinds.Copy(5, f"{THEIRS}/us", TWO, ((f"{OURS}/eu", ONE), (f"{OURS}/ap", TWO)), b"frame")
    assert inward(copy) == kinds.Copy(5, f"{THEIRS}/us", TWO, (("eu", ONE), ("ap", TWO)), b"frame")
    assert inward(kinds.ExportsWanted(f"{OURS}/eu", ONE)) == kinds.ExportsWanted("eu", ONE)


def test_a_route_that_was_told_to_another_realm_can_be_taken_there() -> None:
    route = outward_route(RouteAdvertisement(Hop("ap", OTHER), (Hop("eu", NODE), Hop("ap", OTHER))), THEIRS)
    assert [hop.site for hop in route.path] == [f"{THEIRS}/eu", f"{THEIRS}/ap"]
    assert read_route(inward(route.message())) == route


def test_another_realm_is_told_of_what_it_may_reach_and_of_nothing_else() -> None:
    entries = [Export(CLUSTER, "open", NODE), Export(CLUSTER, "secret", NODE), Export(TOPIC, "open", NODE)]
    contents = ExportTable(Hop("eu", NODE))
    contents.replace(1, {*entries, Export(COMPANION, "", OTHER)})
    (told,) = contents.since(0)

    def outward(export: Export) -> Export | None:
        return export if export.kind == CLUSTER and export.name == "open" else None

    sent = outward_exports(told, THEIRS, outward)
    read = exports_untrusted(inward(sent.message()))
    assert read.origin == Hop(f"{THEIRS}/eu", NODE)
    assert set(read.added) == {Export(CLUSTER, "open", NODE), Export(COMPANION, "", OTHER)}
    gone = ExportsUpdate(Hop("eu", NODE), 1, 2, (), tuple(entries), more=False)
    removed = outward_exports(gone, THEIRS, outward)
    assert removed.removed == (Export(CLUSTER, "open", NODE),)


CARRIED: list[tuple[object, object]] = [
    ("eu", f"{THEIRS}/us"),
    (f"{THEIRS}/eu", f"{THEIRS}/us"),
    (f"{THIRD}/eu", f"{THEIRS}/us"),
    (f"{OURS}/eu", "us"),
    (f"{OURS}/eu", f"{OURS}/us"),
    (f"{OURS}/eu", f"{THIRD}/us"),
    (f"{OURS}/a/b", f"{THEIRS}/us"),
    (f"{OURS}/", f"{THEIRS}/us"),
    (f"{OURS}/eu", f"{THEIRS}/u s"),
    (None, f"{THEIRS}/us"),
    (f"{OURS}/eu", 7),
]


@pytest.mark.parametrize(("site", "source"), CARRIED)
def test_a_frame_that_is_not_from_there_to_here_is_refused(site: object, source: object) -> None:
    for kind, content in ((kinds.Carry, b""), (kinds.CarryRefused, 1)):
        with pytest.raises(RemoteProtocolError):
            inward(arrived(kind, 5, site, ONE, source, TWO, content))


@pytest.mark.parametrize(
    "message",
    [
        raw(kinds.Route, "eu", ONE, (("eu", ONE),)),
        raw(kinds.Route, f"{OURS}/eu", ONE, ((f"{OURS}/eu", ONE),)),
        raw(kinds.Route, f"{THEIRS}/eu", ONE, ((f"{THEIRS}/eu", ONE), (f"{THIRD}/eu", TWO))),
        raw(kinds.Route, f"{THEIRS}/eu", ONE, ((f"{THEIRS}/eu", ONE), ("us", TWO))),
        raw(kinds.Route, f"{THEIRS}/eu", ONE, ((5, ONE),)),
        raw(kinds.Route, f"{THEIRS}/eu", ONE, None),
        kinds.Exports("eu", ONE, 0, 1, (), (), False),
        kinds.Exports(f"{THIRD}/eu", ONE, 0, 1, (), (), False),
        kinds.ExportsWanted(f"{THEIRS}/eu", ONE),
        kinds.ExportsWanted("eu", ONE),
        raw(kinds.Copy, 5, "eu", ONE, ((f"{OURS}/eu", TWO),), b""),
        raw(kinds.Copy, 5, f"{THIRD}/eu", ONE, ((f"{OURS}/eu", TWO),), b""),
        raw(kinds.Copy, 5, f"{THEIRS}/eu", ONE, ((f"{OURS}/eu", TWO), ("eu", TWO)), b""),
        raw(kinds.Copy, 5, f"{THEIRS}/eu", ONE, ((f"{THIRD}/eu", TWO),), b""),
        raw(kinds.Copy, 5, f"{THEIRS}/eu", ONE, ((7, TWO),), b""),
        raw(kinds.Copy, 5, f"{THEIRS}/eu", ONE, None, b""),
        kinds.Allowed((">",), (">",), (">",)),
    ],
)
def test_a_realm_speaks_of_its_own_sites_only(message: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        inward(decoded(encode_batch([message]))[0])


@pytest.mark.parametrize(
    ("address", "parts", "name"),
    [
        ("databases", ("", "databases", ""), "databases"),
        ("databases@eu", ("", "databases", "eu"), "databases"),
        ("acme/databases", ("acme", "databases", ""), "databases"),
        ("acme/databases@eu", ("acme", "databases", "eu"), "databases"),
    ],
)
def test_an_address_has_three_parts(address: str, parts: tuple[str, str, str], name: str) -> None:
    assert split_address(check_address(address)) == parts
    assert cluster_of(address) == name


@pytest.mark.parametrize("address", ["/x", "a/", "a/b/c", "a b/c", "a/@eu", "a/b@", "a/b@c/d", "@eu"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a"):
        check_address(address)


def test_a_site_of_another_realm_has_a_fingerprint_before_it() -> None:
    assert [is_site(site) for site in ("eu", f"{THEIRS}/eu")] == [True, True]
    assert not any(map(is_site, ("acme/eu", f"{THEIRS}/", f"{THEIRS}/a/b", "/eu", "", 5, None)))
    assert (realm_of_site("eu"), realm_of_site(f"{THEIRS}/eu")) == ("", THEIRS)


def test_a_peer_may_be_of_another_realm() -> None:
    assert split_peer("ws://h:1/g") == ("", "ws://h:1/g")
    assert split_peer("acme/ws://h:1/g") == ("acme", "ws://h:1/g")
    assert split_peer("nonsense") == ("", "nonsense")
