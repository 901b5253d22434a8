# SPDX-License-Identifier: Apache-2.0
"""Cross-origin requests of web pages, `frontend.cors_origins`: https://fetch.spec.whatwg.org."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from tritonctl.frontend.http_request import RELEASE_HEADER

# Response headers that scripts may read.
_EXPOSED_HEADERS = (
    "x-request-id",
    "retry-after",
    RELEASE_HEADER.decode("ascii"),
    *(
        f"x-ratelimit-{kind}-{unit}"
        for kind in ("limit", "remaining", "reset")
        for unit in ("requests", "tokens")
    ),
)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Allow the pages of these origins to use the application; with none, it stays as it is."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),  # clients have headers of their own, such as x-stainless-*
        expose_headers=_EXPOSED_HEADERS,
    )
