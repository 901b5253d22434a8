# SPDX-License-Identifier: Apache-2.0
"""tritonctl: from a model checkpoint to a fast, correct, operable NVIDIA Triton service.

`__all__` is the public API; docs/reference/python-client.md shows every name in use. Names are
loaded on first use: `import tritonctl` only needs the standard library, because this file is also
copied to server images without other packages.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tritonctl.host.version import __version__

if TYPE_CHECKING:
    from tritonctl.checks.checker import check_repository
    from tritonctl.engines.builds.engine import build_engine
    from tritonctl.errors import (
        BuildFailedError,
        ConfigurationError,
        HostError,
        ItemsRejectedError,
        RepositoryError,
        RequestRejectedError,
        ServerBusyError,
        ServerError,
        TritonctlError,
        UsageError,
    )
    from tritonctl.host.progress import Silent
    from tritonctl.monitoring.files import observability_files
    from tritonctl.project.file import load_profiles, load_project
    from tritonctl.project.schema import Project
    from tritonctl.protocol.api_key import ApiKey
    from tritonctl.protocol.channel import ClientTls
    from tritonctl.protocol.client import AsyncTritonClient, TritonClient
    from tritonctl.protocol.delivery import Delivery
    from tritonctl.protocol.generation import Chunk, Generation, Queueing, SamplingParameters
    from tritonctl.protocol.tasks import (
        Classification,
        Embedding,
        Entity,
        Relevance,
        TokenClassification,
    )
    from tritonctl.repository.publish import render
    from tritonctl.runtimes.lifecycle import running_server, start, stop

__all__ = [
    "ApiKey",
    "AsyncTritonClient",
    "BuildFailedError",
    "Chunk",
    "Classification",
    "ClientTls",
    "ConfigurationError",
    "Delivery",
    "Embedding",
    "Entity",
    "Generation",
    "HostError",
    "ItemsRejectedError",
    "Project",
    "Queueing",
    "Relevance",
    "RepositoryError",
    "RequestRejectedError",
    "SamplingParameters",
    "ServerBusyError",
    "ServerError",
    "Silent",
    "TokenClassification",
    "TritonClient",
    "TritonctlError",
    "UsageError",
    "__version__",
    "build_engine",
    "check_repository",
    "load_profiles",
    "load_project",
    "observability_files",
    "render",
    "running_server",
    "start",
    "stop",
]

# The same names at run time.
_NAMES = {
    "tritonctl.checks.checker": ("check_repository",),
    "tritonctl.engines.builds.engine": ("build_engine",),
    "tritonctl.errors": (
        "BuildFailedError",
        "ConfigurationError",
        "HostError",
        "ItemsRejectedError",
        "RepositoryError",
        "RequestRejectedError",
        "ServerBusyError",
        "ServerError",
        "TritonctlError",
        "UsageError",
    ),
    "tritonctl.host.progress": ("Silent",),
    "tritonctl.project.file": ("load_profiles", "load_project"),
    "tritonctl.project.schema": ("Project",),
    "tritonctl.protocol.api_key": ("ApiKey",),
    "tritonctl.protocol.channel": ("ClientTls",),
    "tritonctl.protocol.client": ("AsyncTritonClient", "TritonClient"),
    "tritonctl.protocol.delivery": ("Delivery",),
    "tritonctl.protocol.generation": ("Chunk", "Generation", "Queueing", "SamplingParameters"),
    "tritonctl.protocol.tasks": (
        "Classification",
        "Embedding",
        "Entity",
        "Relevance",
        "TokenClassification",
    ),
    "tritonctl.repository.publish": ("render",),
    "tritonctl.runtimes.lifecycle": ("running_server", "start", "stop"),
    "tritonctl.monitoring.files": ("observability_files",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # otherwise mypy would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name from its module."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
