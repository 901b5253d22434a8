# SPDX-License-Identifier: Apache-2.0
"""Whether the packages of the extra `frontend` are here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Protocol

from tritonctl.errors import HostError

# Modules by distribution: those that are always imported, and those of a field of `frontend:`.
_ALWAYS = ("httptools", "orjson", "starlette", "uvicorn", "uvloop")
PACKAGES = {name: name for name in _ALWAYS}
OF_LEDGER = {"redis": "redis.asyncio"}
OF_TRACING = {
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
INSTALL = "pip install 'tritonctl[frontend]'"


class Settings(Protocol):
    """`frontend:` of a project, as far as packages go: what is None needs none."""

    @property
    def ledger(self) -> object | None:
        """Redis, perhaps."""

    @property
    def tracing(self) -> object | None:
        """OpenTelemetry, perhaps."""


def missing_packages(settings: Settings) -> list[str]:
    """Those that are not installed, and which field needs them, where not every project does."""
    return list(_missing(settings))


def _missing(settings: Settings) -> Iterator[str]:
    yield from (name for name, module in PACKAGES.items() if not _is_here(module))
    for field, packages in (("ledger", OF_LEDGER), ("tracing", OF_TRACING)):
        if getattr(settings, field) is not None:
            for name, module in packages.items():
                if not _is_here(module):
                    yield f"{name} (for frontend.{field})"


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False


def require_extra(settings: Settings) -> None:
    """Raise HostError, with the command that installs them, for packages that are missing."""
    if missing := missing_packages(settings):
        raise HostError(
            f"the frontend needs packages that are not installed: {', '.join(missing)}",
            remedy=INSTALL,
        )
