# SPDX-License-Identifier: Apache-2.0
"""Certificates and keys by their paths: read once, or again whenever they are renewed.

Envoy reads them again only where a secret discovery service names them: here files of ours beside
its configuration. https://www.envoyproxy.io/docs/envoy/latest/configuration/security/secret
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from tritonctl.server.gateway.placement import Placement, Renewed, Upstream, edge, triton

Message = dict[str, Any]

_SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105 - a type


def edge_context(placement: Placement) -> Message:
    """`common_tls_context` of the port that clients connect to."""
    names = (edge("certificate"), edge("key"))
    common: Message = {
        "alpn_protocols": ["h2", "http/1.1"],
        **_certificate(placement, *names),
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
    }
    if edge("client_ca") in placement.secrets:
        common |= _authority(placement, edge("client_ca"), {})
    return common


def triton_context(placement: Placement) -> Message:
    """`common_tls_context` of connections to Triton's gRPC."""
    names = [_alt_name(upstream) for upstream in placement.upstreams]
    common: Message = {
        "alpn_protocols": ["h2"],
        **_authority(placement, triton("ca"), {"match_typed_subject_alt_names": names}),
    }
    if triton("client_certificate") in placement.secrets:
        common |= _certificate(placement, triton("client_certificate"), triton("client_key"))
    return common


def certificate_files(placement: Placement) -> dict[str, str]:
    """Text by name of each file in `renewed.folder`: Envoy takes one secret of a file.

    None where it reads certificates once.
    """
    if placement.renewed is None:
        return {}
    watched = placement.renewed.watched
    more = {} if watched is None else {"watched_directory": {"path": watched}}
    found: dict[str, Message] = {}
    for name, key in (
        (edge("certificate"), edge("key")),
        (triton("client_certificate"), triton("client_key")),
    ):
        if name in placement.secrets:
            found[name] = {"tls_certificate": {**_pair(placement, name, key), **more}}
    for name in (edge("client_ca"), triton("ca")):
        if name in placement.secrets:
            trusted = {"trusted_ca": {"filename": placement.secrets[name]}, **more}
            found[name] = {"validation_context": trusted}
    return {f"{name}.json": _resource(name, secret) for name, secret in found.items()}


def _resource(name: str, secret: Message) -> str:
    return json.dumps({"resources": [{"@type": _SECRET, "name": name, **secret}]}, indent=1) + "\n"


def _certificate(placement: Placement, name: str, key: str) -> Message:
    if placement.renewed is None:
        return {"tls_certificates": [_pair(placement, name, key)]}
    return {"tls_certificate_sds_secret_configs": [_discovered(placement.renewed, name)]}


def _authority(placement: Placement, name: str, more: Message) -> Message:
    if placement.renewed is None:
        trusted = {"trusted_ca": {"filename": placement.secrets[name]}}
        return {"validation_context": {**trusted, **more}}
    combined = {
        "default_validation_context": more,
        "validation_context_sds_secret_config": _discovered(placement.renewed, name),
    }
    return {"combined_validation_context": combined}


def _pair(placement: Placement, name: str, key: str) -> Message:
    return {
        "certificate_chain": {"filename": placement.secrets[name]},
        "private_key": {"filename": placement.secrets[key]},
    }


def _discovered(renewed: Renewed, name: str) -> Message:
    file = {"path": f"{renewed.folder}/{name}.json"}
    source = {"path_config_source": file, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def _alt_name(upstream: Upstream) -> Message:
    """What the server's certificate must be for: the address that is connected to."""
    try:
        ipaddress.ip_address(upstream.host)
    except ValueError:
        return {"san_type": "DNS", "matcher": {"exact": upstream.host}}
    return {"san_type": "IP_ADDRESS", "matcher": {"exact": upstream.host}}
