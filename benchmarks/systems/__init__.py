"""One file per system.  A new one is measured as soon as it is listed here."""

from __future__ import annotations

import importlib

from benchmarks.system import System

MODULES = (
    "iris_mesh",
    "iris_aio",
    "iris_aio_client",
    "iris_sync",
    "pyzmq_sync",
    "pyzmq_curve",
    "pyzmq_dealer",
    "pyzmq_dealer_curve",
    "pyzmq_asyncio",
    "zenoh_py",
    "nats_py",
    "redis_py",
    "grpc_aio",
    "pynng_trio",
    "trio_stream",
    "trio_tls",
)


def all_systems() -> tuple[System, ...]:
    """Return every system, in the order of the table."""
    return tuple(importlib.import_module(f"benchmarks.systems.{module}").SYSTEM for module in MODULES)


def system_named(name: str) -> System:
    """Return the system called ``name``."""
    (found,) = (system for system in all_systems() if system.name == name)
    return found
