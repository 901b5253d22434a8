# SPDX-License-Identifier: Apache-2.0
"""tritonctl: from a model checkpoint to a fast, correct, operable NVIDIA Triton service.

`__all__` is the public API; docs/reference/python-client.md shows every name of it in use. A
name is loaded when it is first used: `import tritonctl` needs the standard library only, which is
all that there is in a server's image, where this file is copied to.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tritonctl.host.version import __version__

if TYPE_CHECKING:
    from tritonctl.checks.checker import check_repository
    from tritonctl.engines.build.engine import build_engine
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
    from tritonctl.server.lifecycle import running_server, start, stop
    from tritonctl.server.observe.files import observability_files

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

# The same as above, for Python.
_NAMES = {
    "tritonctl.checks.checker": ("check_repository",),
    "tritonctl.engines.build.engine": ("build_engine",),
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
    "tritonctl.server.lifecycle": ("running_server", "start", "stop"),
    "tritonctl.server.observe.files": ("observability_files",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # for mypy every name would exist otherwise

    def __getattr__(name: str) -> object:
        """The public name, from its module."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
