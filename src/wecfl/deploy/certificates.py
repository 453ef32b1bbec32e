"""The authority of a federation, the certificate of its server, the keys of its nodes.

Elliptic curves throughout (P-384). Private keys are written with mode 0600, and never over
another one, but for the server's, which is made anew together with its certificate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

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

__all__ = ["authority", "node_key", "server_certificate"]

AUTHORITY_YEARS = 10
"""How long an authority is valid; a server's certificate is for one."""


def authority(folder: Path) -> tuple[Path, Path]:
    """`ca.crt` and `ca.key`, made if they are not there yet.

    Whoever has the key can pose as the server; the nodes need the certificate only.
    """
    certificate, file = folder / "ca.crt", folder / "ca.key"
    if not file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wecfl federation")])
        made = (
            _certificate(name, name, key.public_key(), AUTHORITY_YEARS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        certificate.write_bytes(made.public_bytes(Encoding.PEM))
        _write_key(file, key, PrivateFormat.PKCS8)
    return certificate, file


def server_certificate(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """`server.crt` and `server.key`, made anew: signed by the authority of the same folder.

    Valid under each of `hosts`, names or addresses.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     certificate, key = server_certificate(Path(place), ["localhost", "127.0.0.1"])
    ...     certificate.name, oct(key.stat().st_mode)
    ('server.crt', '0o100600')
    """
    ca_file, ca_key_file = authority(folder)
    ca = x509.load_pem_x509_certificate(ca_file.read_bytes())
    ca_key = load_pem_private_key(ca_key_file.read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    made = (
        _certificate(name, ca.subject, key.public_key(), 1)
        .add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    certificate, file = folder / "server.crt", folder / "server.key"
    file.unlink(missing_ok=True)
    _write_key(file, key, PrivateFormat.PKCS8)
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    return certificate, file


def node_key(file: Path) -> Path:
    """A new key for a node, in OpenSSH's format; returned is its public half, beside it (`.pub`).

    The same as `ssh-keygen -t ecdsa -b 384 -N "" -f FILE`.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(file, key, PrivateFormat.OpenSSH)
    public = file.with_name(f"{file.name}.pub")
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(text + b"\n")
    return public


def _certificate(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=365 * years))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    text = key.private_bytes(Encoding.PEM, form, NoEncryption())
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(text)
