# SPDX-License-Identifier: Apache-2.0
"""Whether the packages of the extra `frontend` are here."""

from __future__ import annotations

from importlib.util import find_spec

from tritonctl.errors import HostError

PACKAGES = ("hpack", "httptools", "orjson", "starlette", "uvicorn")
INSTALL = "pip install 'tritonctl[frontend]'"


def missing_packages() -> list[str]:
    """Those that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def require_extra() -> None:
    """Raise HostError, with the command that installs them, for packages that are missing."""
    if missing := missing_packages():
        raise HostError(
            f"the frontend needs packages that are not installed: {', '.join(missing)}",
            remedy=INSTALL,
        )
