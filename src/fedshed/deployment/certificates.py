"""A certificate authority of the study's own, a server certificate, and the sites' keys (`cryptography`)."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365


class Authority:
    """A new certificate authority; its key is not kept."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _named(name)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA384())

    @property
    def certificate(self) -> bytes:
        """What everyone trusts."""
        pem: bytes = self._certificate.public_bytes(Encoding.PEM)
        return pem

    def server(self, host: str) -> tuple[bytes, bytes]:
        """Certificate and key of a server at this address, and at the loopback addresses."""
        key = ec.generate_private_key(ec.SECP384R1())
        names = x509.SubjectAlternativeName([_address(name) for name in {host, "localhost", "127.0.0.1"}])
        builder = self._builder(_named(host), key.public_key()).add_extension(names, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        certificate = builder.add_extension(usage, critical=False).sign(self._key, hashes.SHA384())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM), private

    def _builder(self, subject: x509.Name, key: Any) -> Any:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=DAYS))


def node_key() -> tuple[bytes, bytes]:
    """A site's private and public key, in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
