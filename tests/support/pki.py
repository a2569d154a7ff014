"""A certificate authority for tests: makes every certificate that a TLS test may want to meet.

Keys are elliptic-curve keys, as generating RSA keys would take most of a test's time.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class CertFiles:
    """Paths of one certificate and its key."""

    cert: Path
    key: Path
    combined: Path
    """Certificate and key in one file."""


class Authority:
    """A self-signed root that signs certificates into ``directory``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self._cert = (
            x509.CertificateBuilder()
            .subject_name(self._subject)
            .issuer_name(self._subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        emails: Sequence[str] = (),
        valid_from_days: int = -1,
        valid_to_days: int = 30,
        client: bool = False,
        password: bytes | None = None,
    ) -> CertFiles:
        """Sign a certificate for host names and addresses (server) or e-mail addresses (client)."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        names: list[x509.GeneralName] = [_host_name(host) for host in hosts]
        names += [x509.RFC822Name(email) for email in emails]
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid_from_days * _DAY)
            .not_valid_after(now + valid_to_days * _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        cert_pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        encryption = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password)
        )
        key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        files = CertFiles(
            self._directory / f"{name}.crt",
            self._directory / f"{name}.key",
            self._directory / f"{name}.both.pem",
        )
        files.cert.write_bytes(cert_pem)
        files.key.write_bytes(key_pem)
        files.combined.write_bytes(cert_pem + key_pem)
        return files


class PKI:
    """The usual cast: good and bad server certificates, a client's, and a stranger's authority."""

    CLIENT_EMAIL = "client@jetspark.test"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        hosts = ("localhost", "127.0.0.1", "::1")
        self.authority = Authority(directory, "ca")
        self.ca = self.authority.file
        self.server = self.authority.issue("server", hosts=hosts)
        self.wrong_host = self.authority.issue("wrong-host", hosts=("elsewhere.test", "192.0.2.1"))
        self.expired = self.authority.issue("expired", hosts=hosts, valid_from_days=-20, valid_to_days=-10)
        self.not_yet_valid = self.authority.issue("future", hosts=hosts, valid_from_days=10)
        self.client = self.authority.issue("client", emails=(self.CLIENT_EMAIL,), client=True)
        self.other_authority = Authority(directory, "other-ca")
        self.other_ca = self.other_authority.file
        self.other_server = self.other_authority.issue("other-server", hosts=hosts)
        self.other_client = self.other_authority.issue(
            "other-client", emails=(self.CLIENT_EMAIL,), client=True
        )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )
