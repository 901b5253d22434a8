# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases image`: pack a release as an OCI image for a registry or the chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.host.units import human_bytes

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.releases.store import StoredRelease


@options.expand_options
def command(
    *,
    release: Annotated[str, typer.Argument(help="a number, NUMBER-HASH, or `latest`")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the new file")],
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Pack a release as an OCI image in a new file, without Docker; verifies every byte."""
    from tritonctl.releases.store import find_release, stored_releases

    console = output_options.console()
    loaded = project.load()
    stored = find_release(stored_releases(loaded), release)
    record, text = pack_image(loaded, stored, file, console)
    console.result({"release": stored.name, "image": record}, text)


def pack_image(
    project: Project, stored: StoredRelease, path: Path, console: Console
) -> tuple[dict[str, Any], str]:
    """Pack a release; return the record and a text with the chart's values for a registry."""
    from tritonctl.releases.image import pack
    from tritonctl.runtimes.kubernetes.chart import installation_name

    name = f"{installation_name(project)}-releases"
    image = pack(stored, path, name, console)
    record = {
        "path": str(image.path),
        "digest": image.digest,
        "size_bytes": image.size,
        "layers": [{"digest": layer.digest, "size_bytes": layer.size} for layer in image.layers],
    }
    text = (
        f"image {image.path} ({human_bytes(image.size)}, {len(image.layers)} layers)\n"
        f"  push it: skopeo copy --preserve-digests oci-archive:{image.path} "
        f"docker://REGISTRY/{name}:{stored.name}\n"
        f"  values of the chart, with your REGISTRY:\n"
        f"weights: {{from: image, image: REGISTRY/{name}@{image.digest}}}"
    )
    return record, text
