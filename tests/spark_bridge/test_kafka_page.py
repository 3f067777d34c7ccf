"""The page that compares with Spark's Kafka source: complete, and each row with a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.options import _NAMES, parse_source_options

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "kafka.md").read_text()
OPTIONS = (
    *("kafka.bootstrap.servers", "assign", "subscribe", "subscribePattern", "startingTimestamp", "startingOffsets"),
    *("startingOffsetsByTimestamp", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "failOnDataLoss"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "groupIdPrefix"),
    *("kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy"),
)
"""Names from Spark's guide."""


def rows() -> list[list[str]]:
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line[:2] == "| "]
    return [row for row in found if row[1] not in ("here", "---")]


def test_each_row_says_how_it_is_and_names_a_test_that_is_there() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows():
        assert len(row) == 4, row
        assert row[1] in ("has", "better", "not"), row
        named = re.findall(r"`(test\w+|tests/[\w/]+\.py)`", row[3])
        assert named, row
        absent = [name for name in named if f"def {name}(" not in tests and not (ROOT / name).is_file()]
        assert absent == []


def test_every_option_of_sparks_guide_is_on_the_page_and_taken_or_refused_by_name() -> None:
    for option in OPTIONS:
        assert f"`{option}`" in PAGE
        if option not in _NAMES:
            with pytest.raises(ConfigError, match=f"no option {option}, which is about Kafka"):
                parse_source_options({option: "x"})
