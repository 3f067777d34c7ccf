from collections.abc import Mapping
from enum import Enum
from typing import Any, overload

from pyarrow import Buffer, NativeFile

class FileType(Enum):
    NotFound = 0
    Unknown = 1
    File = 2
    Directory = 3

class FileInfo:
    path: str
    base_name: str
    type: FileType
    size: int | None

class FileSelector:
    def __init__(self, base_dir: str, allow_not_found: bool = False, recursive: bool = False) -> None: ...

class FileSystem:
    @staticmethod
    def from_uri(uri: str) -> tuple[FileSystem, str]: ...
    @overload
    def get_file_info(self, paths_or_selector: str) -> FileInfo: ...
    @overload
    def get_file_info(self, paths_or_selector: FileSelector) -> list[FileInfo]: ...
    def open_input_file(self, path: str) -> NativeFile: ...
    def open_output_stream(
        self,
        path: str,
        compression: str | None = "detect",
        buffer_size: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> NativeFile: ...
    def delete_file(self, path: str) -> None: ...

class LocalFileSystem(FileSystem):
    def __init__(self) -> None: ...

class S3FileSystem(FileSystem):
    def __init__(self, **options: Any) -> None: ...
