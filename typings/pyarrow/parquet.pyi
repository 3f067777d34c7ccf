from collections.abc import Iterator, Sequence
from typing import Any, Self

from pyarrow import NativeFile, RecordBatch, Schema, Table

class ColumnChunkMetaData:
    data_page_offset: int
    dictionary_page_offset: int | None
    total_compressed_size: int

class RowGroupMetaData:
    num_columns: int
    num_rows: int
    def column(self, i: int) -> ColumnChunkMetaData: ...

class FileMetaData:
    num_row_groups: int
    num_rows: int
    def row_group(self, i: int) -> RowGroupMetaData: ...

class ParquetFile:
    schema_arrow: Schema
    metadata: FileMetaData
    def __init__(
        self,
        source: str | NativeFile,
        *,
        metadata: FileMetaData | None = None,
        page_checksum_verification: bool = False,
    ) -> None: ...
    def read_row_group(self, i: int, *, use_threads: bool = True) -> Table: ...
    def iter_batches(
        self, batch_size: int = ..., row_groups: list[int] | None = None, *, use_threads: bool = True
    ) -> Iterator[RecordBatch]: ...

class ParquetWriter:
    def __init__(
        self,
        where: str | NativeFile,
        schema: Schema,
        *,
        compression: str = "snappy",
        use_dictionary: bool | Sequence[str] = True,
        write_page_checksum: bool = False,
    ) -> None: ...
    def write_table(self, table: Table, row_group_size: int | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> bool: ...

def read_metadata(where: str | NativeFile) -> FileMetaData: ...
def read_table(source: Any, **options: Any) -> Table: ...
def write_table(table: Table, where: str | NativeFile, **options: Any) -> None: ...
