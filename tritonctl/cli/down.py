# SPDX-License-Identifier: Apache-2.0
"""`tritonctl down`: stop Triton and clean up."""

from __future__ import annotations

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Stop the project's Triton after its open streams finish."""
    from tritonctl.runtimes.embedded import gateway
    from tritonctl.runtimes.lifecycle import stop
    from tritonctl.runtimes.measurement_locks import refuse_during_tuning

    console, loaded = output_options.console(), project.load()
    refuse_during_tuning(loaded)
    envoy = gateway.running_gateway(loaded)  # runs alone if its servers have crashed
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
