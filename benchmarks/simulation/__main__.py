"""Run the mixed workload under faults: ``python -m benchmarks.simulation --seeds 20 --hours 1``.

A seed that fails is shrunk, saved and shown, and the run goes on with the next one; then the status is 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.simulation.workload import mixed
from iris.testing.faults import CALM, CHAOS, Schedule
from iris.testing.running import run_once
from iris.testing.simulation import OPTIONS, SimulationFailed, check_run


def one(seed: int, *, hours: float, calm: bool) -> tuple[int, str, int, int, float, str]:
    """Return what came of a seed: its digest, frames, faults, seconds of processor time, and how it failed."""
    OPTIONS.command = "python -m benchmarks.simulation --schedule"
    began = time.process_time()
    run = run_once(mixed, Schedule(seed=seed, seconds=hours * 3600), CALM if calm else CHAOS)
    failure = ""
    try:
        check_run(mixed, run, shrink_runs=60)
    except SimulationFailed as error:
        failure = str(error)
    spent = time.process_time() - began
    return seed, run.trace.digest, run.trace.frames, len(run.schedule.faults), spent, failure


def main() -> int:
    """Run the seeds, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--hours", type=float, default=1.0, help="of virtual time with faults, for each")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--schedule", type=Path, help="run this saved schedule only")
    chosen = parser.parse_args()
    if chosen.schedule is not None:
        check_run(mixed, run_once(mixed, Schedule.load(chosen.schedule), detailed=True), shrink_runs=0)
        print(f"{chosen.schedule}: nothing failed")
        return 0
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    failed: list[int] = []
    took: list[float] = []
    with ProcessPoolExecutor(chosen.processes) as pool:
        for seed, digest, frames, faults, spent, failure in pool.map(
            partial(one, hours=chosen.hours, calm=chosen.calm), seeds
        ):
            took.append(spent)
            print(f"seed {seed}: {faults} faults, {frames} frames, {spent:.1f} s, {digest}", flush=True)
            if failure:
                failed.append(seed)
                print(failure, flush=True)
    print(
        f"{chosen.seeds} seeds of {chosen.hours:g} h: {len(failed)} failed{f' {failed}' if failed else ''}; "
        f"{statistics.median(took) / max(chosen.hours, 1e-9):.1f} s of processor time for each virtual hour (median)"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
