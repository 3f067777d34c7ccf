"""Seed URLs: the forms in which users say where other nodes are, checked before anybody is asked.

A ``tcp`` or ``ws`` URL is an address; a host name in the first stands for all its A and AAAA records.  The others name
a source that knows the addresses: SRV records, the endpoints of a Service of Kubernetes, a file.  There is one form for
each, and none has options.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import read_port
from iris.kernel.transport import check_url

SRV: Final = "dns+srv"
FILE: Final = "file"
KUBERNETES: Final = "kubernetes"

LONGEST_NAME: Final = 253
"""Characters of a name in DNS (RFC 1035, section 2.3.4)."""

_LONGEST_PATH: Final = 4095

_SCHEME = re.compile(r"([a-z+]+)://(.*)\Z", re.DOTALL)
_NAME = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?\Z"
)
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SERVICE = re.compile(rf"(?P<namespace>{_LABEL})?/(?P<service>{_LABEL})(?::(?P<port>{_LABEL}))?\Z")


@final
class ServiceUrl(NamedTuple):
    """The parts of ``kubernetes://NAMESPACE/SERVICE:PORT``."""

    namespace: str
    """Empty: that of the pod."""
    service: str
    port: str
    """Number, or name in the Service.  Empty: the one that is named ``iris``, or the only one."""


def is_name(text: str) -> bool:
    """Return whether a text has the form of a name in DNS, or of an IPv4 address."""
    return len(text.rstrip(".")) <= LONGEST_NAME and _NAME.match(text) is not None


def source_of(seed: str) -> str:
    """Return the scheme of a seed that names a source; an empty string for an address."""
    match = _SCHEME.match(seed)
    return match[1] if match is not None and match[1] in (SRV, FILE, KUBERNETES) else ""


def place_of(seed: str) -> str:
    """Return what stands behind the scheme of a seed."""
    return seed.partition("://")[2]


def split_service(seed: str) -> ServiceUrl:
    """Return the parts of a ``kubernetes`` seed.

    Raises:
        ConfigError: it has another form.
    """
    match = _SERVICE.match(place_of(seed))
    if match is None or ((match["port"] or "").isdigit() and not read_port(match["port"])):
        raise ConfigError(
            f"{seed!r} names no Service: use kubernetes://NAMESPACE/SERVICE, or kubernetes:///SERVICE for the "
            "namespace of the pod; behind it may stand :PORT, a number or a name"
        )
    return ServiceUrl(match["namespace"] or "", match["service"], match["port"] or "")


def check_seed(seed: str, check_address: Callable[[str], str] = check_url) -> str:
    """Return ``seed`` if it has the form of an address, or of a source of addresses.

    Args:
        seed: the seed.
        check_address: returns an address that can be dialled, or raises ConfigError.

    Raises:
        ConfigError: it has neither; the message names the form.
    """
    source = source_of(seed) if isinstance(seed, str) else ""
    place = place_of(seed) if source else ""
    if source == KUBERNETES:
        split_service(seed)
    elif source == SRV:
        if not is_name(place):
            raise ConfigError(f"{seed!r} is no name in DNS: use dns+srv://_SERVICE._tcp.DOMAIN")
    elif source == FILE:
        if not place.startswith("/") or not place.isprintable() or len(place.encode()) > _LONGEST_PATH:
            raise ConfigError(f"{seed!r} is no path: use file:///PATH, from the root and without a host")
    else:
        return check_address(seed)
    return seed
