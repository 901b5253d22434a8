# SPDX-License-Identifier: Apache-2.0
"""Send one request to every model, end to end, before a server counts as started.

Triton's readiness only says that models are loaded: it stays true after a stub has died or the
heap is corrupt. One token through the whole ensemble proves the path and warms every stub, whose
first call costs about 40 ms that would otherwise count towards a TTFT.
"""

from __future__ import annotations

from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.runtimes.server_state import Server


def probe_models(project: Project, state: Server, progress: Progress) -> None:
    """Send a request to each model of the project. Raises ServerError if one does not answer."""
    timeout = float(project.server.ready_timeout_seconds)
    client = TritonClient(state.grpc_url, tls=state.client_tls)
    with progress.step("Sending a request to every model"), client:
        for name, model in sorted(project.models.items()):
            if model.task != "text_generation":  # being loaded is enough
                continue
            try:
                client.generate(name, "1", SamplingParameters(max_tokens=1), timeout=timeout)
            except TritonctlError as error:
                raise ServerError(
                    f"model {name} is loaded but does not answer: {error.problem}",
                    remedy="see `tritonctl logs`, then run `tritonctl up` again",
                ) from error
