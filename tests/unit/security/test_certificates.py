# SPDX-License-Identifier: Apache-2.0
"""The development set; what is told of certificates that cannot work before a server starts."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from tritonctl.errors import ConfigurationError, HostError, UsageError
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.security.certificate_checks import (
    certificate_files,
    check_gateway,
    check_server_tls,
    exposed_keys,
)
from tritonctl.security.certificates import make_certificates, tls_section

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox


def certificate(path: Path) -> x509.Certificate:
    """The first certificate in a file."""
    return x509.load_pem_x509_certificates(path.read_bytes())[0]


@pytest.fixture
def certs(sandbox: Sandbox) -> Path:
    """A set in the project's folder, and `server.tls` naming it."""
    folder = sandbox.root / "certs"
    make_certificates(folder)
    sandbox.data["server"]["tls"] = tls_section(Path("certs"))
    return folder


def with_tls(sandbox: Sandbox, **fields: Any) -> Project:
    """The project with some fields of server.tls changed; None removes one."""
    tls = sandbox.data["server"]["tls"] | fields
    sandbox.data["server"]["tls"] = {k: v for k, v in tls.items() if v is not None}
    return sandbox.load()


def test_a_set_for_every_host(tmp_path: Path) -> None:
    """Names and addresses, those of this machine always; signed by the set's own authority."""
    make_certificates(
        tmp_path / "c", ["triton.example.com", "192.0.2.7"], lifetime=timedelta(days=3)
    )
    server = certificate(tmp_path / "c" / "server.crt")
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "triton.example.com"]
    addresses = [ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "192.0.2.7")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    lasts = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=2, hours=20) < lasts <= timedelta(days=3)
    for kind in ("server", "client"):
        leaf = certificate(tmp_path / "c" / f"{kind}.crt")
        leaf.verify_directly_issued_by(certificate(tmp_path / "c" / "ca.crt"))


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl program")
def test_openssl_agrees(tmp_path: Path) -> None:
    """Another implementation accepts the chain for a server and for a client, strictly."""
    make_certificates(tmp_path)
    for kind in ("server", "client"):
        command = ["openssl", "verify", "-x509_strict", "-purpose", f"ssl{kind}"]
        command += ["-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / f"{kind}.crt")]
        subprocess.run(command, check=True, capture_output=True)


def test_keys_are_their_owner_s_alone(tmp_path: Path) -> None:
    """0600 whatever the umask, and hidden from git; no staging folder is left."""
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "c")
    finally:
        os.umask(before)
    keys = sorted(path for path in (tmp_path / "c").iterdir() if path.suffix == ".key")
    assert [path.name for path in keys] == ["ca.key", "client.key", "server.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert (tmp_path / "c" / ".gitignore").read_text() == "*.key\n"
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    """One file of a set is enough to refuse; with force the whole set is new."""
    make_certificates(tmp_path)
    for name in ("ca.crt", "ca.key", "server.crt", "server.key", "client.crt"):
        (tmp_path / name).unlink()
    kept = (tmp_path / "client.key").read_bytes()
    with pytest.raises(UsageError, match=r"client\.key already exists"):
        make_certificates(tmp_path)
    assert (tmp_path / "client.key").read_bytes() == kept
    assert not (tmp_path / "ca.key").exists()
    make_certificates(tmp_path, force=True)
    assert (tmp_path / "client.key").read_bytes() != kept


def test_a_host_that_no_certificate_can_have(tmp_path: Path) -> None:
    """Refused by name, nothing written."""
    with pytest.raises(UsageError, match="--host 'füü'"):
        make_certificates(tmp_path / "c", ["füü"])
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_what_the_project_needs(cli: Cli, sandbox: Sandbox) -> None:
    """Its output is YAML that the project file takes; --json the same as data."""
    done = cli("certs", "--host", "example.com")
    assert done.returncode == 0, done.stderr
    sandbox.file.write_text(
        sandbox.file.read_text().replace("server:\n", done.stdout, 1), encoding="utf-8"
    )
    told = cli("certs", "--force", "--json")
    assert json.loads(told.stdout)["tls"] == tls_section(Path("certs"))
    refused = cli("certs")
    assert refused.returncode == 2
    assert "tritonctl certs certs --force" in refused.stderr


def test_paths_are_the_project_file_s(cli: Cli, sandbox: Sandbox) -> None:
    """From a folder below it, too: that is where server.tls begins."""
    below = sandbox.root / "deployment"
    below.mkdir()
    done = type(cli)(below)("certs", "--json")
    section = json.loads(done.stdout)["tls"]
    assert section == tls_section(Path("deployment") / "certs")
    sandbox.data["server"]["tls"] = section
    assert check_server_tls(sandbox.load()) is not None


def test_a_good_set_passes(sandbox: Sandbox, certs: Path) -> None:
    """And gives the clients' side, in absolute paths."""
    client = check_server_tls(sandbox.load())
    expected = ClientTls(certs / "ca.crt", certs / "client.crt", certs / "client.key")
    assert client == expected


def test_without_tls_there_is_nothing_to_check(sandbox: Sandbox) -> None:
    """Plain gRPC."""
    assert check_server_tls(sandbox.load()) is None
    assert certificate_files(sandbox.load()) == {}


@pytest.mark.parametrize(
    "field", ["certificate", "key", "client_ca", "ca", "client_certificate", "client_key"]
)
def test_a_missing_file(sandbox: Sandbox, certs: Path, field: str) -> None:
    """Each field by its path in the project file, with what to type."""
    project = with_tls(sandbox, **{field: "nowhere.pem"})
    with pytest.raises(
        HostError, match=rf"^server\.tls\.{field}: .*nowhere\.pem does not exist"
    ) as e:
        check_server_tls(project)
    assert "tritonctl certs" in e.value.remedy


@pytest.mark.parametrize("field", ["certificate", "key", "client_key", "ca"])
def test_no_pem(sandbox: Sandbox, certs: Path, field: str) -> None:
    """A file of something else, and a folder."""
    (sandbox.root / "text").write_text("hello")
    with pytest.raises(HostError, match=rf"^server\.tls\.{field}: .*text contains no PEM"):
        check_server_tls(with_tls(sandbox, **{field: "text"}))
    with pytest.raises(HostError, match=rf"^server\.tls\.{field}: .*certs cannot be read: Is"):
        check_server_tls(with_tls(sandbox, **{field: "certs"}))


def test_an_encrypted_key(sandbox: Sandbox, certs: Path) -> None:
    """Triton cannot ask for a password."""
    key = load_pem_private_key((certs / "server.key").read_bytes(), password=None)
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (certs / "server.key").write_bytes(encrypted)
    with pytest.raises(HostError, match="is encrypted") as error:
        check_server_tls(sandbox.load())
    assert "openssl pkey -in" in error.value.remedy


def test_before_and_after_its_time(sandbox: Sandbox, certs: Path) -> None:
    """Expired; not valid yet, which may be the clock's fault."""
    project, now = sandbox.load(), datetime.now(UTC)
    with pytest.raises(HostError, match=r"server\.tls\.certificate: .* expired on 20\d\d-"):
        check_server_tls(project, now=now + timedelta(days=91))
    with pytest.raises(HostError, match="is not valid before") as error:
        check_server_tls(project, now=now - timedelta(days=1))
    assert "timedatectl" in error.value.remedy


@pytest.mark.parametrize(
    ("key", "certificate_field"),
    [("key", "certificate"), ("client_key", "client_certificate")],
)
def test_a_key_of_another_certificate(
    sandbox: Sandbox, certs: Path, key: str, certificate_field: str
) -> None:
    """Both fields are named."""
    with pytest.raises(HostError, match=rf"server\.tls\.{key}: .* is not the key of") as error:
        check_server_tls(with_tls(sandbox, **{key: "certs/ca.key"}))
    assert f"server.tls.{certificate_field}" in error.value.problem


@pytest.mark.parametrize(
    ("authority", "signed"), [("ca", "certificate"), ("client_ca", "client_certificate")]
)
def test_an_authority_that_did_not_sign(
    sandbox: Sandbox, certs: Path, authority: str, signed: str
) -> None:
    """Another set's, for the server's side and for the client's."""
    make_certificates(sandbox.root / "other")
    with pytest.raises(HostError, match=rf"server\.tls\.{signed}: .* is not signed by") as error:
        check_server_tls(with_tls(sandbox, **{authority: "other/ca.crt"}))
    assert f"server.tls.{authority}" in error.value.problem


def test_a_client_s_certificate_for_the_server(sandbox: Sandbox, certs: Path) -> None:
    """And the other way round: the handshake would fail without a word about why."""
    client = {"certificate": "certs/client.crt", "key": "certs/client.key"}
    with pytest.raises(HostError, match=r"server\.tls\.certificate: .* is not for servers"):
        check_server_tls(with_tls(sandbox, **client))
    make_certificates(certs, force=True)
    server = {"client_certificate": "certs/server.crt", "client_key": "certs/server.key"}
    tls = tls_section(Path("certs")) | server
    with pytest.raises(HostError, match=r"server\.tls\.client_certificate: .* is not for clients"):
        check_server_tls(with_tls(sandbox, **tls))


def issued(name: str, key: Any, issuer: str, by: Any, *, ca: bool) -> bytes:
    """A certificate in PEM, for localhost."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    return builder.sign(by, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_chain_over_an_intermediate_authority(sandbox: Sandbox, certs: Path) -> None:
    """The intermediate's certificate stands in the server's file; without it nobody can tell."""
    root, middle, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    (certs / "root.crt").write_bytes(issued("root", root, "root", root, ca=True))
    between = issued("middle", middle, "root", root, ca=True)
    leaf = issued("leaf", own, "middle", middle, ca=False)
    (certs / "leaf.key").write_bytes(
        own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    files = {"certificate": "certs/leaf.crt", "key": "certs/leaf.key", "ca": "certs/root.crt"}
    (certs / "leaf.crt").write_bytes(leaf + between)
    assert check_server_tls(with_tls(sandbox, **files)) is not None
    (certs / "leaf.crt").write_bytes(leaf)
    with pytest.raises(HostError, match=r"is not signed by server\.tls\.ca"):
        check_server_tls(sandbox.load())


def test_a_bundle_of_authorities(sandbox: Sandbox, certs: Path) -> None:
    """One of several is enough."""
    make_certificates(sandbox.root / "other")
    both = (sandbox.root / "other" / "ca.crt").read_bytes() + (certs / "ca.crt").read_bytes()
    (sandbox.root / "bundle.crt").write_bytes(both)
    assert check_server_tls(with_tls(sandbox, ca="bundle.crt", client_ca="bundle.crt")) is not None


def test_mutual_tls_without_a_certificate_of_our_own(sandbox: Sandbox, certs: Path) -> None:
    """`up` could not even ask whether the server is ready."""
    project = with_tls(sandbox, client_certificate=None, client_key=None)
    with pytest.raises(ConfigurationError, match=r"server\.tls\.client_certificate is missing"):
        check_server_tls(project)


def test_a_certificate_for_a_name_and_not_for_the_address(sandbox: Sandbox, certs: Path) -> None:
    """The project's clients look for the name that is in it."""
    sandbox.data["server"]["address"] = "0.0.0.0"  # noqa: S104 - nothing listens in this test
    client = check_server_tls(sandbox.load())
    assert client is not None
    assert client.server_name == "localhost"


def test_bad_certificates_end_up_with_exit_code_4(cli: Cli, built: Sandbox, certs: Path) -> None:
    """From the command line, and nothing has been started or left."""
    with_tls(built, key="certs/client.key")
    done = cli("up")
    assert done.returncode == 4, done.stderr
    assert "server.tls.key" in done.stderr
    assert "tritonctl certs --force" in done.stderr
    assert not (built.root / ".tritonctl" / "server" / "state.json").exists()


def with_gateway(sandbox: Sandbox, **gateway: Any) -> Project:
    """The project with a gateway whose certificate is the server's, some fields changed."""
    tls = {"certificate": "certs/server.crt", "key": "certs/server.key"} | gateway.pop("tls", {})
    sandbox.data["gateway"] = {"tls": tls, **gateway}
    return sandbox.load()


def test_a_gateway_that_can_work(sandbox: Sandbox) -> None:
    """A set that is for the name by which it reaches Triton, a key of a tenant."""
    make_certificates(sandbox.root / "certs", ["triton"])
    sandbox.data["server"]["tls"] = tls_section(Path("certs"))
    (sandbox.root / "alice").write_text("k3y\n", encoding="utf-8")
    tenants = {"alice": {"api_key_file": "alice"}}
    check_gateway(with_gateway(sandbox, tenants=tenants), "triton")
    check_gateway(with_gateway(sandbox, tls={"client_ca": "certs/ca.crt"}), "triton")
    del sandbox.data["gateway"]
    check_gateway(sandbox.load(), "triton")


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        (
            {"key": "certs/client.key"},
            r"gateway\.tls\.key: .* is not the key of gateway\.tls\.cert",
        ),
        ({"key": "certs/none.key"}, r"gateway\.tls\.key: .* does not exist"),
        (
            {"certificate": "certs/client.crt", "key": "certs/client.key"},
            r"gateway\.tls\.certificate: .* is not for servers",
        ),
        ({"client_ca": "certs/ca.key"}, r"gateway\.tls\.client_ca: .* contains no PEM certificate"),
    ],
)
def test_a_gateway_s_certificate_that_cannot_work(
    sandbox: Sandbox, certs: Path, tls: dict[str, str], told: str
) -> None:
    """Envoy would end again and again, while every server is ready."""
    with pytest.raises(HostError, match=told):
        check_gateway(with_gateway(sandbox, tls=tls), "localhost")


