# SPDX-License-Identifier: Apache-2.0
"""Create a set of development certificates: an authority, a server's and a client's.

Not for production: the authority's key is stored next to the certificates that it signed. In
production, name the files from your own authority in `server.tls`.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tritonctl.errors import UsageError
from tritonctl.host.files import PRIVATE, as_host_error

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

HOSTS = ("localhost", "127.0.0.1", "::1")
LIFETIME = timedelta(days=90)
KINDS = ("ca", "server", "client")
# Machines with a slightly slow clock must accept new certificates.
_SKEW = timedelta(hours=1)
_IGNORE = ".gitignore"

Signer = tuple["x509.Certificate", "EllipticCurvePrivateKey"]


def make_certificates(
    folder: Path,
    hosts: Sequence[str] = (),
    *,
    lifetime: timedelta = LIFETIME,
    force: bool = False,
) -> list[Path]:
    """Write ca, server and client (.crt and .key) into `folder`; return their paths.

    hosts: names and addresses of the server in addition to localhost. Only the owner may read the
    keys, and git ignores them. Raises UsageError rather than overwrite files, unless `force`.
    """
    files = [folder / f"{kind}.{suffix}" for kind in KINDS for suffix in ("crt", "key")]
    existing = [file for file in files if file.exists()]
    if existing and not force:
        raise UsageError(
            f"{existing[0]} already exists",
            remedy=f"use it, choose another folder, or replace the whole set: "
            f"`tritonctl certs {folder} --force`",
        )
    contents = _contents([*HOSTS, *hosts], lifetime)
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    with as_host_error(folder):
        try:
            _write(staging, contents)
            folder.mkdir(parents=True, exist_ok=True)
            for name in contents:
                os.replace(staging / name, folder / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return files


def tls_section(folder: Path) -> dict[str, str]:
    """Return `server.tls` of a project file for the set in `folder`, with mutual TLS."""
    return {
        "certificate": str(folder / "server.crt"),
        "key": str(folder / "server.key"),
        "client_ca": str(folder / "ca.crt"),
        "ca": str(folder / "ca.crt"),
        "client_certificate": str(folder / "client.crt"),
        "client_key": str(folder / "client.key"),
    }


def _write(staging: Path, contents: dict[str, bytes]) -> None:
    staging.mkdir(parents=True, mode=0o700)
    for name, content in contents.items():
        mode = PRIVATE if name.endswith(".key") else 0o644
        descriptor = os.open(staging / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def _contents(hosts: Sequence[str], lifetime: timedelta) -> dict[str, bytes]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority = _authority(lifetime)
    signed = {
        "ca": authority,
        "server": _sign(authority, "tritonctl server", hosts, lifetime),
        "client": _sign(authority, "tritonctl client", (), lifetime),
    }
    files = {_IGNORE: b"*.key\n"}
    for name, (certificate, key) in signed.items():
        files[f"{name}.crt"] = certificate.public_bytes(Encoding.PEM)
        encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files[f"{name}.key"] = encoded
    return files


def _authority(lifetime: timedelta) -> Signer:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _name(f"tritonctl development CA {secrets.token_hex(4)}")
    usage = _usage(signs_certificates=True)
    builder = (
        _builder(name, name, key, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


def _sign(authority: Signer, name: str, hosts: Sequence[str], lifetime: timedelta) -> Signer:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    (issuer, issuer_key), key = authority, _new_key()
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        _builder(_name(name), issuer.subject, key, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(identifier, critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(identifier, critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    with suppress(ValueError):  # not an address: a name, or refused below
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise UsageError(
            f"--host {host!r} is neither an IP address nor a DNS name",
            remedy="use ASCII names as in DNS (xn--… for others), or IP addresses",
        ) from error


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())
