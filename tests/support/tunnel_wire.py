"""Two tunnel machines and a link between them that loses, repeats and resets, without tasks or a clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from iris.kernel.config import Config
from iris.kernel.wire import kinds
from iris.patterns.tunnel.machine import TunnelMachine
from iris.patterns.tunnel.states import TunnelState

SMALL = Config(tunnel_window=8192, tunnel_chunk=1024, max_payload=12_000)
"""Limits small enough that a few messages reach them."""


@dataclass
class TwoMachines:
    """``ends[0]`` has opened the tunnel.  ``links[i]`` holds what ``ends[i]`` has put on its link."""

    config: Config = SMALL
    now: float = 0.0
    ends: list[TunnelMachine] = field(default_factory=list)
    links: tuple[deque[kinds.OfTunnel], deque[kinds.OfTunnel]] = field(default_factory=lambda: (deque(), deque()))
    read: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    told: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        opening = kinds.TunnelOpen(1, "c", None, None, self.config.tunnel_window, self.config.max_payload)
        opener = TunnelMachine(identifier=1, opening=opening, config=self.config, now=0)
        taker = TunnelMachine(identifier=-1, opening=None, config=self.config, now=0)
        taker.begin(self.config.tunnel_window, self.config.max_payload)
        self.ends = [opener, taker]

    @property
    def states(self) -> list[TunnelState]:
        return [machine.state for machine in self.ends]

    def put(self, end: int, frames: int = 1_000_000) -> None:
        """Put what an end has to say on its link."""
        machine = self.ends[end]
        for _ in range(frames):
            piece = machine.pop(4000)
            if piece is None:
                break
            self.links[end].append(piece[0])
        if machine.final_message is not None and end not in self.told:
            self.told.add(end)
            self.links[end].append(machine.final_message)

    def deliver(self, end: int, frames: int = 1_000_000) -> None:
        """Deliver what ``end`` has said to the other one."""
        link = self.links[end]
        other = self.ends[1 - end]
        for _ in range(min(frames, len(link))):
            message = link.popleft()
            if isinstance(message, kinds.TunnelOpen):
                other.opened_again()
            elif other.final_message is not None and not isinstance(message, kinds.TunnelClose):
                self.links[1 - end].append(other.final_message)
            else:
                other.receive(message, self.now)

    def take_in(self, end: int, count: int = 1_000_000) -> None:
        """Have an end read its messages."""
        for _ in range(count):
            message = self.ends[end].receiving.read()
            if message is None:
                break
            self.read[end].append(message[0])

    def reset(self) -> None:
        """Tell both ends that something was lost."""
        for machine in self.ends:
            machine.reset()

    def settle(self, rounds: int = 1000, *, read: bool = True) -> None:
        """Let both ends talk, without any further loss, until neither has anything to say or the rounds are over."""
        for _ in range(rounds):
            for end in (0, 1):
                self.put(end)
            if not self.links[0] and not self.links[1]:
                return
            for end in (0, 1):
                self.deliver(end)
            if read:
                self.take_in(0)
                self.take_in(1)
        raise AssertionError("the two ends never stop talking")

    def pass_time(self, seconds: float) -> None:
        """Let the time go on and both ends look at it."""
        self.now += seconds
        for machine in self.ends:
            if machine.deadline <= self.now:
                machine.expire(self.now)
