# SPDX-License-Identifier: Apache-2.0
"""Whether the certificates of `server.tls` and `gateway.tls` can work, before anything starts.

What is wrong here would otherwise show as "failed to connect to all addresses" in a client, or as
a server that ends silently.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.project.schema import Project
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls

if TYPE_CHECKING:
    from cryptography import x509

_AGAIN = "name a valid one, or make a new set to develop with: `tritonctl certs --force`"


@dataclass(frozen=True)
class Pem:
    """A file of certificates: the field that names it, the first being the one it is about."""

    field: str
    path: Path
    certificates: Sequence[x509.Certificate]

    def __str__(self) -> str:
        """For messages."""
        return f"{self.field}: {self.path}"


def certificate_files(project: Project) -> dict[str, Pem]:
    """The certificates of `server.tls` by the name of their field, read, none of them checked.

    Raises HostError for a file that is missing, unreadable or no certificate.
    """
    tls = project.server.tls
    if tls is None:
        return {}
    paths = {
        name: path
        for name in ("certificate", "client_ca", "ca", "client_certificate")
        if (path := getattr(tls, name)) is not None
    }
    return {name: _read(f"server.tls.{name}", project.path(path)) for name, path in paths.items()}


def checked_tls(project: Project, *, now: datetime | None = None) -> ClientTls | None:
    """What the project's own clients use, after all of `server.tls` has been checked.

    Raises HostError, or ConfigurationError for files that do not make a whole.
    """
    tls = project.server.tls
    if tls is None:
        return None
    files = certificate_files(project)
    for pem in files.values():
        _refuse_out_of_date(pem, now or datetime.now(UTC))
    _refuse_other_key(files["certificate"], "server.tls.key", project.path(tls.key))
    _refuse_other_purpose(files["certificate"], "SERVER_AUTH")
    if tls.client_certificate is not None and tls.client_key is not None:
        key = project.path(tls.client_key)
        _refuse_other_key(files["client_certificate"], "server.tls.client_key", key)
        _refuse_other_purpose(files["client_certificate"], "CLIENT_AUTH")
    if "ca" in files:
        _refuse_unsigned(files["certificate"], files["ca"])
    if "client_ca" in files:
        _refuse_client_without(files)
        _refuse_unsigned(files["client_certificate"], files["client_ca"])
    return client_tls(project, _expected_name(files["certificate"], project.server.address))


def client_tls(project: Project, name: str | None) -> ClientTls | None:
    """What clients of a server use that has `server.tls`; name: in its certificate.

    None: of the address that they dial.
    """
    tls = project.server.tls
    if tls is None:
        return None
    return ClientTls(
        ca=tls.ca and project.path(tls.ca),
        certificate=tls.client_certificate and project.path(tls.client_certificate),
        key=tls.client_key and project.path(tls.client_key),
        server_name=name,
    )


def check_gateway(project: Project, dialled: str, *, now: datetime | None = None) -> None:
    """Check what the gateway is given; `dialled`: the name by which it reaches Triton.

    Raises HostError.
    """
    gateway, now = project.gateway, now or datetime.now(UTC)
    if gateway is None:
        return
    for name, tenant in gateway.tenants.items():
        _refuse_no_key(f"gateway.tenants.{name}.api_key_file", project.path(tenant.api_key_file))
    if gateway.frontend_secret_file is not None:
        secret = project.path(gateway.frontend_secret_file)
        _refuse_no_key("gateway.frontend_secret_file", secret)
    if gateway.tls is not None:
        pem = _read("gateway.tls.certificate", project.path(gateway.tls.certificate))
        _refuse_out_of_date(pem, now)
        _refuse_other_key(pem, "gateway.tls.key", project.path(gateway.tls.key))
        _refuse_other_purpose(pem, "SERVER_AUTH")
        if gateway.tls.client_ca is not None:
            authority = _read("gateway.tls.client_ca", project.path(gateway.tls.client_ca))
            _refuse_out_of_date(authority, now)
    if "certificate" in (files := certificate_files(project)):
        _refuse_other_name(files["certificate"], dialled)


def _refuse_no_key(field: str, path: Path) -> None:
    try:
        ApiKey(path).check()
    except HostError as error:
        raise HostError(
            f"{field}: {error.problem}",
            remedy=f"correct the path, or make a key: `openssl rand -hex 32 > {path}`",
        ) from error


def _refuse_other_name(pem: Pem, dialled: str) -> None:
    names, _ = _names(pem)
    if dialled not in names:
        raise HostError(
            f"{pem} does not name `{dialled}`, under which the gateway reaches Triton",
            remedy=f"make one for that name, too: `tritonctl certs --host {dialled} --force`",
        )


def _read(field: str, path: Path) -> Pem:
    from cryptography import x509

    content = _content(field, path)
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise HostError(
            f"{field}: {path} holds no PEM certificate: {error}",
            remedy="give a file with -----BEGIN CERTIFICATE-----; `tritonctl certs` makes a set",
        ) from error
    return Pem(field, path, certificates)


def _content(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise HostError(
            f"{field}: {path} does not exist",
            remedy="correct the path, or make a set to develop with: `tritonctl certs`",
        ) from error
    except OSError as error:
        raise HostError(
            f"{field}: {path} cannot be read: {error.strerror}",
            remedy=f"see `ls -l {path}`: it must be a file that this user may read",
        ) from error


def _refuse_out_of_date(pem: Pem, now: datetime) -> None:
    for certificate in pem.certificates:
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > ends:
            raise HostError(f"{pem} expired on {_day(ends)}", remedy=_AGAIN)
        if now < begins:
            raise HostError(
                f"{pem} is not valid before {_day(begins)}; the time here is {_day(now)}",
                remedy=f"check the clock (`timedatectl`); if it is right, {_AGAIN}",
            )


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _refuse_other_key(pem: Pem, field: str, path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _content(field, path)
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:  # the library: a password is missing
        raise HostError(
            f"{field}: {path} is encrypted, and Triton cannot ask for its password",
            remedy=f"decrypt it: `openssl pkey -in {path} -out {path.stem}.plain.key`",
        ) from error
    except ValueError as error:
        raise HostError(
            f"{field}: {path} holds no PEM private key",
            remedy="give a file with -----BEGIN PRIVATE KEY-----; `tritonctl certs` makes a set",
        ) from error
    if key.public_key() != pem.certificates[0].public_key():
        raise HostError(
            f"{field}: {path} is not the key of {pem.field}: {pem.path}",
            remedy="name the two files that were made together, or make a new set: "
            "`tritonctl certs --force`",
        )


def _refuse_other_purpose(pem: Pem, purpose: str) -> None:
    """A certificate that says what it is for must say this; one that does not is for anything."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        usage = pem.certificates[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return
    if getattr(ExtendedKeyUsageOID, purpose) not in usage.value:
        side = "servers" if purpose == "SERVER_AUTH" else "clients"
        raise HostError(
            f"{pem} is not for {side}: its extended key usage has no {purpose}",
            remedy="check that server's and client's certificates are not swapped, or make one "
            f"for {side}; `tritonctl certs` makes both",
        )


