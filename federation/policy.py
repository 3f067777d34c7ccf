"""What a gateway lets through: allow-lists of clusters and topics, as patterns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final, final

from iris.cluster.site_messages import CLUSTER, TOPIC, Export
from iris.kernel.errors import ConfigError
from iris.patterns.topics import is_pattern, is_topic
from iris.security.rights import covers

_EVERYTHING: Final = (">",)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Allow-lists.  Patterns are those of topics: ``*`` is one token, a last ``>`` the rest.

    Args:
        exports: clusters of the own site that other sites may use; by default none.
        imports: clusters of other sites that the own site may use, and sites behind it see; by default all.
        export_topics: topics of which events may leave the own site; by default none.  A subscription elsewhere is
            served if all that its pattern matches may leave.
        import_topics: topics of which events may come in; by default all.
        transit: other sites may reach each other through this one.

    Raises:
        ConfigError: something is not a pattern.
    """

    exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = _EVERYTHING
    export_topics: tuple[str, ...] = ()
    import_topics: tuple[str, ...] = _EVERYTHING
    transit: bool = True

    def __post_init__(self) -> None:
        for what in ("exports", "imports", "export_topics", "import_topics"):
            patterns: Iterable[str] = getattr(self, what)
            for pattern in patterns:
                if not (is_pattern(pattern) or is_topic(pattern)):
                    raise ConfigError(
                        f"gateway: {pattern!r} in {what} is not a pattern: use tokens joined by dots, '*' for one, a "
                        "last '>' for the rest"
                    )

    @staticmethod
    def imports_everything() -> tuple[str, ...]:
        """Return the list that lets everything in."""
        return _EVERYTHING

    def may_export(self, cluster: str) -> bool:
        """Tell whether other sites may use a cluster of this one."""
        return _allow(self.exports, cluster)

    def may_want(self, pattern: str) -> bool:
        """Tell whether a subscription of this site is shown to other sites: all that it matches may come in."""
        return _allow(self.import_topics, pattern)

    def may_import(self, export: Export) -> bool:
        """Tell whether something that another site exports is taken."""
        match export.kind:
            case kind if kind == CLUSTER:
                return _allow(self.imports, export.name)
            case kind if kind == TOPIC:
                return _allow(self.export_topics, export.name)
            case _:
                return True


def _allow(patterns: Iterable[str], name: str) -> bool:
    return any(covers(pattern, name) for pattern in patterns)
