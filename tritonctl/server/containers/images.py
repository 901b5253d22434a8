# SPDX-License-Identifier: Apache-2.0
"""Which of NVIDIA's images a project's models need, from the compatibility table."""

from __future__ import annotations

from tritonctl.project.compatibility.table import image_of, release_named, table
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import Config
from tritonctl.repository.contents import handwritten

# The image with TensorRT-LLM has the backends python and tensorrtllm only.
_SERVER_IMAGE_BUILDERS = ("tensorrt",)
_GPU_BUILDERS = ("tensorrt", "tensorrt_llm")
# Of models by hand, by backend or platform: those that run on a GPU only, and those that the image
# with TensorRT-LLM has.
_GPU_SERVED = ("tensorrt", "tensorrt_plan", "tensorrtllm")
_TRTLLM_SERVED = ("python", "tensorrtllm", "ensemble")


def gpu_builders(project: Project) -> list[str]:
    """The models whose engines run on a GPU only."""
    return sorted(
        name
        for name, model in project.models.items()
        if model.engine.builder in _GPU_BUILDERS
        or any(group.kind == "KIND_GPU" for group in model.serving.instance_group)
    )


def gpu_models(project: Project) -> list[str]:
    """The models that need a GPU: by their engines, or by their config.pbtxt where by hand.

    Raises ConfigurationError for a config.pbtxt that cannot be read.
    """
    by_hand = handwritten(project, project.public)
    return [*gpu_builders(project), *(m.name for m in by_hand if _runs_on_gpu(m.config))]


def _runs_on_gpu(config: Config) -> bool:
    groups = config.get("instance_group", ())
    return _served_by(config) in _GPU_SERVED or any(g.get("kind") == "KIND_GPU" for g in groups)


def _served_by(config: Config) -> str:
    return str(config.get("backend") or config.get("platform") or "ensemble")


def ngc_image(project: Project) -> str:
    """The image of the release that the engines were made for; the table's default otherwise.

    Its tag names the release; `docker.base_image: NAME@sha256:...` pins the very bytes.
    """
    compatibility = table(project.root)
    models = [project.models[name] for name in gpu_builders(project)]
    releases = [m.engine.target.release for m in models if m.engine.target.release]
    name = releases[0] if releases else compatibility.default_release
    native = {model.serving.backend for model in project.models.values()} & {"onnxruntime"}
    by_hand = {_served_by(model.config) for model in handwritten(project, project.public)}
    if (
        native
        or by_hand.difference(_TRTLLM_SERVED)
        or any(model.engine.builder in _SERVER_IMAGE_BUILDERS for model in models)
    ):
        return compatibility.server_image.format(name=name)
    return image_of(release_named(name, compatibility), compatibility)
