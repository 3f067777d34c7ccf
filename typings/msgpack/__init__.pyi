# What Iris uses of msgpack 1.1 and later, which ships no types.  Decoded values are Any: the codec narrows them.

from collections.abc import Callable
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias

from msgpack.exceptions import (
    BufferFull as BufferFull,
    ExtraData as ExtraData,
    FormatError as FormatError,
    OutOfData as OutOfData,
    StackError as StackError,
    UnpackException as UnpackException,
)

version: Final[tuple[int, int, int]]

_Buffer: TypeAlias = bytes | bytearray | memoryview

class ExtType(NamedTuple):
    code: int
    data: bytes

class Timestamp:
    seconds: int
    nanoseconds: int
    def __init__(self, seconds: int, nanoseconds: int = 0) -> None: ...

class Packer:
    def __init__(
        self,
        *,
        default: Callable[[Any], Any] | None = None,
        use_single_float: bool = False,
        autoreset: bool = True,
        use_bin_type: bool = True,
        strict_types: bool = False,
        datetime: bool = False,
        unicode_errors: str | None = None,
        buf_size: int = ...,
    ) -> None: ...
    def pack(self, obj: object) -> bytes: ...
    def pack_array_header(self, size: int) -> bytes: ...
    def pack_map_header(self, size: int) -> bytes: ...
    def pack_map_pairs(self, pairs: object) -> bytes: ...
    def pack_ext_type(self, typecode: int, data: bytes) -> bytes: ...
    def bytes(self) -> bytes: ...
    def reset(self) -> None: ...
    def getbuffer(self) -> memoryview: ...

class Unpacker:
    def __init__(
        self,
        file_like: IO[bytes] | None = None,
        *,
        read_size: int = 0,
        use_list: bool = True,
        raw: bool = False,
        timestamp: Literal[0, 1, 2, 3] = 0,
        strict_map_key: bool = True,
        object_hook: Callable[[dict[Any, Any]], Any] | None = None,
        object_pairs_hook: Callable[[list[tuple[Any, Any]]], Any] | None = None,
        list_hook: Callable[[list[Any]], Any] | None = None,
        unicode_errors: str | None = None,
        max_buffer_size: int = 104857600,
        ext_hook: Callable[[int, bytes], Any] = ...,
        max_str_len: int = -1,
        max_bin_len: int = -1,
        max_array_len: int = -1,
        max_map_len: int = -1,
        max_ext_len: int = -1,
    ) -> None: ...
    def feed(self, next_bytes: _Buffer) -> None: ...
    def unpack(self) -> Any: ...
    def skip(self) -> None: ...
    def read_array_header(self) -> int: ...
    def read_map_header(self) -> int: ...
    def read_bytes(self, n: int) -> bytes: ...
    def tell(self) -> int: ...
    def __iter__(self) -> Unpacker: ...
    def __next__(self) -> Any: ...

def packb(
    o: object,
    *,
    default: Callable[[Any], Any] | None = None,
    use_single_float: bool = False,
    use_bin_type: bool = True,
    strict_types: bool = False,
    datetime: bool = False,
    unicode_errors: str | None = None,
) -> bytes: ...
def unpackb(
    packed: _Buffer,
    *,
    use_list: bool = True,
    raw: bool = False,
    timestamp: Literal[0, 1, 2, 3] = 0,
    strict_map_key: bool = True,
    object_hook: Callable[[dict[Any, Any]], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[Any, Any]]], Any] | None = None,
    list_hook: Callable[[list[Any]], Any] | None = None,
    unicode_errors: str | None = None,
    ext_hook: Callable[[int, bytes], Any] = ...,
    max_str_len: int = -1,
    max_bin_len: int = -1,
    max_array_len: int = -1,
    max_map_len: int = -1,
    max_ext_len: int = -1,
) -> Any: ...
