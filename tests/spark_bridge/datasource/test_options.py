"""Options: what is right is read, what is wrong is named."""

from __future__ import annotations

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.client.connection import Connection
from iris.spark_bridge.datasource.options import (
    SourceOptions,
    check_shards,
    parse_sink_options,
    parse_source_options,
)
from iris.spark_bridge.session.session import foreach_batch


def test_without_options_everything_is_read_from_the_beginning() -> None:
    assert parse_source_options({}) == SourceOptions()
    assert SourceOptions().starting == "earliest"
    assert SourceOptions().connection == Connection(bridge="bridge", credential=None, seeds=(), timeout=60.0)


def test_every_option_is_read_whatever_its_case() -> None:
    options = parse_source_options(
        {
            "BRIDGE": "archive",
            "credential": "/etc/iris/reader",
            "seeds": "tcp://a:1, tcp://b:2",
            "bridgetimeout": "2.5",
            "Subscribe": "orders.*, flights.>",
            "startingOffsets": '{"0": 5, "1@0011223344556677": -2}',
            "group": "g",
            "maxOffsetsPerTrigger": "1000",
            "minPartitions": "4",
            "inlineRows": "100",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "false",
            "localFiles": "false",
            "includeShard": "true",
        },
        streaming=True,
    )
    assert options.connection == Connection(
        bridge="archive", credential="/etc/iris/reader", seeds=("tcp://a:1", "tcp://b:2"), timeout=2.5
    )
    assert options.topics == ("orders.*", "flights.>")
    assert options.starting == {"0": 5, "1@0011223344556677": -2}
    assert (options.group, options.max_offsets, options.min_partitions, options.inline_rows) == ("g", 1000, 4, 100)
    assert (options.fail_on_data_loss, options.include_headers, options.local_files) == (False, False, False)
    assert options.include_shard


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 min", 120), ("1H", 3600)])
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    given = {"minOffsetsPerTrigger": "7", "maxTriggerDelay": text}
    options = parse_source_options(given, streaming=True)
    assert (options.min_offsets, options.max_delay) == (7, seconds)


