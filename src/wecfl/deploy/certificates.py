"""The authority of a federation, the certificate of its server, the keys of its nodes.

All keys are on elliptic curves. A private key is written with mode 0600, and never replaces another
one. The only exception is the server's key, which is replaced together with its certificate.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import NameOID

from wecfl.errors import ConfigError

__all__ = ["authority", "key_fingerprint", "node_key", "server_certificate"]

AUTHORITY_YEARS, SERVER_YEARS = 10, 1
"""How long the two kinds of certificates are valid."""


def authority(folder: Path) -> tuple[Path, Path]:
    """The files `ca.crt` and `ca.key`, which are made if they do not exist yet.

    Whoever has the key can act as the server. The nodes need only the certificate.
    """
    certificate_file, key_file = folder / "ca.crt", folder / "ca.key"
    if not key_file.exists():
        # Not by trustme, whose authorities are valid for a thousand years: this one is for real
        # hosts, too.
        key = ec.generate_private_key(ec.SECP384R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wecfl federation")])
        begin, end = _validity(AUTHORITY_YEARS)
        subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        usage = x509.KeyUsage(
            key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(subject_key, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA384())
        )
        certificate_file.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_key(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_file, key_file


def server_certificate(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """Make `server.crt` and `server.key` anew, signed by the authority of the same folder.

    The certificate is valid for each of `hosts`, which are names or addresses.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     certificate, key = server_certificate(Path(place), ["localhost", "127.0.0.1"])
    ...     certificate.name, oct(key.stat().st_mode)
    ('server.crt', '0o100600')
    """
    signer = trustme.CA.from_pem(*(file.read_bytes() for file in authority(folder)))
    begin, end = _validity(SERVER_YEARS)
    issued = signer.issue_cert(
        *hosts, common_name=hosts[0][:64], not_before=begin, not_after=end,
        organization_name="wecfl federation", organization_unit_name="server",
    )  # fmt: skip
    certificate_file, key_file = folder / "server.crt", folder / "server.key"
    key_file.unlink(missing_ok=True)
    _write_key(key_file, issued.private_key_pem.bytes())
    issued.cert_chain_pems[0].write_to_path(certificate_file)
    return certificate_file, key_file


def node_key(file: Path) -> Path:
    """Make a key for a node in OpenSSH's format; return the file of its public half (`.pub`).

    It does the same as `ssh-keygen -t ecdsa -b 384 -N "" -f FILE`.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public_file = file.with_name(f"{file.name}.pub")
    public_text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public_file.write_bytes(public_text + b"\n")
    return public_file


def _validity(years: int) -> tuple[datetime, datetime]:
    """The time of validity; it begins an hour ago, since the clocks of hosts differ."""
    now = datetime.now(UTC)
    return now - timedelta(hours=1), now + timedelta(days=365 * years)


def _write_key(file: Path, text: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(text)


def key_fingerprint(public: Path) -> str:
    """The fingerprint of a public key, as `ssh-keygen -lf` shows it."""
    try:
        kind, blob = public.read_text(encoding="utf-8").split()[:2]
        raw = base64.b64decode(blob, validate=True)
        load_ssh_public_key(f"{kind} {blob}".encode())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{public} is not a public key of OpenSSH: {error}") from None
    return "SHA256:" + base64.b64encode(sha256(raw).digest()).decode().rstrip("=")
