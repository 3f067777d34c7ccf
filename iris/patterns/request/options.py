"""Options of requests: what few callers need, as one value that is checked once."""

from __future__ import annotations

from typing import Final, final

from msgspec import Struct
from msgspec.structs import force_setattr

from iris.cluster.balancing import AtSite
from iris.cluster.membership import Member
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId, check_key, check_name, is_node_id
from iris.kernel.numerals import as_float, shown
from iris.patterns.priority import PriorityName, check_priority


@final
class RequestOptions(Struct, frozen=True, kw_only=True):
    """Options of one ``Node.request``, or of a ``Service``'s client: how often it may run, and who is asked first.

    Attributes:
        idempotent: True if the handler's effect is the same when it runs twice.  The request is repeated within its
            timeout then.
        idempotency_key: 1 to 256 bytes that name one piece of work, within this node's cluster and the operation.  A
            bridge keeps the outcome of the first request with the key for as long as the service states (``Outcomes``),
            and every later request gets it, from any member, also after the death of members, callers and bridge.
            Repeated as with ``idempotent``.
        hedge: seconds after which a second member is asked as well and the first reply counts: below the slowest few
            per cent of the replies.  For 5 % of the requests at most.  Needs ``idempotent`` or ``idempotency_key``.
            None: never.
        priority: ``low`` is refused first by busy members, ``high`` last.  None: the priority of the request served
            here.
        prefer: member asked as long as it can be reached and work does not wait for a second there, at whatever site;
            then others.  From ``members``, ``watch`` or an earlier answer.
        prefer_site: site whose members are asked as long as one can be reached and work does not wait for 0.25 s there;
            then others, in the order of ``open_node``.

    Raises:
        ConfigError: a value is malformed; ``hedge`` is given for requests that may not run twice; or both ``prefer``
            and ``prefer_site`` are given.
    """

    idempotent: bool = False
    idempotency_key: str | None = None
    hedge: float | None = None
    priority: PriorityName | None = None
    prefer: Member | NodeId | None = None
    prefer_site: str | None = None

    def __post_init__(self) -> None:
        if self.idempotent is not True and self.idempotent is not False:
            raise ConfigError(f"idempotent is {shown(self.idempotent)}: use True or False")
        key = self.idempotency_key
        if key is not None and (check_key(key) == "" or not key.isprintable()):
            raise ConfigError(f"idempotency_key is {key!r}: use 1 to 256 bytes of printable text")
        if self.hedge is not None:
            seconds = as_float(self.hedge)
            if not seconds > 0:
                raise ConfigError(f"hedge is {shown(self.hedge)}: use seconds above 0")
            if not self.idempotent and key is None:
                raise ConfigError(
                    "hedge is for requests with idempotent=True or an idempotency_key only: two members may run them"
                )
            force_setattr(self, "hedge", seconds)
        check_priority(self.priority)
        check_preference(self.prefer, self.prefer_site)


def check_preference(prefer: Member | NodeId | None, prefer_site: str | None) -> None:
    """Raise ConfigError unless a member, a site or neither is preferred."""
    if prefer_site is not None:
        check_name(prefer_site, "site")
        if prefer is not None:
            raise ConfigError("prefer and prefer_site exclude each other: prefer names one member, at any site")
    elif prefer is not None and not isinstance(prefer, Member) and not is_node_id(prefer):
        raise ConfigError(f"prefer is {prefer!r}: use a member, as node.members returns them, or its id")


def preference_of(prefer: Member | NodeId | None, prefer_site: str | None) -> NodeId | AtSite | None:
    """Return the member, or the site, that is asked first; both were checked."""
    if prefer_site is not None:
        return AtSite(prefer_site)
    return prefer.node if isinstance(prefer, Member) else prefer


PLAIN: Final = RequestOptions()
"""Options of a request without any."""

REPEATED: Final = RequestOptions(idempotent=True)
"""Options of a request that may run twice."""
