"""An authority for tests: it issues certificates for TLS."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Issued:
    """The files of one certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """An authority whose files are in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority")
        self.certificate = directory / "authority.pem"
        self._write(self.certificate, self._name, self._key, is_authority=True)

    def issue(self, name: str) -> Issued:
        """Issue a certificate for a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        issued = Issued(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        self._write(issued.certificate, _named(name), key, is_authority=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        issued.key.write_bytes(private)
        return issued

    def _write(self, file: Path, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> None:
        now = datetime.datetime.now(datetime.UTC)
        common = str(name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(common)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        file.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
