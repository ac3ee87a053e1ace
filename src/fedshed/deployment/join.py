"""`fedshed site join`: a site makes its own key and asks the Master to take part in the study.

The private key never leaves the site.  The request holds the site's name, the engine, and a certificate
signing request, which proves that its writer has the key.  The Master does not trust what it reads: sizes,
names, kinds of keys and signatures are checked before anything is used, and only the public key of the
signing request is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import secret_file, write_atomically, write_secret
from fedshed.deployment.certificates import private_pem, private_ssh
from fedshed.deployment.config import check_name
from fedshed.deployment.plan import Engine
from fedshed.privacy.masks import identity_public, signed, verified

SUFFIX = ".join"
MOST_BYTES = 8192  # of a request
IDENTITY = "protected.key"  # where a site keeps its key for protected studies
KEYS = {"nvflare": "startup/client.key", "flower": "node.key"}  # where the engine looks for a site's key
BITS = (2048, 3072, 4096)  # of an RSA key, which NVFlare signs with
EXPONENT = 65537


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """What a site sends to the Master."""

    site: str
    engine: Engine
    csr: str  # a certificate signing request (PKCS #10, PEM), signed with the site's key
    identity: str  # its Ed25519 public key for protected studies, in hexadecimal digits
    proof: str  # the signature of the other two with that key


class Joining(Struct, frozen=True):
    """A request that was checked: the site, its public key, and the file as it was received."""

    site: str
    engine: Engine
    key: Any
    data: bytes
    identity: str

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key, which people compare by telephone."""
        return fingerprint(self.key)


def join(site: str, engine: Engine, folder: Path) -> Joining:
    """Make a site's key and its request to join, in a folder that stays at the site.

    Parameters
    ----------
    site : str
        The site's name in the study.
    engine : {"nvflare", "flower"}
        The engine that carries the messages of the study.
    folder : Path
        The site's folder. The key is written where the engine looks for it, and the request as `SITE.join`.

    Returns
    -------
    Joining
        The request; the Master's operator compares its `fingerprint` with the site's.

    Raises
    ------
    ConfigError
        If the name cannot be used, or the folder already holds a key.
    """
    _check(site)
    path = folder / KEYS[engine]
    if path.exists():
        raise ConfigError(
            f"{path} already exists; give another --folder, or remove the key if it is not in use"
        )
    key, encoded = new_key(engine)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem, own = csr.public_bytes(Encoding.PEM).decode(), secret_file(folder / IDENTITY)
    identity, proof = identity_public(own).hex(), signed(own, _joined(site, pem)).hex()
    data = msgspec.json.encode(Request(site, engine, pem, identity, proof))
    write_secret(path, encoded)
    write_atomically(folder / f"{site}{SUFFIX}", data)
    return Joining(site, engine, key.public_key(), data, identity)


def _joined(site: str, csr: str) -> bytes:
    """What a site signs when it joins."""
    return b"fedshed join\0" + site.encode() + b"\0" + csr.encode()


def new_key(engine: Engine) -> tuple[Any, bytes]:
    """A new key, and the file that the engine reads it from."""
    return _MAKERS[engine]()


def _rsa() -> tuple[Any, bytes]:
    key = rsa.generate_private_key(EXPONENT, BITS[1])
    return key, private_pem(key)


def _curve() -> tuple[Any, bytes]:
    key = ec.generate_private_key(ec.SECP384R1())
    return key, private_ssh(key)


_MAKERS: Mapping[str, Callable[[], tuple[Any, bytes]]] = {"nvflare": _rsa, "flower": _curve}


