"""The ``weather`` cluster of the demo: ``iris run iris.demo.weather:weather`` is one member."""

from __future__ import annotations

from typing import Final

import iris
from iris.demo.data import Hour, Observation, read_observations

weather = iris.Service("weather")

# Read before the node opens: a member that has joined answers at once.
_observations: Final[dict[Hour, Observation]] = read_observations()


@weather.request
async def observe(request: iris.Request) -> object:
    """Return the observation for ``{"airport": ..., "hour": ...}``; None if there is none."""
    asked = request.payload
    return _observations.get((asked["airport"], asked["hour"]))
