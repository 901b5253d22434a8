# SPDX-License-Identifier: Apache-2.0
"""Triton's restricted protocols: only the project that started a server may use them.

Loading models, shared memory, log and trace settings require a random token, new with every start.
Inference, health, metadata, configurations and statistics stay open: NVIDIA's clients need them.

Triton accepts the token only on its command line, which other users of the machine can read. So it
protects against unknown clients that reach a port, not against those users. Releases before 26.03
allow a bypass (CVE-2026-24206, CVE-2026-24207): keep ports closed where possible.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

RESTRICTED = ("model-repository", "shared-memory", "trace", "logging")
_KEY = "tritonctl-token"
HTTP_HEADER = _KEY
GRPC_HEADER = f"triton-grpc-protocol-{_KEY}"  # Triton's own prefix


def new_token() -> str:
    """Create a token for one start of a server."""
    return secrets.token_urlsafe(32)


def restriction_arguments(token: str) -> list[str]:
    """Return tritonserver's arguments for the restrictions."""
    groups = ",".join(RESTRICTED)
    return [
        f"--grpc-restricted-protocol={groups}:{_KEY}={token}",
        f"--http-restricted-api={groups}:{_KEY}={token}",
    ]


def token_in(arguments: Sequence[str]) -> str:
    """Return the token on tritonserver's command line; "" without one."""
    marker = f":{_KEY}="
    return next((each.partition(marker)[2] for each in arguments if marker in each), "")


def grpc_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata for gRPC calls of restricted protocols; () without a token."""
    return ((GRPC_HEADER, token),) if token else ()


def http_headers(token: str) -> dict[str, str]:
    """Return the headers for HTTP requests of restricted protocols; {} without a token."""
    return {HTTP_HEADER: token} if token else {}
