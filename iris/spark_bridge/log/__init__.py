"""The durable log: checksummed segments, an LMDB index, deduplication, retention.

Promises: what was synced survives a kill and a power cut; an offset range reads the same each time; damage is found,
never passed on.  Not here: who may read (iris.spark_bridge.server).
"""

from iris.spark_bridge.log.chunk import HEADER_SIZE, Chunk, crc32, decode_frames, frame_header, frame_size
from iris.spark_bridge.log.chunk_io import CHUNK_EVENTS, ROOM
from iris.spark_bridge.log.replication.journal import ABANDONED, LogChange, decode_change_untrusted, encode_head
from iris.spark_bridge.log.local_read import FileRange, machine, read_file_range
from iris.spark_bridge.log.recovery import existing_store, open_store
from iris.spark_bridge.log.replication.replication import Cut, HeldShard, Position, Replication
from iris.spark_bridge.log.retention import GROUP_IDLE, Retention
from iris.spark_bridge.log.segments import is_full, sync_directory
from iris.spark_bridge.log.appender import Appended
from iris.spark_bridge.log.owners import JOB_PREFIX
from iris.spark_bridge.log.quota import Quota
from iris.spark_bridge.log.reader import News
from iris.spark_bridge.log.records import Cursor, KEY_COUNTS, KEY_ENDS, KEYS, LEASES, QUEUES, ShardState
from iris.spark_bridge.log.store import QUERY, Store
from iris.spark_bridge.log.transaction import Transaction, record_size
from iris.spark_bridge.log.tiering import SealedSegment, TierObject, Tiering, TierPart
from iris.spark_bridge.log.topics.filter import EVERYTHING, MAX_REGEX, TopicFilter

__all__ = (
    "ABANDONED", "CHUNK_EVENTS", "EVERYTHING", "GROUP_IDLE", "HEADER_SIZE", "JOB_PREFIX", "KEYS", "KEY_COUNTS",
    "KEY_ENDS", "LEASES", "MAX_REGEX", "QUERY", "QUEUES", "ROOM", "Appended", "Chunk", "Cursor", "Cut", "FileRange",
    "HeldShard", "LogChange", "News", "Position", "Quota", "Replication", "Retention", "SealedSegment", "ShardState",
    "Store", "TierObject", "TierPart", "Tiering", "TopicFilter", "Transaction", "crc32",
    "decode_change_untrusted", "decode_frames", "encode_head", "existing_store", "frame_header", "frame_size",
    "is_full", "machine", "open_store", "read_file_range", "record_size", "sync_directory",
)  # fmt: skip
