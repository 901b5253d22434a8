# SPDX-License-Identifier: Apache-2.0
"""`tritonctl down`: stop Triton and leave nothing behind."""

from __future__ import annotations

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Stop the project's Triton; streams in flight may finish."""
    from tritonctl.server.embedded import gateway
    from tritonctl.server.lifecycle import stop

    console, loaded = voice.console(), project.load()
    envoy = gateway.running(loaded)  # alone where its servers have crashed
    state = stop(loaded, console)
    without = "nothing was running" if envoy is None else "Envoy is stopped; no Triton was running"
    console.result(
        {
            "stopped": state is not None,
            "pid": state.pid if state else None,
            "gateway": envoy is not None,
        },
        "Triton is stopped" if state else without,
    )
