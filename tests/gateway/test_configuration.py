# SPDX-License-Identifier: Apache-2.0
"""Envoy itself accepts what is made of every kind of settings, and nothing secret is in it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.envoy_process import on_this_host, project_with, validate
from tritonctl.gateway.certificates import certificate_files
from tritonctl.gateway.files import configuration_text, gateway_files
from tritonctl.gateway.placement import (
    EnvoyUpstream,
    RenewedCertificates,
    container_placement,
    secret_files,
)
from tritonctl.project.server import Gateway

SECRET = "5ecret-of-alice"  # noqa: S105 - a test's
CERTIFICATE = {"certificate": "edge.crt", "key": "edge.key"}
ALICE, BOB = {"api_key_file": "alice.key"}, {"api_key_file": "bob.key"}
LIMITED = {**ALICE, "requests_per_minute": 600, "burst": 20}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"retries": 0},
    {"retries": 5, "max_requests": 1, "stream_idle_seconds": 1},
    {"max_requests": 100_000, "stream_idle_seconds": 86_400, "trust_traces": True},
    {"address": "0.0.0.0", "port": 443},  # noqa: S104 - validated, not listened on
    {"address": "::1"},
    {"tls": CERTIFICATE},
    {"tls": {**CERTIFICATE, "client_ca": "ca.crt"}},
    {"tenants": {"alice": ALICE}},
    {"tenants": {"alice": LIMITED}},
    {"tenants": {"alice": {**ALICE, "requests_per_minute": 1}, "bob": BOB}},
    {"tenants": {"team.a-1_x": LIMITED, "bob": BOB}, "tls": CERTIFICATE, "retries": 1},
]
UPSTREAMS = [
    [EnvoyUpstream("127.0.0.1", 9001, 9000)],
    [EnvoyUpstream("127.0.0.1", 9001, 9000), EnvoyUpstream("localhost", 9003, 9002)],
    [EnvoyUpstream("::1", 9001, 9000)],
]
SERVER_TLS = {"certificate": "edge.crt", "key": "edge.key", "ca": "ca.crt"}
MUTUAL = {"client_ca": "ca.crt", "client_certificate": "edge.crt", "client_key": "edge.key"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys and a certificate."""
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "alice.key").write_text(f"{SECRET}\n")
    (folder / "bob.key").write_text("another\n")
    make_certificate(folder, "edge")
    (folder / "ca.crt").write_bytes((folder / "edge.crt").read_bytes())
    return folder


def make_certificate(folder: Path, name: str) -> None:
    """Self-signed, for this machine."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"]
    subprocess.run(command, check=True, capture_output=True)


def assert_accepted(text: str, folder: Path) -> None:
    """By Envoy, without a word about anything deprecated or ignored."""
    file = folder / "envoy.yaml"
    file.write_text(text)
    done = validate(file)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stderr.splitlines() if "[warning]" in line] == []


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_envoy_accepts_the_settings(settings: dict[str, Any], root: Path) -> None:
    """Every field, alone and with others."""
    project = project_with(settings, root)
    text = configuration_text(project, on_this_host(project, UPSTREAMS[1]))
    assert_accepted(text, root)
    assert SECRET not in text


@pytest.mark.parametrize("more", [{}, {"frontend_secret_file": "bob.key"}], ids=["keys", "word"])
def test_envoy_accepts_the_frontend(more: dict[str, str], root: Path) -> None:
    """With its own check of keys, and with the gateway's word."""
    project = project_with({"tenants": {"alice": LIMITED}, **more}, root)
    placement = on_this_host(project, UPSTREAMS[0], ("localhost", 9010))
    assert_accepted(configuration_text(project, placement), root)


@pytest.mark.parametrize("upstreams", UPSTREAMS, ids=str)
@pytest.mark.parametrize("tls", [None, SERVER_TLS, SERVER_TLS | MUTUAL], ids=["plain", "tls", "m"])
def test_envoy_accepts_the_upstreams(
    upstreams: list[EnvoyUpstream], tls: dict[str, str] | None, root: Path
) -> None:
    """Names and addresses, plain and encrypted."""
    project = project_with({}, root, {"tls": tls} if tls else None)
    assert_accepted(configuration_text(project, on_this_host(project, upstreams)), root)


