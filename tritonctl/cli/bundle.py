# SPDX-License-Identifier: Apache-2.0
"""`tritonctl bundle`: collect everything for a machine without a network in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    into: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="a new folder", show_default=False)
    ],
    builders: Annotated[
        bool,
        typer.Option("--builders", help="include the wheels for building engines (gigabytes)"),
    ] = False,
    wheel: Annotated[
        Path | None,
        typer.Option(
            "--tritonctl",
            metavar="FILE",
            help="tritonctl's own wheel",
            show_default="of the clone, or what pip installed it from",
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Collect wheels, checkpoints, engines and names of images for a machine without a network.

    There, `./install.sh` installs tritonctl; then `tritonctl up` in `project/` serves.
    """
    from tritonctl.bundle.write import write_bundle
    from tritonctl.host.units import human_bytes
    from tritonctl.loadtest.run.environment import generator_recipe

    console = output_options.console()
    loaded = project.load()
    load_tests = [generator_recipe()] if loaded.loadtests else []
    done = write_bundle(
        loaded, into, console, builders=builders, wheel=wheel, environments=load_tests
    )
    record = {
        "folder": str(done.folder),
        "wheels": done.wheels,
        "images": list(done.images),
        "size_bytes": done.size,
    }
    lines = [f"{done.folder}: {human_bytes(done.size)}, {done.wheels} wheels"]
    if done.images:
        listed = "".join(f"\n  {image}" for image in done.images)
        lines.append(f"images to transfer with `docker save` (images.txt):{listed}")
    lines.append(f"next: copy it to the other machine and run {done.folder.name}/install.sh")
    console.result(record, "\n".join(lines))
