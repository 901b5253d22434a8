# SPDX-License-Identifier: Apache-2.0
"""Which of NVIDIA's images a project's engines need, from the compatibility table."""

from __future__ import annotations

from tritonctl.compatibility.table import image_of, release_named, table
from tritonctl.project.schema import Project

# The image with TensorRT-LLM has the backends python and tensorrtllm only.
_SERVER_IMAGE_BUILDERS = ("tensorrt",)
_GPU_BUILDERS = ("tensorrt", "tensorrt_llm")


def gpu_builders(project: Project) -> list[str]:
    """The models whose engines run on a GPU only."""
    return sorted(
        name
        for name, model in project.models.items()
        if model.engine.builder in _GPU_BUILDERS
        or any(group.kind == "KIND_GPU" for group in model.serving.instance_group)
    )


def ngc_image(project: Project) -> str:
    """The image of the release that the engines were made for; the table's default otherwise.

    Its tag names the release; `docker.base_image: NAME@sha256:...` pins the very bytes.
    """
    compatibility = table(project.root)
    models = [project.models[name] for name in gpu_builders(project)]
    releases = [m.engine.target.release for m in models if m.engine.target.release]
    name = releases[0] if releases else compatibility.default_release
    native = {model.serving.backend for model in project.models.values()} & {"onnxruntime"}
    if native or any(model.engine.builder in _SERVER_IMAGE_BUILDERS for model in models):
        return compatibility.server_image.format(name=name)
    return image_of(release_named(name, compatibility), compatibility)