def test_a_gateway_s_certificate_that_has_expired(sandbox: Sandbox, certs: Path) -> None:
    """As with the server's."""
    late = datetime.now(UTC) + timedelta(days=91)
    with pytest.raises(HostError, match=r"gateway\.tls\.certificate: .* expired on"):
        check_gateway(with_gateway(sandbox), "localhost", now=late)


def test_a_server_s_certificate_that_the_gateway_would_refuse(
    sandbox: Sandbox, certs: Path
) -> None:
    """It would have no server to send anything to."""
    with pytest.raises(HostError, match="does not name `triton`") as error:
        check_gateway(with_gateway(sandbox), "triton")
    assert "tritonctl certs --host triton --force" in error.value.remedy


@pytest.mark.parametrize(("content", "told"), [(None, "No such file"), ("\n", "it is empty")])
def test_a_tenant_s_key_that_is_none(
    sandbox: Sandbox, certs: Path, content: str | None, told: str
) -> None:
    """The field is named, and how a key is made."""
    if content is not None:
        (sandbox.root / "alice").write_text(content, encoding="utf-8")
    project = with_gateway(sandbox, tenants={"alice": {"api_key_file": "alice"}})
    with pytest.raises(
        HostError, match=rf"gateway\.tenants\.alice\.api_key_file: .*{told}"
    ) as error:
        check_gateway(project, "localhost")
    assert "openssl rand -hex 32" in error.value.remedy


def test_keys_that_everybody_may_read(certs: Path, sandbox: Sandbox) -> None:
    """Each by its field, with the command that closes it; a group's access is somebody's choice."""
    key, secret = sandbox.root / "alice key", sandbox.root / "secret"
    for file in (key, secret):
        file.write_text("0" * 32, encoding="utf-8")
        file.chmod(0o600)
    sandbox.data["gateway"] = {
        "tenants": {"alice": {"api_key_file": key.name}},
        "frontend_secret_file": secret.name,
        "tls": {"certificate": "certs/server.crt", "key": "certs/server.key"},
    }
    project = with_tls(sandbox)
    assert exposed_keys(project) == []
    for file in (certs / "server.key", certs / "client.key", key, secret):
        file.chmod(0o640)
    assert exposed_keys(project) == []
    for file in (certs / "server.key", certs / "client.key", key, secret):
        file.chmod(0o644)
    warnings = exposed_keys(project)
    assert [warning.split(":")[0] for warning in warnings] == [
        "server.tls.key",
        "server.tls.client_key",
        "gateway.tls.key",
        "gateway.frontend_secret_file",
        "gateway.tenants.alice.api_key_file",
    ]
    assert warnings[-1].endswith(f"chmod 600 '{key}'")