def test_a_table_has_an_end() -> None:
    options = parse_source_options({"endingOffsets": '{"0": 7}', "assign": "[2, 0]"}, streaming=False)
    assert (options.ending, options.shards) == ({"0": 7}, (0, 2))
    assert parse_source_options({"startingTimestamp": "12"}).starting_timestamp == 12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribePatern": "x"}, "subscribePatern.*did you mean subscribePattern"),
        ({"nonsense": "x"}, "no option nonsense: use bridge"),
        ({"mode": "FAILFAST"}, "no option mode any more: iris.spark_bridge.parse makes columns"),
        ({"SCHEMAregistry": "http://a"}, "no option schemaRegistry any more"),
        ({"subscribe": "a..b"}, "option subscribe"),
        ({"badTopic": "a"}, "no option badTopic any more: .*iris.spark_bridge.dead_letters keeps what does not fit"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "least is more"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay is how long minOffsetsPerTrigger may wait"),
        ({"maxTriggerDelay": "5 parsecs", "minOffsetsPerTrigger": "5"}, "maxTriggerDelay is '5 parsecs': use a whole"),
        (
            {"startingOffsetsByTimestamp": "5"},
            "startingOffsetsByTimestamp is '5': use milliseconds since 1970",
        ),
        ({"startingOffsetsByTimestamp": '{"0": -1}'}, "startingOffsetsByTimestamp .* use milliseconds"),
        ({"startingOffsetsByTimestamp": '{"0": 1}', "assign": "[1]"}, "shard 0 is not assigned"),
        ({"startingOffsetsByTimestamp": '{"0": 1}', "startingTimestamp": "1"}, "contradict each other"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "is about timestamps: give startingTimestamp"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern contradict"),
        ({"subscribePattern": "("}, "option subscribePattern.*regular expression"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first'"),
        ({"startingOffsets": '{"0": -3}'}, "option startingOffsets"),
        ({"startingOffsets": '{"topic": {"0": 1}}'}, "option startingOffsets"),
        ({"startingOffsets": "{}"}, "option startingOffsets"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp"),
        ({"startingTimestamp": "1763800000000000000"}, "option startingTimestamp is 1763.*use milliseconds since 1970"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp and endingTimestamp contradict"),
        ({"assign": "[0, 2]", "startingOffsets": '{"1": 5}'}, "assign and startingOffsets contradict.*shard 1"),
        ({"assign": "[0, 2]", "endingOffsets": '{"1": 5}'}, "assign and endingOffsets contradict.*shard 1"),
        ({"startingOffsets": '{"0": 5, "0@0011223344556677": 6}'}, "option startingOffsets"),
        ({"endingOffsets": "earliest"}, "option endingOffsets"),
        ({"endingOffsets": '{"0": -2}'}, "option endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0'"),
        ({"maxOffsetsPerTrigger": "²"}, "option maxOffsetsPerTrigger"),
        ({"minPartitions": "-1"}, "option minPartitions"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss.*true or false"),
        ({"includeHeaders": ""}, "option includeHeaders is empty"),
        ({"assign": "0"}, "option assign"),
        ({"assign": "[]"}, "option assign"),
        ({"assign": "[true]"}, "option assign"),
        ({"assign": "nonsense"}, "option assign"),
        ({"bridge": "no spaces"}, "option bridge: .* is not a cluster name"),
        ({"group": "no spaces"}, "option group: 'no spaces' is not a group name"),
        ({"minPartitions": "1000000000"}, "option minPartitions is '1000000000': use a whole number, 1 to 100000"),
        ({"maxOffsetsPerTrigger": "9" * 5000}, "option maxOffsetsPerTrigger.*1 or more"),
        ({"bridgeTimeout": "soon"}, "option bridgeTimeout"),
        ({"bridgeTimeout": "0s"}, "option bridgeTimeout"),
        ({"bridgeTimeout": "nan"}, "option bridgeTimeout"),
        ({"bridgeTimeout": "0"}, "option bridgeTimeout"),
        ({"credential": " "}, "option credential is empty"),
    ],
)
def test_what_is_wrong_is_said_by_its_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_source_options(given)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kafka.bootstrap.servers", "give seeds and credential"),
        ("kafka.group.id", "group names one whose progress"),
        ("groupIdPrefix", "group names one whose progress"),
        ("fetchOffset.numRetries", "bridgeTimeout says how long"),
        ("kafkaConsumer.pollTimeoutMs", "bridgeTimeout says how long"),
        ("kafka.max.poll.records", "leave it out"),
    ],
)
def test_options_of_kafkas_client_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"no option {name}, which is about Kafka: .*{message}"):
        parse_source_options({name: "x"})
    with pytest.raises(ConfigError, match=f"no option {name}, which is about Kafka"):
        parse_sink_options({name: "x"}, streaming=True)


@pytest.mark.parametrize(
    ("given", "streaming"),
    [
        ({"endingOffsets": "latest"}, True),
        ({"endingTimestamp": "5"}, True),
        ({"maxOffsetsPerTrigger": "5"}, False),
        ({"group": "g"}, False),
        ({"inlineRows": "5"}, False),
        ({"startingOffsets": "latest"}, False),
        ({"startingOffsets": '{"0": -1}'}, False),
    ],
)
def test_an_option_of_the_other_kind_of_read_is_refused(given: dict[str, str], streaming: bool) -> None:
    parse_source_options(given)
    parse_source_options(given, streaming=not streaming)
    with pytest.raises(ConfigError, match=next(iter(given))):
        parse_source_options(given, streaming=streaming)


@pytest.mark.parametrize("name", ["assign", "startingOffsets", "endingOffsets"])
def test_a_shard_that_the_bridge_does_not_have_is_said_by_the_options_name(name: str) -> None:
    value = "[0, 3]" if name == "assign" else '{"0": 5, "3@0011223344556677": 1}'
    options = parse_source_options({name: value, "bridge": "archive"})
    check_shards(options, {0, 3})
    with pytest.raises(ConfigError, match=f"option {name} names the shard 3, which the bridge 'archive'.*one of 0, 1"):
        check_shards(options, {1, 0})


def test_options_that_name_no_shard_fit_every_bridge() -> None:
    check_shards(parse_source_options({"startingOffsets": "latest"}), set())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"query": "nightly.1"}, r"option query is 'nightly\.1': use 1 to 64 letters"),
        ({"query": "job-1"}, "not beginning with job-"),
        ({"delivery": "twice"}, "option delivery is 'twice': use exactly-once or at-least-once"),
        ({"topic": "a.*"}, "option topic"),
        ({"tpoic": "t"}, "did you mean topic"),
    ],
)
def test_what_is_wrong_with_a_named_batch_is_said_before_anything_is_written(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sink_options({"query": "q", "batch": "1"} | given, streaming=False)
    with pytest.raises(ConfigError, match=message):
        foreach_batch(
            given.get("query", "q"), inline_rows=0, **{name: given[name] for name in given if name != "query"}
        )


def test_a_named_batch_has_a_number() -> None:
    assert parse_sink_options({"query": "q", "batch": "1"}, streaming=False).batch == 1
    for given in ({"query": "q"}, {"batch": "1"}, {"query": "q", "batch": "-1"}):
        with pytest.raises(ConfigError, match="batch"):
            parse_sink_options(given, streaming=False)


@pytest.mark.parametrize(("given", "seconds"), [("5", 5.0), ("0.5", 0.5), ("5s", 5.0), ("2m", 120.0)])
def test_the_patience_with_a_bridge_is_a_number_of_seconds_or_has_a_unit(given: str, seconds: float) -> None:
    assert parse_source_options({"bridgeTimeout": given}).connection.timeout == seconds
