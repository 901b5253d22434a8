# SPDX-License-Identifier: Apache-2.0
"""The plan of an encoder or an ONNX file: an engine without a KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.estimates.checkpoints import SAFETENSORS
from tritonctl.engines.estimates.decoders import WeightBytes
from tritonctl.engines.estimates.encoders import ExportedEncoder, is_float, read_encoder
from tritonctl.engines.estimates.graphs import (
    ActivationDemand,
    GraphRoom,
    encoder_activations,
    graph_weights,
    onnx_activations,
    resident_bytes,
)
from tritonctl.engines.estimates.onnx_weights import OnnxWeights, read_weights
from tritonctl.engines.estimates.table import BuilderFigures, Storage
from tritonctl.engines.estimates.vision import (
    IMAGE_TASKS,
    is_clip,
    read_clip_texts,
    read_vision,
)
from tritonctl.engines.planning.records import HOST, Fit, PlannedDevice
from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import Model, Project

_MODEL_FILE = "model.onnx"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_MIB = 1 << 20


@dataclass(frozen=True)
class GraphSubject:
    """A model that is served as a graph, with the figures of its builder."""

    name: str
    model: Model
    figures: BuilderFigures
    storage: Storage
    source: ExportedEncoder | OnnxWeights
    folder: Path

    per_token = 0.0

    def weights(self, storage: Storage) -> WeightBytes:
        """Return the weights in `storage`."""
        if self.packed is not None:
            return self.packed
        if isinstance(self.source, OnnxWeights):
            return graph_weights(self.source.tensors, self.source.fixed, storage, may_widen=False)
        floats = [tensor for tensor in self.source.tensors if is_float(tensor)]
        fixed = [tensor for tensor in self.source.tensors if not is_float(tensor)]
        return graph_weights(floats, fixed, storage, may_widen=True)

    def extra_bytes(self, storage: Storage) -> int:
        """Return the bytes of the tokenizer and of the graph without weights."""
        if isinstance(self.source, OnnxWeights):
            graph = self.source.graph_bytes
        else:
            graph = storage.graph[0] + storage.graph[1] * self.source.num_hidden_layers
        if not self.figures.keeps_tokenizer:
            return graph
        files = (self.folder / name for name in _TOKENIZER_FILES)
        return graph + sum(file.stat().st_size for file in files if file.is_file())

    @property
    def packed(self) -> WeightBytes | None:
        """The weights of a checkpoint that is already quantised."""
        return self.source.packed if isinstance(self.source, ExportedEncoder) else None

    @property
    def notes(self) -> list[str]:
        """Notes about a checkpoint that is already quantised."""
        return list(self.source.notes) if isinstance(self.source, ExportedEncoder) else []

    @property
    def activations(self) -> int:
        """Bytes of activations of the largest batch."""
        return math.ceil(self._max_rows * self._activation_demand.sequence_bytes(self._length or 1))

    @property
    def _max_rows(self) -> int:
        """Sequences in one run; for tasks `max_num_tokens` bounds them too."""
        engine = self.model.engine
        if engine.max_num_tokens is None or self.model.task == "tensors":
            return max(1, engine.max_batch_size)
        return min(engine.max_batch_size, max(1, engine.max_num_tokens // (self._length or 1)))

    @cached_property
    def _activation_demand(self) -> ActivationDemand:
        if isinstance(self.source, ExportedEncoder):
            demand = encoder_activations(self.source, self.storage.activation)
        else:
            demand = onnx_activations(self.source, self._dimensions, self.storage.activation)
        return demand.scaled(self.figures.activation_copies)

    @property
    def _dimensions(self) -> dict[str, int]:
        option = self.model.engine.options.get("dimensions")
        items = option.items() if isinstance(option, Mapping) else ()
        return {str(name): size for name, size in items if isinstance(size, int)}

    @property
    def _length(self) -> int | None:
        requested_length = self.model.engine.max_seq_len
        if isinstance(self.source, ExportedEncoder):
            return requested_length or self.source.max_length
        open_dimensions = {
            f"{tensor.name}[{axis}]"
            for tensor in self.source.inputs
            for axis, size in enumerate(tensor.shape or ())
            if axis and isinstance(size, str) and size not in self._dimensions
        }
        if not open_dimensions:
            return None
        engine = self.model.engine
        length = requested_length or _max_profile_size(
            engine.options, batched=engine.max_batch_size > 0
        )
        if length is None:
            raise ConfigurationError(
                f"models.{self.name}: the size of {', '.join(sorted(open_dimensions))} in "
                f"{self.source.file} is unknown",
                remedy="set `engine.max_seq_len`, or the sizes by name in engine.options "
                "(`dimensions` of onnxruntime, `profiles` of tensorrt)",
            )
        return length

    def _runs(self, device: PlannedDevice, instances: int) -> int:
        """Return the parallel runs of the largest batch per instance; they share only weights.

        Without `max_num_tokens`, texts run in parts of a few hundred tokens, many of which are
        smaller than the largest batch: it counts once.
        """
        is_text = self.model.task not in {"tensors", *IMAGE_TASKS}
        if device.name != HOST or (is_text and self.model.engine.max_num_tokens is None):
            return 1
        return max(1, min(self.model.serving.max_parallel_runs, usable_cores() // instances))

    def fit(self, device: PlannedDevice, refused: str | None) -> Fit:
        """Return how the model fits a device; instances share neither weights nor activations."""
        instances = sum(group.count for group in self.model.serving.instance_group)
        share = 1.0 if device.name == HOST else self.figures.device_share
        usable = device.memory * share / instances
        fixed = resident_bytes(
            self.figures, self.storage, self.weights(self.storage), self._workspace_bytes
        )
        room = GraphRoom(
            usable, fixed, self._activation_demand.scaled(self._runs(device, instances))
        )
        batch, length = max(1, self.model.engine.max_batch_size), self._length
        required_bytes = room.required_bytes(self._max_rows, length or 1)
        return Fit(
            device=device,
            refused=refused,
            count=1,
            needed=math.ceil(required_bytes * instances),
            usable=math.floor(usable * instances),
            fits=refused is None and required_bytes <= usable,
            batch=batch,
            length=length,
            largest_batch=room.largest_batch(length or 1),
            longest=None if length is None else self._max_length(room, self._max_rows),
        )

    def _max_length(self, room: GraphRoom, batch: int) -> int:
        max_length = room.max_length(batch)
        return (
            min(max_length, self.source.max_length)
            if isinstance(self.source, ExportedEncoder)
            else max_length
        )

    @property
    def _workspace_bytes(self) -> int:
        workspace_mib = self.model.engine.options.get("workspace_mib")
        if self.figures.workspace_bytes and isinstance(workspace_mib, int):
            return workspace_mib * _MIB
        return self.figures.workspace_bytes


def graph_subject(
    project: Project, name: str, figures: BuilderFigures, storage: Storage
) -> GraphSubject:
    """Read a model's checkpoint or graph. Raises ConfigurationError."""
    model = project.models[name]
    exportable = builder_named(model.engine.builder, project.root).exportable_architectures(
        model.task
    )
    checkpoint = checkpoint_path(project, model)
    source: ExportedEncoder | OnnxWeights
    has_graph = checkpoint.suffix == ".onnx" or (checkpoint / _MODEL_FILE).is_file()
    allow_pickle = model.engine.allow_pickle and not has_graph
    files = (*SAFETENSORS, *(_PICKLES if allow_pickle else ()))
    if exportable and any((checkpoint / file).is_file() for file in files):
        pooling = str(model.engine.options.get("pooling", "none"))
        if model.task in IMAGE_TASKS:
            source = read_vision(checkpoint, exportable, allow_pickle=allow_pickle)
        elif model.task == "embedding" and is_clip(checkpoint):
            source = read_clip_texts(checkpoint, allow_pickle=allow_pickle)
        else:
            source = read_encoder(
                checkpoint, exportable, model.task, pooling, allow_pickle=allow_pickle
            )
    elif has_graph:
        source = read_weights(checkpoint / _MODEL_FILE if checkpoint.is_dir() else checkpoint)
        if not model.engine.max_batch_size:
            source = source.as_batch_of_one()
    else:
        kinds = "model.safetensors or " if exportable else ""
        raise ConfigurationError(
            f"models.{name}: {checkpoint} has no {kinds}{_MODEL_FILE}",
            remedy="correct `checkpoint:`, or export the model to ONNX first",
        )
    folder = checkpoint if checkpoint.is_dir() else checkpoint / "none"
    return GraphSubject(name, model, figures, storage, source, folder)


def _max_profile_size(options: Mapping[str, Any], *, batched: bool) -> int | None:
    """Return the largest non-batch size that the optimisation profiles allow."""
    option = options.get("profiles")
    profiles = option if isinstance(option, list) else [option]
    shapes = [
        shape.get("max")
        for profile in profiles
        if isinstance(profile, Mapping)
        for shape in profile.values()
        if isinstance(shape, Mapping)
    ]
    sizes = [n for shape in shapes if isinstance(shape, list) for n in shape[int(batched) :]]
    return max((size for size in sizes if isinstance(size, int)), default=None)
