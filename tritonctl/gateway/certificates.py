# SPDX-License-Identifier: Apache-2.0
"""Certificates and keys by path: read once, or reread whenever they are renewed.

Envoy rereads them only if a secret discovery service names them: here, files that tritonctl writes
next to its configuration.
https://www.envoyproxy.io/docs/envoy/latest/configuration/security/secret
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from tritonctl.gateway.placement import (
    EnvoyUpstream,
    GatewayPlacement,
    RenewedCertificates,
    edge_secret,
    triton_secret,
)

Message = dict[str, Any]

_SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105 - a type


def edge_context(placement: GatewayPlacement) -> Message:
    """Return `common_tls_context` for the port that clients connect to."""
    names = (edge_secret("certificate"), edge_secret("key"))
    common: Message = {
        "alpn_protocols": ["h2", "http/1.1"],
        **_certificate(placement, *names),
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
    }
    if edge_secret("client_ca") in placement.secrets:
        common |= _authority(placement, edge_secret("client_ca"), {})
    return common


def triton_context(placement: GatewayPlacement) -> Message:
    """Return `common_tls_context` for connections to Triton's gRPC port."""
    names = [_alt_name(upstream) for upstream in placement.upstreams]
    common: Message = {
        "alpn_protocols": ["h2"],
        **_authority(placement, triton_secret("ca"), {"match_typed_subject_alt_names": names}),
    }
    if triton_secret("client_certificate") in placement.secrets:
        common |= _certificate(
            placement, triton_secret("client_certificate"), triton_secret("client_key")
        )
    return common


def certificate_files(placement: GatewayPlacement) -> dict[str, str]:
    """Return the text of each file in `renewed.folder` by name: Envoy takes one secret per file.

    Empty if Envoy reads certificates once.
    """
    if placement.renewed is None:
        return {}
    watched = placement.renewed.watched
    watch_options = {} if watched is None else {"watched_directory": {"path": watched}}
    secrets: dict[str, Message] = {}
    for name, key in (
        (edge_secret("certificate"), edge_secret("key")),
        (triton_secret("client_certificate"), triton_secret("client_key")),
    ):
        if name in placement.secrets:
            secrets[name] = {"tls_certificate": {**_pair(placement, name, key), **watch_options}}
    for name in (edge_secret("client_ca"), triton_secret("ca")):
        if name in placement.secrets:
            trusted = {"trusted_ca": {"filename": placement.secrets[name]}, **watch_options}
            secrets[name] = {"validation_context": trusted}
    return {f"{name}.json": _resource(name, secret) for name, secret in secrets.items()}


def _resource(name: str, secret: Message) -> str:
    return json.dumps({"resources": [{"@type": _SECRET, "name": name, **secret}]}, indent=1) + "\n"


def _certificate(placement: GatewayPlacement, name: str, key: str) -> Message:
    if placement.renewed is None:
        return {"tls_certificates": [_pair(placement, name, key)]}
    return {"tls_certificate_sds_secret_configs": [_sds_config(placement.renewed, name)]}


def _authority(placement: GatewayPlacement, name: str, match_options: Message) -> Message:
    if placement.renewed is None:
        trusted = {"trusted_ca": {"filename": placement.secrets[name]}}
        return {"validation_context": {**trusted, **match_options}}
    combined = {
        "default_validation_context": match_options,
        "validation_context_sds_secret_config": _sds_config(placement.renewed, name),
    }
    return {"combined_validation_context": combined}


def _pair(placement: GatewayPlacement, name: str, key: str) -> Message:
    return {
        "certificate_chain": {"filename": placement.secrets[name]},
        "private_key": {"filename": placement.secrets[key]},
    }


def _sds_config(renewed: RenewedCertificates, name: str) -> Message:
    file = {"path": f"{renewed.folder}/{name}.json"}
    source = {"path_config_source": file, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def _alt_name(upstream: EnvoyUpstream) -> Message:
    """The subject that the server's certificate must have: the address that Envoy connects to."""
    try:
        ipaddress.ip_address(upstream.host)
    except ValueError:
        return {"san_type": "DNS", "matcher": {"exact": upstream.host}}
    return {"san_type": "IP_ADDRESS", "matcher": {"exact": upstream.host}}
