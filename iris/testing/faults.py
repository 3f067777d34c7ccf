"""Faults: what can go wrong, as data.  A schedule of them is drawn, saved, replayed and shrunk.

A fault begins ``at`` so many seconds after the start and is over after ``lasting`` seconds; what it does is in its
docstring.  Hosts are named as the test named them; ``test`` is the test's own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self, TypeAlias, final

import msgspec

from iris.kernel.errors import ConfigError


class FaultBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="fault", tag=str.lower):
    """The common fields of all faults."""

    at: float
    lasting: float

    @property
    def end(self) -> float:
        """Time at which it is over, in seconds after the start."""
        return self.at + self.lasting


class LinkFaultBase(FaultBase, frozen=True, kw_only=True):
    """A fault between two groups of hosts."""

    near: tuple[str, ...]
    far: tuple[str, ...]

    @property
    def where(self) -> str:
        """The two groups, for people."""
        return f"{' '.join(self.near)} | {' '.join(self.far)}"


class HostFaultBase(FaultBase, frozen=True, kw_only=True):
    """A fault of one host."""

    host: str

    @property
    def where(self) -> str:
        """The host, for people."""
        return self.host


@final
class Partition(LinkFaultBase, frozen=True, kw_only=True):
    """Nothing passes between two groups of hosts; with ``one_way``, nothing from the first to the second.

    TCP keeps what is sent meanwhile: it arrives when the partition is over, unless the connection was given up.
    """

    one_way: bool = False


@final
class Flapping(LinkFaultBase, frozen=True, kw_only=True):
    """A partition that comes and goes, each ``period`` seconds."""

    period: float


@final
class Slow(LinkFaultBase, frozen=True, kw_only=True):
    """Frames between two groups take ``least`` to ``greatest`` seconds longer: latency and jitter."""

    least: float
    greatest: float


@final
class Lossy(LinkFaultBase, frozen=True, kw_only=True):
    """Frames between two groups vanish with a ``probability``.  Harsher than TCP, which loses none in between."""

    probability: float


@final
class Broken(LinkFaultBase, frozen=True, kw_only=True):
    """All connections between two groups break; they can be made anew at once."""


@final
class Crash(HostFaultBase, frozen=True, kw_only=True):
    """The programs of a host are killed, and start anew when it is over.

    With ``power`` the machine fails: writes to its disk that were not synchronized are lost, or torn.
    """

    power: bool = False


@final
class Stall(HostFaultBase, frozen=True, kw_only=True):
    """The programs of a host stand still, as after SIGSTOP."""


@final
class SlowReader(HostFaultBase, frozen=True, kw_only=True):
    """A host reads nothing from the network, while its programs run and send."""


@final
class WrongClock(HostFaultBase, frozen=True, kw_only=True):
    """The date of a host is wrong by ``seconds``."""

    seconds: float


@final
class SlowDisk(HostFaultBase, frozen=True, kw_only=True):
    """Calls in threads of a host take ``seconds`` longer."""

    seconds: float


@final
class FullDisk(HostFaultBase, frozen=True, kw_only=True):
    """The disk of a host takes nothing more."""


Fault: TypeAlias = (
    Partition | Flapping | Slow | Lossy | Broken | Crash | Stall | SlowReader | WrongClock | SlowDisk | FullDisk
)

LINK_FAULTS: Final = (Partition, Flapping, Slow, Broken)
HOST_FAULTS: Final = (Crash, Stall, SlowReader, WrongClock, SlowDisk, FullDisk)


def describe(fault: Fault) -> str:
    """Return one line about a fault."""
    known = ("at", "lasting", "near", "far", "host")
    more = [
        name if value is True else f"{name}={value:.3g}"
        for name, value in msgspec.structs.asdict(fault).items()
        if name not in known and value is not False
    ]
    return " ".join([type(fault).__name__, fault.where, f"for {fault.lasting:.3g} s", *more])


@final
class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of one run, in the order in which they begin.

    Attributes:
        seed: the seed of everything else that is random.
        seconds: seconds for which there are faults; then everything is whole again.
        faults: the faults that happen.
    """

    seed: int
    seconds: float
    faults: tuple[Fault, ...] = ()

    def save(self, path: Path) -> None:
        """Write it to a file, as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it from a file.

        Raises:
            ConfigError: there is no such file, or it holds no schedule.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{path} is no schedule of faults: take a file that a failed simulation has saved ({error})"
            ) from None


@final
class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The distributions that a simulation draws its faults from.

    Attributes:
        kinds: the classes of faults; one that stands there twice is drawn twice as often.
        pause: mean seconds from the beginning of one fault to that of the next.
        lasting: least and greatest seconds that one lasts; short ones are as frequent as long ones.
        spared: hosts that have no fault of their own.  Their links have.
    """

    OF_TEST: ClassVar[str] = "test"

    kinds: tuple[type[Fault], ...]
    pause: float = 60.0
    lasting: tuple[float, float] = (0.05, 30.0)
    spared: tuple[str, ...] = ()

    def draw(self, chance: random.Random, at: float, hosts: Sequence[str], faulty: Collection[str]) -> Fault | None:
        """Draw the fault that begins at a time.

        Args:
            chance: the random numbers that it is drawn with.
            at: seconds after the start, to the millisecond.
            hosts: the hosts that there are.
            faulty: hosts that have a fault of their own at the time, and get no second one.

        Returns:
            None if none of that kind is possible now.
        """
        kind = chance.choice(self.kinds)
        low, high = self.lasting
        lasting = round(math.exp(chance.uniform(math.log(low), math.log(high))), 3)
        if issubclass(kind, HostFaultBase):
            own = [host for host in hosts if host not in faulty and host not in self.spared and host != self.OF_TEST]
            return _of_host(kind, chance, at, lasting, chance.choice(own)) if own else None
        if len(hosts) < 2:
            return None
        mixed = chance.sample(list(hosts), len(hosts))
        # Half of the time one host against all others, else any split.
        cut = 1 if chance.random() < 0.5 else chance.randrange(1, len(mixed))
        return _of_links(kind, chance, at, lasting, tuple(sorted(mixed[:cut])), tuple(sorted(mixed[cut:])))


