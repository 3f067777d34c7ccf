"""The forms of seeds."""

from __future__ import annotations

import re

import pytest

from iris.cluster.seed_urls import ServiceUrl, check_seed, source_of, split_service
from iris.kernel.errors import ConfigError


@pytest.mark.parametrize(
    ("seed", "source"),
    [
        ("tcp://10.0.0.1:7000", ""),
        ("tcp://prices:7000", ""),
        ("ws://gate.example.org:443/iris", ""),
        ("dns+srv://_iris._tcp.example.org", "dns+srv"),
        ("dns+srv://_iris._tcp.prices.shop.svc.cluster.local.", "dns+srv"),
        ("dns+srv://prices.service.consul", "dns+srv"),
        ("file:///etc/iris/seeds", "file"),
        ("kubernetes://shop/prices", "kubernetes"),
        ("kubernetes:///prices", "kubernetes"),
        ("kubernetes://shop/prices:7000", "kubernetes"),
        ("kubernetes://shop/prices:iris-tls", "kubernetes"),
    ],
)
def test_the_scheme_of_a_seed_says_who_knows_the_addresses(seed: str, source: str) -> None:
    assert check_seed(seed) == seed
    assert source_of(seed) == source


@pytest.mark.parametrize(
    ("seed", "form"),
    [
        ("dns://prices:7000", "use tcp://HOST:PORT"),
        ("prices:7000", "use tcp://HOST:PORT"),
        ("dns+srv://", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        ("dns+srv://a..b", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        ("dns+srv://a:53", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        ("dns+srv://a/b", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        ("dns+srv://a\n", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        (f"dns+srv://{'a' * 64}.org", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        (f"dns+srv://{'a.' * 127}org", "use dns+srv://_SERVICE._tcp.DOMAIN"),
        ("file://etc/seeds", "use file:///PATH"),
        ("file://", "use file:///PATH"),
        ("file:///a\0b", "use file:///PATH"),
        (f"file:///{'a' * 4096}", "use file:///PATH"),
        ("kubernetes://prices", "use kubernetes://NAMESPACE/SERVICE"),
        ("kubernetes://shop/", "use kubernetes://NAMESPACE/SERVICE"),
        ("kubernetes://shop/prices/x", "use kubernetes://NAMESPACE/SERVICE"),
        ("kubernetes://shop/Prices", "use kubernetes://NAMESPACE/SERVICE"),
        ("kubernetes://shop/prices:0", "use kubernetes://NAMESPACE/SERVICE"),
        ("kubernetes://shop/prices:65536", "use kubernetes://NAMESPACE/SERVICE"),
        ("kubernetes://shop/prices?x=1", "use kubernetes://NAMESPACE/SERVICE"),
        (f"kubernetes://{'a' * 64}/prices", "use kubernetes://NAMESPACE/SERVICE"),
    ],
)
def test_what_has_another_form_is_refused_with_the_right_one(seed: str, form: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(form)):
        check_seed(seed)


def test_a_service_has_the_namespace_of_the_pod_and_its_one_port_unless_it_says_otherwise() -> None:
    assert split_service("kubernetes:///prices") == ServiceUrl("", "prices", "")
    assert split_service("kubernetes://shop/prices:7000") == ServiceUrl("shop", "prices", "7000")
