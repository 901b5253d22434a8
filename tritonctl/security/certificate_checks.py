# SPDX-License-Identifier: Apache-2.0
"""Check the certificates of `server.tls` and `gateway.tls` before anything starts.

Otherwise a mistake shows as "failed to connect to all addresses" in a client, or as a server that
exits silently.
"""

from __future__ import annotations

import ipaddress
import shlex
import stat
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

_RENEW_REMEDY = "name a valid one, or create a new development set: `tritonctl certs --force`"


@dataclass(frozen=True)
class CertificateFile:
    """A PEM file of certificates."""

    field: str  # of tritonctl.yaml that names the file
    path: Path
    certificates: Sequence[x509.Certificate]  # the subject's certificate first

    def __str__(self) -> str:
        """Return field and path for messages."""
        return f"{self.field}: {self.path}"


def certificate_files(project: Project) -> dict[str, CertificateFile]:
    """Read the certificates of `server.tls` by field, without checking them.

    Raises HostError for a missing, unreadable or invalid file.
    """
    tls = project.server.tls
    if tls is None:
        return {}
    paths = {
        name: path
        for name in ("certificate", "client_ca", "ca", "client_certificate")
        if (path := getattr(tls, name)) is not None
    }
    return {
        name: _read_certificates(f"server.tls.{name}", project.path(path))
        for name, path in paths.items()
    }


def exposed_keys(project: Project) -> list[str]:
    """Return a warning for each private key or API key that any user of this machine may read."""
    paths: dict[str, Path | None] = {}
    if tls := project.server.tls:
        paths |= {"server.tls.key": tls.key, "server.tls.client_key": tls.client_key}
    if gateway := project.gateway:
        paths["gateway.tls.key"] = gateway.tls.key if gateway.tls else None
        paths["gateway.frontend_secret_file"] = gateway.frontend_secret_file
        for name, tenant in gateway.tenants.items():
            paths[f"gateway.tenants.{name}.api_key_file"] = tenant.api_key_file
    if frontend := project.frontend:
        paths |= {f"frontend.{field}": file for field, file in frontend.secret_files.items()}
    return [
        f"{field}: every user of this machine may read {path}: chmod 600 {shlex.quote(str(path))}"
        for field, relative in paths.items()
        if relative is not None and _is_open(path := project.path(relative))
    ]


def _is_open(path: Path) -> bool:
    """Whether others may read the file. Group access is deliberate: Debian has ssl-cert."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False  # the checks above report it


def check_server_tls(project: Project, *, now: datetime | None = None) -> ClientTls | None:
    """Check all of `server.tls` and return the TLS settings for the project's own clients.

    Raises HostError, or ConfigurationError for an incomplete set of files.
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
        _require_client_certificate(files)
        _refuse_unsigned(files["client_certificate"], files["client_ca"])
    return client_tls(project, _expected_name(files["certificate"], project.server.address))


def client_tls(project: Project, server_name: str | None) -> ClientTls | None:
    """Return TLS settings for clients of a server with `server.tls`; None without TLS.

    server_name: host name in the server's certificate; None: the address that clients connect to.
    """
    tls = project.server.tls
    if tls is None:
        return None
    return ClientTls(
        ca=tls.ca and project.path(tls.ca),
        certificate=tls.client_certificate and project.path(tls.client_certificate),
        key=tls.client_key and project.path(tls.client_key),
        server_name=server_name,
    )


def check_gateway(project: Project, triton_host: str, *, now: datetime | None = None) -> None:
    """Check the gateway's keys and certificates. Raises HostError.

    triton_host: the name by which the gateway reaches Triton.
    """
    gateway, now = project.gateway, now or datetime.now(UTC)
    if gateway is None:
        return
    for name, tenant in gateway.tenants.items():
        _require_api_key(f"gateway.tenants.{name}.api_key_file", project.path(tenant.api_key_file))
    if gateway.frontend_secret_file is not None:
        secret = project.path(gateway.frontend_secret_file)
        _require_api_key("gateway.frontend_secret_file", secret)
    if gateway.tls is not None:
        pem = _read_certificates("gateway.tls.certificate", project.path(gateway.tls.certificate))
        _refuse_out_of_date(pem, now)
        _refuse_other_key(pem, "gateway.tls.key", project.path(gateway.tls.key))
        _refuse_other_purpose(pem, "SERVER_AUTH")
        if gateway.tls.client_ca is not None:
            authority = _read_certificates(
                "gateway.tls.client_ca", project.path(gateway.tls.client_ca)
            )
            _refuse_out_of_date(authority, now)
    if "certificate" in (files := certificate_files(project)):
        _refuse_other_name(files["certificate"], triton_host)