def read_requests(folder: Path, engine: Engine, sites: Iterable[str] | None = None) -> dict[str, Joining]:
    """The requests in a folder: one for each of these sites (if None, for any), and no others."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is not a folder; --requests must name the folder with the sites' {SUFFIX} files"
        )
    found: dict[str, tuple[Path, Joining]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        one = read_request(path, engine)
        if one.site in found:
            raise ConfigError(f"{path} and {found[one.site][0]} both ask to be site {one.site!r}; remove one")
        found[one.site] = path, one
    asked = {site: one for site, (_, one) in found.items()}
    _check_roster(asked, tuple(found if sites is None else sites), folder)
    return asked


def read_request(path: Path, engine: Engine) -> Joining:
    """Read a request, which is checked because anybody may have written it."""
    request, data = _decoded(path)
    try:
        _check(request.site)
        if request.engine != engine:
            raise ConfigError(f"it is for the engine {request.engine}, but the deployment runs on {engine}")
        key = _public_key(request)
        _check_identity(request)
        return Joining(request.site, engine, key, data, request.identity)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; ask the site to run `fedshed site join` again") from error


def fingerprint(key: Any) -> str:
    """The SHA-256 of a public key, in groups of digits that can be read aloud."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.sha256(der).hexdigest()
    return " ".join(digest[k : k + 8] for k in range(0, len(digest), 8))


def _decoded(path: Path) -> tuple[Request, bytes]:
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; give the {SUFFIX} file of a site")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"{path} is longer than {MOST_BYTES} bytes, so it is not a request of `fedshed site join`"
        )
    try:
        return msgspec.json.decode(data, type=Request), data
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a request of `fedshed site join`: {error}") from error


def _public_key(request: Request) -> Any:
    """The key of a signing request that is signed with it, for the name in the request."""
    try:
        csr = x509.load_pem_x509_csr(request.csr.encode())
        key = csr.public_key()
        _check_key(key, request.engine)  # before the signature, which an unusual key would make slow
        names = [one.value for one in csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [request.site]:
            raise ConfigError(f"its signing request is for {names!r}, not for {request.site!r}")
        if not csr.is_signature_valid:
            raise ConfigError("its signing request is not signed with its own key")
    except ConfigError:
        raise
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise ConfigError(f"its signing request cannot be read ({type(error).__name__})") from error
    return key


def _check_identity(request: Request) -> None:
    """The key for protected studies, which has signed the request."""
    try:
        proved = verified(
            bytes.fromhex(request.identity), bytes.fromhex(request.proof), _joined(request.site, request.csr)
        )
    except ValueError:
        proved = False
    if not proved:
        raise ConfigError("it is not signed with its key for protected studies")


def _check_key(key: Any, engine: Engine) -> None:
    if engine == "flower":
        if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)):
            raise ConfigError("Flower needs an elliptic-curve key on the curve P-384")
    elif not (
        isinstance(key, rsa.RSAPublicKey) and key.key_size in BITS and key.public_numbers().e == EXPONENT
    ):
        raise ConfigError(
            f"NVFlare needs an RSA key of {', '.join(map(str, BITS))} bits with exponent {EXPONENT}"
        )


def _check(site: str) -> None:
    check_name(site)
    if not site.isascii():
        raise ConfigError(f"the name {site!r} cannot be in a certificate; use ASCII letters only")


def _check_roster(asked: Mapping[str, Joining], sites: tuple[str, ...], folder: Path) -> None:
    """Check that every site has asked, that nobody else has, and that all keys differ."""
    if missing := sorted(set(sites) - set(asked)):
        raise ConfigError(
            f"{folder} holds no request of {', '.join(missing)}; ask each of these sites for the "
            f"{SUFFIX} file that `fedshed site join` writes"
        )
    if others := sorted(set(asked) - set(sites)):
        raise ConfigError(
            f"a site that is not among --sites asked to join: {', '.join(others)}; add it to --sites, or "
            f"remove its {SUFFIX} file"
        )
    owners: dict[str, str] = {}
    for site, one in asked.items():
        if any((other := owners.setdefault(key, site)) != site for key in (one.fingerprint, one.identity)):
            raise ConfigError(f"sites {other!r} and {site!r} ask with the same key; each must make its own")
    if not asked:
        raise ConfigError(
            f"{folder} holds no {SUFFIX} file; each site runs `fedshed site join` and sends its file"
        )
