# SPDX-License-Identifier: Apache-2.0
"""`tritonctl render`: render engines into a model repository."""

from __future__ import annotations

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    models: options.ModelsOption = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Render the model repository; rendering twice changes nothing."""
    from tritonctl.repository.publish import render

    console = output_options.console()
    rendered = render(options.select_models(project.load(), models), console)
    record = {
        "repository": str(rendered.repository),
        "changed": rendered.changed,
        "unchanged": rendered.unchanged,
        "removed": rendered.removed,
    }
    lines = [f"{rendered.repository}"]
    lines += [f"  rendered   {name}" for name in rendered.changed]
    lines += [f"  unchanged  {name}" for name in rendered.unchanged]
    lines += [f"  removed    {name}" for name in rendered.removed]
    console.result(record, "\n".join(lines))