def _require_api_key(field: str, path: Path) -> None:
    try:
        ApiKey(path).check()
    except HostError as error:
        raise HostError(
            f"{field}: {error.problem}",
            remedy=f"correct the path, or create a key: `openssl rand -hex 32 > {path}`",
        ) from error


def _refuse_other_name(pem: CertificateFile, triton_host: str) -> None:
    names, _ = _subject_names(pem)
    if triton_host not in names:
        raise HostError(
            f"{pem} does not name `{triton_host}`, the host by which the gateway reaches Triton",
            remedy=f"add that name: `tritonctl certs --host {triton_host} --force`",
        )


def _read_certificates(field: str, path: Path) -> CertificateFile:
    from cryptography import x509

    content = _read_file(field, path)
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise HostError(
            f"{field}: {path} contains no PEM certificate: {error}",
            remedy="name a file with -----BEGIN CERTIFICATE-----; `tritonctl certs` creates a set",
        ) from error
    return CertificateFile(field, path, certificates)


def _read_file(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise HostError(
            f"{field}: {path} does not exist",
            remedy="correct the path, or create a development set: `tritonctl certs`",
        ) from error
    except OSError as error:
        raise HostError(
            f"{field}: {path} cannot be read: {error.strerror}",
            remedy=f"check `ls -l {path}`: this user must be able to read the file",
        ) from error


def _refuse_out_of_date(pem: CertificateFile, now: datetime) -> None:
    for certificate in pem.certificates:
        valid_from, valid_until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > valid_until:
            raise HostError(f"{pem} expired on {_day(valid_until)}", remedy=_RENEW_REMEDY)
        if now < valid_from:
            raise HostError(
                f"{pem} is not valid before {_day(valid_from)}; the time here is {_day(now)}",
                remedy=f"check the clock (`timedatectl`); if it is right, {_RENEW_REMEDY}",
            )


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _refuse_other_key(pem: CertificateFile, field: str, path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read_file(field, path)
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:  # the library: a password is missing
        raise HostError(
            f"{field}: {path} is encrypted, and Triton cannot ask for its password",
            remedy=f"decrypt it: `openssl pkey -in {path} -out {path.stem}.plain.key`",
        ) from error
    except ValueError as error:
        raise HostError(
            f"{field}: {path} contains no PEM private key",
            remedy="name a file with -----BEGIN PRIVATE KEY-----; `tritonctl certs` creates a set",
        ) from error
    if key.public_key() != pem.certificates[0].public_key():
        raise HostError(
            f"{field}: {path} is not the key of {pem.field}: {pem.path}",
            remedy="name a matching pair of files, or create a new set: `tritonctl certs --force`",
        )


def _refuse_other_purpose(pem: CertificateFile, purpose: str) -> None:
    """Raise HostError if the extended key usage lacks the purpose; without usage any is allowed."""
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
            remedy="check that server's and client's certificates are not swapped, or create one "
            f"for {side}; `tritonctl certs` creates both",
        )


def _require_client_certificate(files: dict[str, CertificateFile]) -> None:
    if "client_certificate" not in files:
        raise ConfigurationError(
            "server.tls.client_ca requires client certificates, but "
            "server.tls.client_certificate is missing for tritonctl itself",
            remedy="set client_certificate and client_key; `tritonctl certs` prints all fields",
        )


def _refuse_unsigned(pem: CertificateFile, authority: CertificateFile) -> None:
    """Raise HostError unless signatures chain the first certificate to one of the authority's."""
    current, intermediates = pem.certificates[0], list(pem.certificates[1:])
    while not any(_is_signed_by(current, root) for root in authority.certificates):
        issuers = [
            certificate for certificate in intermediates if _is_signed_by(current, certificate)
        ]
        if not issuers:
            raise HostError(
                f"{pem} is not signed by {authority}",
                remedy="name the authority that signed it (its issuer is "
                f"`{pem.certificates[0].issuer.rfc4514_string()}`), or create a new set: "
                "`tritonctl certs --force`",
            )
        current = issuers[0]
        intermediates.remove(current)


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):  # different issuer, key type or signature
        return False
    return True


def _expected_name(pem: CertificateFile, address: str) -> str | None:
    """Return the host name that clients must expect; None if the certificate has the address."""
    names, addresses = _subject_names(pem)
    if address in names or _as_address(address) in addresses:
        return None
    host_names = ["localhost"] if "localhost" in names else [*names, *(str(a) for a in addresses)]
    if not host_names:
        raise HostError(
            f"{pem} names no host (it has no subjectAltName)",
            remedy="create one with a name, or a new set: `tritonctl certs --force`",
        )
    return host_names[0]


def _subject_names(pem: CertificateFile) -> tuple[list[str], list[object]]:
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
