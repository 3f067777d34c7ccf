"""Machine: what programs take from theirs, from a seed: order of tasks, time, random numbers, threads, disk.

It promises that the same seed gives the same run, and that nothing of it is left when the run is over.
"""

from iris.testing.machine.disk import SimulatedDisk
from iris.testing.machine.event_loop import run_asyncio
from iris.testing.machine.isolation import isolated
from iris.testing.machine.scheduling import HOST, JumpingClock, Stalls, seeded

__all__ = ("HOST", "JumpingClock", "SimulatedDisk", "Stalls", "isolated", "run_asyncio", "seeded")
