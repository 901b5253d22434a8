# SPDX-License-Identifier: Apache-2.0
"""`tritonctl down`: stop Triton and leave nothing behind."""

from __future__ import annotations

from tritonctl.cli import options


def command(
    project: options.ProjectOption = None,
    profile: options.ProfileOption = None,
    overrides: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Stop the project's Triton; streams under way may finish."""
    from tritonctl.server.lifecycle import stop

    console = options.console(as_json, quiet)
    state = stop(options.open_project(project, profile, overrides), console)
    console.result(
        {"stopped": state is not None, "pid": state.pid if state else None},
        "Triton is stopped" if state else "nothing was running",
    )
