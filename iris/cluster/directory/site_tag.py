"""Site tag: the site that a node names in handshakes, and the rule that says which nodes may be linked directly.

Nodes link to nodes of their own site.  Gateways also link to gateways of other sites, at addresses of their own; their
tag then begins with ``>``.  Nodes reached through gateways may be anywhere: there the ends do not choose.

A client, a node that is no member of its site, puts ``<`` before it.  Members link to it as it asks them to; two
clients have nothing to say to each other.
"""

from __future__ import annotations

from typing import Final, TypeGuard, final

from msgspec import Struct

from iris.kernel.errors import AuthenticationError
from iris.kernel.names import is_name

_BETWEEN: Final = ">"
_CLIENT: Final = "<"


@final
class SiteTag(Struct, frozen=True, kw_only=True):
    """The site of this node, as it is named on one network.

    Args:
        site: empty if it has no name.
        between: this is the network between the gateways of several sites.
        client: this node is no member of the site.
    """

    site: str = ""
    between: bool = False
    client: bool = False

    @property
    def text(self) -> str:
        """The text that a node sends in its hello."""
        return _BETWEEN + self.site if self.between else _CLIENT + self.site if self.client else self.site

    def check(self, text: str, *, same_realm: bool = True) -> None:
        """Raise AuthenticationError unless a node may be linked to directly, by what it says."""
        if not self.between:
            if not same_realm:
                raise AuthenticationError("nodes of different realms reach each other through gateways")
            if self.client and is_client(text):
                raise AuthenticationError("two clients have nothing to say to each other: one of the two is to serve")
            if text.removeprefix(_CLIENT) != self.site:
                raise AuthenticationError(
                    f"this node is at {_place(self.site)} and the other one at {_place(text)}: nodes of different "
                    "sites reach each other through gateways"
                )
        elif not text.startswith(_BETWEEN):
            raise AuthenticationError("a node that is no gateway has dialled the address for gateways")
        elif text == self.text and same_realm:
            raise AuthenticationError(f"another gateway calls its site {self.site!r}, too, and is not of this site")


def is_tag(value: object) -> TypeGuard[str]:
    """Return whether ``value``, which may come from a peer, can be said of a site."""
    return isinstance(value, str) and (value == _CLIENT or is_name(site_of(value)))


def is_client(text: str) -> bool:
    """Return whether the one who says that is a client."""
    return text.startswith(_CLIENT)


def site_of(text: str) -> str:
    """Return the site that something said is about."""
    return text[1:] if text.startswith((_BETWEEN, _CLIENT)) else text


def _place(text: str) -> str:
    text = text.removeprefix(_CLIENT)
    if not text:
        return "a site without a name"
    return f"gateways, site {site_of(text)!r}" if text.startswith(_BETWEEN) else f"site {text!r}"
