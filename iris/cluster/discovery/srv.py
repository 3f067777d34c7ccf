"""SRV records (RFC 2782): the hosts and ports of a service, and the addresses of these hosts.

The system's resolver cannot ask for SRV.  dnspython can: it reads ``resolv.conf`` with its search list, as pods need,
repeats by TCP what is too long for UDP, and has read hostile answers for twenty years.  It comes with the extra
``dns``, and is loaded by the first look-up, in its thread.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from iris.cluster.addresses import look_up_in_thread
from iris.cluster.discovery.dns import MAX_ADDRESSES, PATIENCE
from iris.cluster.seed_urls import is_name
from iris.kernel.errors import ConfigError, NotSent

if TYPE_CHECKING:
    from dns.resolver import Resolver

MakeResolver = Callable[[], "Resolver"]
"""Makes what asks the name servers of this machine.  It may block."""


def check_installed(seed: str) -> None:
    """Raise ConfigError if SRV records cannot be asked for here."""
    try:
        found = importlib.util.find_spec("dns.resolver")  # a folder or module of the user's may have the name ``dns``
    except ImportError:
        found = None
    if found is None:
        raise ConfigError(f"{seed} needs dnspython: pip install 'iris-mesh[dns]'")


def system_resolver() -> Resolver:
    """Return a resolver with the name servers and the search list of ``/etc/resolv.conf``."""
    from dns.resolver import Resolver

    return Resolver()


async def ask_srv(seed: str, name: str, make_resolver: MakeResolver) -> tuple[str, ...]:
    """Return the hosts and ports that the SRV records of a name list, as URLs; those of the lowest priority first.

    At most 32 records are taken, of one priority those with the greatest weight.

    Raises:
        NotSent: there is none, or no name server answers; the message says which.
    """
    targets = await look_up_in_thread(partial(_ask, seed, name, make_resolver), seed)
    return tuple(dict.fromkeys(f"tcp://{host}:{port}" for host, port in targets))[:MAX_ADDRESSES]


def _ask(seed: str, name: str, make_resolver: MakeResolver) -> list[tuple[str, int]]:
    import dns.exception
    import dns.resolver

    try:
        answer = make_resolver().resolve(name, "SRV", search=True, lifetime=PATIENCE)
    except dns.resolver.NXDOMAIN:
        raise NotSent(f"{seed}: the name is not known") from None
    except dns.resolver.NoAnswer:
        raise NotSent(f"{seed}: the name has no SRV records") from None
    except dns.resolver.NoNameservers:
        raise NotSent(f"{seed}: no name server has an answer") from None
    except dns.resolver.LifetimeTimeout:
        raise NotSent(f"{seed}: no name server answers within {PATIENCE:g} s") from None
    except (dns.exception.DNSException, OSError, ValueError) as error:  # the last one of what resolv.conf says
        raise NotSent(f"{seed}: the name servers cannot be asked: {error}") from None
    ordered = sorted(answer, key=lambda record: (record.priority, -record.weight))
    targets = [(record.target.to_text(omit_final_dot=True), record.port) for record in ordered]
    found = [(host, port) for host, port in targets if port and is_name(host)]
    if not found:
        raise NotSent(f"{seed}: the SRV records say that there is no such service")
    return found
