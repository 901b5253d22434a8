# SPDX-License-Identifier: Apache-2.0
"""Asks every model once, end to end, before a server counts as started.

Triton's own readiness says that models are loaded; it stays good when a stub has died or the heap
is corrupt. One token through the whole ensemble proves the path, and leaves every stub warm: the
first call of each costs it about 40 ms that would otherwise count into a TTFT.
"""

from __future__ import annotations

from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.server.state import Server


def probe(project: Project, state: Server, progress: Progress) -> None:
    """Ask each of the project's models. Raises ServerError for one that does not answer."""
    timeout = float(project.server.ready_timeout_seconds)
    client = TritonClient(state.grpc_url, tls=state.client_tls)
    with progress.step("Asking every model once"), client:
        for name, model in sorted(project.models.items()):
            if model.task != "text_generation":  # loaded is enough
                continue
            try:
                client.generate(name, "1", SamplingParameters(max_tokens=1), timeout=timeout)
            except TritonctlError as error:
                raise ServerError(
                    f"model {name} is loaded but does not answer: {error.problem}",
                    remedy="look at `tritonctl logs`, then `tritonctl up` again",
                ) from error
