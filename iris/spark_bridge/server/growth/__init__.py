"""Growth: shards are added to a bridge whose members divide the events, while publishers and readers go on.

docs/explanation/shards.md says how, and what happens when something fails meanwhile.
"""

from iris.spark_bridge.server.growth.division import Division, are_of_one_bridge, decode_division
from iris.spark_bridge.server.growth.grow import Growth, grow
from iris.spark_bridge.server.growth.newcomer import Newcomer
from iris.spark_bridge.server.growth.parents import Parents

__all__ = (
    "Division", "Growth", "Newcomer", "Parents", "are_of_one_bridge", "decode_division", "grow",
)  # fmt: skip
