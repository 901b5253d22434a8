# SPDX-License-Identifier: Apache-2.0
"""Find services that a client without a token may use on a server's port."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.live import rules
from tritonctl.checks.live.rules import LiveRule
from tritonctl.project.compatibility.exposure import cves_of, fixed_in, known_holes
from tritonctl.protocol.server_description import ServerDescription

_RULES_BY_PROTOCOL = {
    "model-repository": (
        rules.CONTROL,
        "the repository index answers without a token; load and unload use the same protocol",
    ),
    "shared-memory": (rules.SHARED_MEMORY, "shared memory answers without a token"),
    "logging": (rules.LOGGING, "log settings answer without a token"),
    "trace": (rules.TRACE, "trace settings answer without a token"),
}

LiveHit = tuple[LiveRule, Hit]


def exposures(server: ServerDescription) -> Iterator[LiveHit]:
    """Find unrestricted API groups, plain text beyond loopback, and known vulnerabilities."""
    for protocol, (rule, message) in _RULES_BY_PROTOCOL.items():
        if protocol in server.unrestricted_api_groups:
            yield rule, Hit(message, _restriction_fix(protocol))
    if server.beyond_loopback and "statistics" in server.unrestricted_api_groups:
        yield (
            rules.STATISTICS,
            Hit("statistics answer without a token", _restriction_fix("statistics")),
        )
    if server.beyond_loopback and not server.tls:
        yield (
            rules.NO_TLS,
            Hit(
                "the port has no TLS, and other machines reach it",
                "listen on loopback (--grpc-address=127.0.0.1), or use TLS (--grpc-use-ssl; in a "
                "project `server.tls`)",
            ),
        )
    yield from _vulnerable_release(server)


def _restriction_fix(protocol: str) -> str:
    return (
        f"start the server with --grpc-restricted-protocol={protocol}:NAME=SECRET, and with "
        "--http-restricted-api for HTTP"
    )


def _vulnerable_release(seen: ServerDescription) -> Iterator[LiveHit]:
    vulnerabilities = known_holes(seen.version) if seen.version else []
    if not vulnerabilities:
        return
    yield (
        rules.KNOWN_VULNERABILITIES,
        Hit(
            f"Triton {seen.version} has {cves_of(vulnerabilities)}; the worst: "
            f"{vulnerabilities[0].summary} (CVSS {vulnerabilities[0].score:g})",
            f"use release {fixed_in(vulnerabilities)} or later; until then keep the server on "
            "loopback",
        ),
    )
