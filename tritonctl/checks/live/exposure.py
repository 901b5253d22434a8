# SPDX-License-Identifier: Apache-2.0
"""What somebody who reaches a server's port, and has no token, may do there."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.live import rules
from tritonctl.checks.live.rules import LiveRule
from tritonctl.project.compatibility.exposure import cves_of, fixed_in, known_holes
from tritonctl.protocol.server_description import ServerDescription

_DOORS = {
    "model-repository": (
        rules.CONTROL,
        "the repository index answers without a token, and load and unload go by the same protocol",
    ),
    "shared-memory": (rules.SHARED_MEMORY, "shared memory answers without a token"),
    "logging": (rules.LOGGING, "log settings answer without a token"),
    "trace": (rules.TRACE, "trace settings answer without a token"),
}

Found = tuple[LiveRule, Hit]


def exposures(seen: ServerDescription) -> Iterator[Found]:
    """Open protocols, plain text beyond loopback, known holes."""
    for protocol, (rule, message) in _DOORS.items():
        if protocol in seen.open_protocols:
            yield rule, Hit(message, _closed(protocol))
    if seen.beyond_loopback and "statistics" in seen.open_protocols:
        yield rules.STATISTICS, Hit("statistics answer without a token", _closed("statistics"))
    if seen.beyond_loopback and not seen.tls:
        yield (
            rules.PLAIN,
            Hit(
                "the port has no TLS, and other machines reach it",
                "listen on loopback (--grpc-address=127.0.0.1), or use TLS (--grpc-use-ssl; of a "
                "project `server.tls`)",
            ),
        )
    yield from _holes(seen)


def _closed(protocol: str) -> str:
    return (
        f"start the server with --grpc-restricted-protocol={protocol}:NAME=SECRET, and with "
        "--http-restricted-api for HTTP"
    )


def _holes(seen: ServerDescription) -> Iterator[Found]:
    holes = known_holes(seen.version) if seen.version else []
    if not holes:
        return
    yield (
        rules.HOLES,
        Hit(
            f"Triton {seen.version} has {cves_of(holes)}; the worst: "
            f"{holes[0].summary} (CVSS {holes[0].score:g})",
            f"serve a release from {fixed_in(holes)} on; until then keep the server on loopback",
        ),
    )