@pytest.mark.parametrize("watched", [None, "."], ids=["files", "folder"])
@pytest.mark.parametrize("tls", [None, SERVER_TLS, SERVER_TLS | MUTUAL], ids=["plain", "tls", "m"])
def test_envoy_accepts_certificates_that_are_renewed(
    tls: dict[str, str] | None, watched: str | None, root: Path
) -> None:
    """Named in a file of their own; the configuration says nothing of them but their names."""
    settings = {"tls": {**CERTIFICATE, "client_ca": "ca.crt"}}
    project = project_with(settings, root, {"tls": tls} if tls else None)
    folder = root / "certificates"
    folder.mkdir(exist_ok=True)
    renewed = RenewedCertificates(str(folder), watched and str(root))
    placement = replace(on_this_host(project, UPSTREAMS[1]), renewed=renewed)
    files = certificate_files(placement)
    for name, content in files.items():
        (folder / name).write_text(content)
    text = configuration_text(project, placement)
    assert_accepted(text, root)
    assert "edge.crt" not in text
    assert len(files) == 2 + (tls is not None) + (tls is not None and len(tls) > len(SERVER_TLS))
    for content in files.values():
        assert ("watched_directory" in content) == (watched is not None)


def test_what_a_container_gets(root: Path) -> None:
    """One file; secrets by the paths at which compose mounts them; the replicas' one DNS name."""
    settings = {"tenants": {"alice": LIMITED}, "tls": CERTIFICATE, "port": 8443}
    project = project_with(settings, root)
    files = gateway_files(project)
    assert set(files) == {
        "envoy/envoy.yaml",
        "envoy/envoy.Dockerfile",
        "envoy/drain_gateway.py",
        "envoy/requirements.txt",
    }
    assert list(gateway_files(project_with({"image": "x"}, root))) == ["envoy/envoy.yaml"]
    text = files["envoy/envoy.yaml"]
    assert secret_files(project) == {
        "gateway_api_key_alice": root / "alice.key",
        "gateway_tls_certificate": root / "edge.crt",
        "gateway_tls_key": root / "edge.key",
    }
    for name in secret_files(project):
        assert f"/run/secrets/{name}" in text
    assert str(root) not in text
    data = yaml.safe_load(text)["static_resources"]
    listening = [each["address"]["socket_address"] for each in data["listeners"]]
    assert listening == [
        {"address": "0.0.0.0", "port_value": 8443},  # noqa: S104 - of a container
        {"address": "0.0.0.0", "port_value": 9901},  # noqa: S104 - same
    ]
    hosts = {
        endpoint["endpoint"]["address"]["socket_address"]["address"]
        for cluster in data["clusters"][:2]
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    }
    assert hosts == {"triton"}


def test_a_key_that_is_not_there_closes_the_gateway(root: Path) -> None:
    """Envoy starts all the same: that tenant's requests are refused, the others' are not."""
    settings = {"tenants": {"carol": {"api_key_file": "absent.key"}, "bob": BOB}}
    project = project_with(settings, root)
    assert_accepted(configuration_text(project, on_this_host(project, UPSTREAMS[0])), root)


def test_administration_has_no_port(root: Path) -> None:
    """Metrics go through a listener that knows two paths."""
    project = project_with({}, root)
    data = yaml.safe_load(configuration_text(project, container_placement(project, UPSTREAMS[0])))
    pipe = {"path": "/tmp/tritonctl-gateway-admin.sock", "mode": 0o600}  # noqa: S108
    assert data["admin"]["address"] == {"pipe": pipe}
    manager = data["static_resources"]["listeners"][1]["filter_chains"][0]["filters"][0]
    [host] = manager["typed_config"]["route_config"]["virtual_hosts"]
    assert [route["match"] for route in host["routes"]] == [
        {"path": "/ready"},
        {"path": "/stats/prometheus"},
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tenants": {"a": {**ALICE, "burst": 3}}}, "requests_per_minute"),
        ({"tenants": {"a b": ALICE}}, "pattern"),
        ({"retries": 6}, "less than or equal to 5"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    """Refused when they are read."""
    with pytest.raises(ValueError, match=words):
        Gateway.model_validate(settings)
