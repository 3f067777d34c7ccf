"""Files of security: credentials, realms, bundles and revocation lists on disk, and the local realm of one user.

They promise that a private file has mode 0600 and is written whole or not at all, and that a file which others may
write is refused with the command that mends it.  What a file says is verified by iris.security.identity, not here.
"""

from iris.security.files.credential_file import CredentialWatch, load_credential, prepared_credential, save_credential
from iris.security.files.local_realm import (
    iris_home, open_local_realm, private_home, runtime_directory, runtime_place,
)  # fmt: skip
from iris.security.files.private_files import (
    MAX_FILE, FileLook, LockHeld, locked, make_directories, read_private, write_private,
)  # fmt: skip
from iris.security.files.realm_files import (
    load_bundle, load_realm, load_revocations, prepared_bundle, prepared_revocations, save_realm, save_revocations,
)  # fmt: skip

__all__ = (
    "MAX_FILE", "CredentialWatch", "FileLook", "LockHeld", "iris_home", "load_bundle", "load_credential", "load_realm",
    "load_revocations", "locked", "make_directories", "open_local_realm", "prepared_bundle", "prepared_credential",
    "prepared_revocations",
    "private_home", "read_private", "runtime_directory", "runtime_place", "save_credential", "save_realm",
    "save_revocations", "write_private",
)  # fmt: skip
