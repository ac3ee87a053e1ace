"""A certificate authority for one study, which signs the certificates of the server and of the sites."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically, write_secret

DAYS = 365  # for which a certificate is valid
AUTHORITY_DAYS = 3650  # for which the authority is valid; certificates are renewed under it
SOON = 30  # days before a certificate expires from which on a warning is given


class Authority:
    """Certificate and key of an authority; the key stays at the Master, which renews certificates with it."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.certificate = certificate
        self._certificate = x509.load_pem_x509_certificate(certificate)
        self._key: Any = load_pem_private_key(key, None)

    @classmethod
    def new(cls, name: str) -> Authority:
        """An authority with a new key."""
        key = ec.generate_private_key(ec.SECP384R1())
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = _builder(_named(name), _named(name), key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA384())
        return cls(certificate.public_bytes(Encoding.PEM), private_pem(key))

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """The authority that was written to a folder."""
        try:
            return cls((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(
                f"{folder} does not hold the authority's ca.crt and ca.key, which sign certificates; "
                "restore them, or make a new deployment"
            ) from error

    def write(self, folder: Path) -> None:
        """Write the certificate, and the key into a file that only its owner can read."""
        write_atomically(folder / "ca.crt", self.certificate)
        write_secret(folder / "ca.key", private_pem(self._key))

    def server(self, host: str) -> tuple[bytes, bytes]:
        """Certificate and key of a server at this address, and at the loopback addresses."""
        key = ec.generate_private_key(ec.SECP384R1())
        names = (_address(name) for name in {host, "localhost", "127.0.0.1"})
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        return self._issued(_named(host), key.public_key(), _extensions(names, usage)), private_pem(key)

    def client(self, name: str, key: Any, organisation: str) -> bytes:
        """A site's certificate for the public key that it asks for; nothing else of its request is used."""
        names = [x509.DNSName(name)]
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        return self._issued(_named(name, organisation), key, _extensions(names, usage))

    def renewed(self, certificate: bytes) -> bytes:
        """The same certificate, for the same key, with a later end."""
        old = x509.load_pem_x509_certificate(certificate)
        return self._issued(
            old.subject, old.public_key(), [(one.value, one.critical) for one in old.extensions]
        )

    def _issued(self, subject: x509.Name, key: Any, extensions: Iterable[tuple[Any, bool]]) -> bytes:
        left = (self._certificate.not_valid_after_utc - datetime.now(UTC)).days
        if left < 1:
            raise ConfigError(
                "the study's certificate authority has expired; make a new deployment (fedshed deploy new)"
            )
        builder = _builder(subject, self._certificate.subject, key, min(DAYS, left))
        own = x509.SubjectKeyIdentifier.from_public_key(key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(own, critical=False).add_extension(issuer, critical=False)
        for value, critical in extensions:
            if value.oid not in (own.oid, issuer.oid):
                builder = builder.add_extension(value, critical=critical)
        curve = isinstance(self._key, ec.EllipticCurvePrivateKey)
        pem: bytes = builder.sign(self._key, hashes.SHA384() if curve else hashes.SHA256()).public_bytes(
            Encoding.PEM
        )
        return pem


def ends(certificate: bytes) -> datetime:
    """When a certificate expires."""
    when: datetime = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return when


def ending_soon(paths: Iterable[Path]) -> list[str]:
    """A sentence for each of these certificates that has expired or expires within `SOON` days."""
    found = []
    for path in paths:
        when = ends(path.read_bytes())
        if when < datetime.now(UTC):
            found.append(f"the certificate {path} expired on {when:%Y-%m-%d}; renew it")
        elif when < datetime.now(UTC) + timedelta(days=SOON):
            found.append(f"the certificate {path} expires on {when:%Y-%m-%d}; renew it before then")
    return found


def private_pem(key: Any) -> bytes:
    """A private key as a PEM file."""
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def private_ssh(key: Any) -> bytes:
    """A private key in OpenSSH's format."""
    ssh: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return ssh


def public_ssh(key: Any) -> bytes:
    """A public key in OpenSSH's format."""
    ssh: bytes = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return ssh


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, days: int) -> Any:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))


def _extensions(names: Iterable[Any], usage: Any) -> list[tuple[Any, bool]]:
    """What a certificate of a server or of a site may be used for, and under which names."""
    return [
        (x509.SubjectAlternativeName(list(names)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([usage]), False),
    ]


def _named(name: str, organisation: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]
    if organisation is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
