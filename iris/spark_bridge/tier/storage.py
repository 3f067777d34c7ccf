"""Storage: object storage or a directory, as named whole objects.

A reader sees an object whole or not at all.  Object stores work like that.  In a directory an object is written under
another name, synced and renamed; who looks for Parquet files passes over names that begin with ``_``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import LogDamaged, TierUnreachable
from iris.spark_bridge.log import sync_directory

SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "file")
"""URL schemes of the file systems that pyarrow brings."""

UNFINISHED: Final = "_unfinished-"
"""Prefix of the names of objects that are being written to a directory."""


def check_url(url: str) -> str:
    """Return where a tier is: a directory, or a URL as ``pyarrow.fs`` has it.

    Raises:
        ConfigError: it is neither, or holds a password.
    """
    if "://" not in url:
        if not url:
            raise ConfigError("the URL of the tier is empty: use a directory, or a URL such as s3://bucket/prefix")
        return url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the tier {url!r} is no URL: {error}") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"a tier cannot be at {parts.scheme}://: use a directory, or one of {', '.join(SCHEMES)}")
    if parts.scheme != "file" and not parts.netloc:
        raise ConfigError(f"{url!r} names no bucket: use {parts.scheme}://BUCKET/PREFIX")
    if parts.password is not None:
        raise ConfigError(
            f"the URL of the tier in {parts.hostname!r} holds a password, which others on this machine can see: put it "
            "where the storage's own tools look for it, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
            "environment"
        )
    return url


@final
class Storage:
    """The objects below a URL.  Every call blocks, and is safe in any thread.

    Args:
        url: see ``check_url``.

    All calls raise ``TierUnreachable`` if the storage does not answer or refuses.
    """

    def __init__(self, url: str) -> None:
        self.url: Final = check_url(url)
        self._opened: tuple[pafs.FileSystem, str] | None = None

    def __repr__(self) -> str:
        return f"<Storage {self.url}>"

    def open(self) -> None:
        """Raise ConfigError unless the URL is understood."""
        with suppress(TierUnreachable):  # that is said when something is to be stored
            self._file_system()

    def _file_system(self) -> tuple[pafs.FileSystem, str]:
        if self._opened is None:
            if "://" not in self.url:
                self._opened = pafs.LocalFileSystem(), str(Path(self.url).absolute())
                return self._opened
            try:
                self._opened = pafs.FileSystem.from_uri(self.url)
            except (ValueError, NotImplementedError) as error:
                raise ConfigError(f"the tier {self.url} is no URL: {error}") from None
            except OSError as error:
                raise self._unreachable(error) from None
        return self._opened

    def _unreachable(self, error: BaseException) -> TierUnreachable:
        reason = " ".join(str(error).split()) or type(error).__name__
        return TierUnreachable(f"the tier {self.url} does not answer, or refuses: {reason}")

    @contextmanager
    def _asking(self) -> Generator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise self._unreachable(error) from None

    def _place(self, path: str) -> tuple[pafs.FileSystem, str]:
        file_system, base = self._file_system()
        return file_system, f"{base.rstrip('/')}/{path}"

    def put(self, path: str, data: pa.Buffer | bytes) -> None:
        """Store an object; it is there in full, and durably, when this returns."""
        file_system, place = self._place(path)
        try:
            with self._asking():
                if isinstance(file_system, pafs.LocalFileSystem):
                    _write_file(Path(place), data)
                    return
                with file_system.open_output_stream(place) as stream:
                    stream.write(data)
                size = file_system.get_file_info(place).size
        except FileNotFoundError as error:  # there is no such bucket
            raise self._unreachable(error) from None
        if size != len(memoryview(data)):
            raise TierUnreachable(f"the tier {self.url} has stored {size} of {len(memoryview(data))} bytes of {path}")

    def get(
        self,
        path: str,
        start: int = 0,
        count: int | None = None,
        *,
        size: int | None = None,
        most: int | None = None,
    ) -> bytes:
        """Return bytes of an object.

        Args:
            path: path of the object.
            start: the first byte.
            count: number of bytes. None: all that follow.
            size: size that the object has to have, in bytes.
            most: largest size that it may have, in bytes.

        Raises:
            LogDamaged: it is not there, or has another size.
        """
        file_system, place = self._place(path)
        try:
            with self._asking(), file_system.open_input_file(place) as file:
                found = file.size()
                if size is not None and found != size:
                    raise LogDamaged(f"the object {path} in the tier {self.url} has {found} bytes, and had {size}")
                if most is not None and found > most:
                    raise LogDamaged(f"the object {path} in the tier {self.url} has {found} bytes, more than {most}")
                wanted = found - start if count is None else count
                data = file.read_at(wanted, start)
        except FileNotFoundError:
            raise LogDamaged(f"the object {path} in the tier {self.url} is missing") from None
        if len(data) < wanted:
            raise LogDamaged(f"the object {path} in the tier {self.url} ends before byte {start + wanted}")
        return data

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder, sorted; none if there is no such folder."""
        file_system, place = self._place(folder)
        try:
            with self._asking():
                found = file_system.get_file_info(pafs.FileSelector(place, allow_not_found=True))
        except FileNotFoundError as error:
            raise self._unreachable(error) from None
        return sorted(one.base_name for one in found if one.type == pafs.FileType.File)

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        file_system, place = self._place(path)
        with suppress(FileNotFoundError), self._asking():
            file_system.delete_file(place)


def _write_file(path: Path, data: pa.Buffer | bytes) -> None:
    _make_folder(path.parent)
    unfinished = path.with_name(UNFINISHED + path.name)
    with unfinished.open("wb") as file:
        file.write(memoryview(data))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)