def _of_host(kind: type[Fault], chance: random.Random, at: float, lasting: float, host: str) -> Fault:
    if kind is Crash:
        return Crash(at=at, lasting=lasting, host=host, power=chance.random() < 0.5)
    if kind is WrongClock:
        return WrongClock(at=at, lasting=lasting, host=host, seconds=round(chance.uniform(-30, 30), 3))
    if kind is SlowDisk:
        return SlowDisk(at=at, lasting=lasting, host=host, seconds=round(chance.uniform(0.01, 1.0), 3))
    plain: type[Stall | SlowReader | FullDisk] = kind  # type: ignore[assignment]
    return plain(at=at, lasting=lasting, host=host)


def _of_links(
    kind: type[Fault], chance: random.Random, at: float, lasting: float, near: tuple[str, ...], far: tuple[str, ...]
) -> Fault:
    if kind is Partition:
        return Partition(at=at, lasting=lasting, near=near, far=far, one_way=chance.random() < 0.4)
    if kind is Flapping:
        return Flapping(at=at, lasting=lasting, near=near, far=far, period=round(chance.uniform(0.05, 2.0), 3))
    if kind is Slow:
        least, greatest = sorted((round(chance.uniform(0, 0.1), 4), round(chance.expovariate(5), 4)))
        return Slow(at=at, lasting=lasting, near=near, far=far, least=least, greatest=greatest)
    if kind is Lossy:
        return Lossy(at=at, lasting=lasting, near=near, far=far, probability=round(chance.uniform(0.001, 0.1), 4))
    return Broken(at=at, lasting=lasting, near=near, far=far)


CALM: Final = Faults(kinds=())
"""No faults: only the order of tasks and the latency differ from seed to seed."""

CHAOS: Final = Faults(kinds=(*LINK_FAULTS, Partition, *HOST_FAULTS, Crash))
"""Everything that happens to programs on real networks and machines, once a minute."""
