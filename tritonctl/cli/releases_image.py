# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases image`: any release as an OCI image, for a registry or the chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.host.units import human_bytes

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.releases.store import Stored


@options.expand_options
def command(
    *,
    release: Annotated[str, typer.Argument(help="a number, NUMBER-HASH, or `latest`")],
    file: Annotated[Path, typer.Argument(metavar="PATH", help="the new file")],
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Pack a release as an OCI image in a new file, without Docker; every byte is verified."""
    from tritonctl.releases.store import find_release, stored_releases

    console = voice.console()
    loaded = project.load()
    stored = find_release(stored_releases(loaded), release)
    record, text = packed(loaded, stored, file, console)
    console.result({"release": stored.name, "image": record}, text)


def packed(
    project: Project, stored: Stored, path: Path, console: Console
) -> tuple[dict[str, Any], str]:
    """The image as plain data, and in words: what it is, what the chart wants of a registry's."""
    from tritonctl.releases.image import pack
    from tritonctl.server.kubernetes.chart import installation_name

    name = f"{installation_name(project)}-releases"
    image = pack(stored, path, name, console)
    record = {
        "path": str(image.path),
        "digest": image.digest,
        "bytes": image.size,
        "layers": [{"digest": layer.digest, "bytes": layer.size} for layer in image.layers],
    }
    text = (
        f"image {image.path} ({human_bytes(image.size)}, {len(image.layers)} layers)\n"
        f"  push it: skopeo copy --preserve-digests oci-archive:{image.path} "
        f"docker://REGISTRY/{name}:{stored.name}\n"
        f"  values of the chart, with your REGISTRY:\n"
        f"weights: {{from: image, image: REGISTRY/{name}@{image.digest}}}"
    )
    return record, text
