"""The file of a bundle: what the owner of another realm sent.  It holds no secret, and may come from anybody."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.security.foreign_realm import MAX_BUNDLE, RealmBundle, read_bundle_untrusted
from iris.security.private_files import prepared_private

_WHAT = "bundle"


def load_bundle(path: Path) -> RealmBundle:
    """Read a bundle.

    Raises:
        ConfigError: it cannot be read, was changed on the way, or is no bundle.
    """
    try:
        with path.open("rb") as file:
            return read_bundle_untrusted(file.read(MAX_BUNDLE + 1))
    except OSError as error:
        raise ConfigError(f"{_WHAT} {path}: cannot be read: {error.strerror}") from None
    except AuthenticationError as error:
        raise ConfigError(f"{_WHAT} {path}: {error}; have its owner send it again") from None


def prepared_bundle(path: Path, bundle: RealmBundle) -> AbstractContextManager[None]:
    """Write a bundle that is in its place only after the block; see ``prepared_private``."""
    return prepared_private(path, bundle.signed, _WHAT)
