# SPDX-License-Identifier: Apache-2.0
"""Choose NVIDIA's image for a project's models from the compatibility table."""

from __future__ import annotations

from tritonctl.project.compatibility.table import image_of, release_named, table
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import Config
from tritonctl.repository.contents import handwritten

# The image with TensorRT-LLM has the backends python and tensorrtllm only.
_SERVER_IMAGE_BUILDERS = ("tensorrt",)
_GPU_BUILDERS = ("tensorrt", "tensorrt_llm")
# Backends or platforms of handwritten models: those that need a GPU, and those in the image with
# TensorRT-LLM.
_GPU_BACKENDS = ("tensorrt", "tensorrt_plan", "tensorrtllm")
_TRTLLM_IMAGE_BACKENDS = ("python", "tensorrtllm", "ensemble")


def gpu_builders(project: Project) -> list[str]:
    """Return the models whose engines need a GPU."""
    return sorted(
        name
        for name, model in project.models.items()
        if model.engine.builder in _GPU_BUILDERS
        or any(group.kind == "KIND_GPU" for group in model.serving.instance_group)
    )


def gpu_models(project: Project) -> list[str]:
    """Return the models that need a GPU, by engine or, if handwritten, by config.pbtxt.

    Raises ConfigurationError for a config.pbtxt that cannot be read.
    """
    handwritten_models = handwritten(project, project.public)
    return [*gpu_builders(project), *(m.name for m in handwritten_models if _runs_on_gpu(m.config))]


def _runs_on_gpu(config: Config) -> bool:
    groups = config.get("instance_group", ())
    return _backend_of(config) in _GPU_BACKENDS or any(g.get("kind") == "KIND_GPU" for g in groups)


def _backend_of(config: Config) -> str:
    return str(config.get("backend") or config.get("platform") or "ensemble")


def ngc_image(project: Project) -> str:
    """Return the image of the engines' release, or of the table's default release.

    The tag names the release; `docker.base_image: NAME@sha256:...` pins the exact image.
    """
    compatibility = table(project.root)
    models = [project.models[name] for name in gpu_builders(project)]
    releases = [m.engine.target.release for m in models if m.engine.target.release]
    name = releases[0] if releases else compatibility.default_release
    native = {model.serving.backend for model in project.models.values()} & {"onnxruntime"}
    handwritten_backends = {
        _backend_of(model.config) for model in handwritten(project, project.public)
    }
    if (
        native
        or handwritten_backends.difference(_TRTLLM_IMAGE_BACKENDS)
        or any(model.engine.builder in _SERVER_IMAGE_BUILDERS for model in models)
    ):
        return compatibility.server_image.format(name=name)
    return image_of(release_named(name, compatibility), compatibility)