def _refuse_client_without(files: dict[str, Pem]) -> None:
    if "client_certificate" not in files:
        raise ConfigurationError(
            "server.tls.client_ca asks clients for a certificate, and "
            "server.tls.client_certificate names none for tritonctl itself",
            remedy="name client_certificate and client_key; `tritonctl certs` prints them all",
        )


def _refuse_unsigned(pem: Pem, authority: Pem) -> None:
    """The chain from the first certificate to one of the authority's, by signatures."""
    current, rest = pem.certificates[0], list(pem.certificates[1:])
    while not any(_signed(current, by) for by in authority.certificates):
        above = [certificate for certificate in rest if _signed(current, certificate)]
        if not above:
            raise HostError(
                f"{pem} is not signed by {authority}",
                remedy="name the authority that signed it (its issuer is "
                f"`{pem.certificates[0].issuer.rfc4514_string()}`), or make a new set: "
                "`tritonctl certs --force`",
            )
        current = above[0]
        rest.remove(current)


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):  # another name, kind of key, or signature
        return False
    return True


def _expected_name(pem: Pem, address: str) -> str | None:
    """The name to look for in the server's certificate, where it does not have the address."""
    names, addresses = _names(pem)
    if address in names or _as_address(address) in addresses:
        return None
    known = ["localhost"] if "localhost" in names else [*names, *(str(a) for a in addresses)]
    if not known:
        raise HostError(
            f"{pem} names no host (it has no subjectAltName)",
            remedy="make one with a name, or a new set: `tritonctl certs --force`",
        )
    return known[0]


def _names(pem: Pem) -> tuple[list[str], list[object]]:
    from cryptography import x509

    try:
        names = pem.certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return [], []
    dns = names.value.get_values_for_type(x509.DNSName)
    return dns, list(names.value.get_values_for_type(x509.IPAddress))


def _as_address(text: str) -> object:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
