"""Tier: sealed segments as Parquet in object storage or on another disk, and the log goes on behind them.

Promises: an event that is gone from the bridge's disk is in an object that the tier's manifest names; readers of the
log go through both; publishers never wait for it.
"""

from iris.spark_bridge.tier.parquet import TierReader
from iris.spark_bridge.tier.storage import Storage
from iris.spark_bridge.tier.uploads import Tier, TierStatus, TierUploads

__all__ = ("Storage", "Tier", "TierReader", "TierStatus", "TierUploads")
