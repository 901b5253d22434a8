# SPDX-License-Identifier: Apache-2.0
"""Checks that the packages of the extra `frontend` are installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Protocol

from tritonctl.errors import HostError

# Modules by distribution: required ones, and those of a field of `frontend:`.
_ALWAYS = ("httptools", "orjson", "starlette", "uvicorn", "uvloop")
PACKAGES = {name: name for name in _ALWAYS}
OF_LEDGER = {"redis": "redis.asyncio"}
OF_TRACING = {
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
INSTALL = "pip install 'tritonctl[frontend]'"


class FrontendPackages(Protocol):
    """The fields of `frontend:` that need additional packages unless they are None."""

    @property
    def ledger(self) -> object | None:
        """Needs Redis' client."""

    @property
    def tracing(self) -> object | None:
        """Needs OpenTelemetry."""


def missing_packages(settings: FrontendPackages) -> list[str]:
    """Return the missing packages; optional ones with the field that needs them."""
    return list(_missing(settings))


def _missing(settings: FrontendPackages) -> Iterator[str]:
    yield from (name for name, module in PACKAGES.items() if not _is_installed(module))
    for field, packages in (("ledger", OF_LEDGER), ("tracing", OF_TRACING)):
        if getattr(settings, field) is not None:
            for name, module in packages.items():
                if not _is_installed(module):
                    yield f"{name} (for frontend.{field})"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def require_extra(settings: FrontendPackages) -> None:
    """Raise HostError with the install command if packages are missing."""
    if missing := missing_packages(settings):
        raise HostError(
            f"the frontend needs packages that are not installed: {', '.join(missing)}",
            remedy=INSTALL,
        )
