# SPDX-License-Identifier: Apache-2.0
"""What a plan needs to know of an encoder or an ONNX file: engines without a KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.estimates.checkpoints import SAFETENSORS
from tritonctl.engines.estimates.decoders import Weights
from tritonctl.engines.estimates.encoders import Encoder, is_float, read_encoder
from tritonctl.engines.estimates.graphs import (
    GraphRoom,
    Work,
    encoder_work,
    graph_weights,
    onnx_work,
    resident,
)
from tritonctl.engines.estimates.onnx_weights import OnnxWeights, read_weights
from tritonctl.engines.estimates.table import BuilderFigures, Storage
from tritonctl.engines.estimates.vision import (
    IMAGE_TASKS,
    is_clip,
    read_clip_texts,
    read_vision,
)
from tritonctl.engines.hub.checkpoint import checkpoint_of
from tritonctl.engines.planning.records import HOST, Device, Fit
from tritonctl.errors import ConfigurationError
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import Model, Project

_MODEL = "model.onnx"
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
    """A model that becomes a graph, for the figures of its builder."""

    name: str
    model: Model
    figures: BuilderFigures
    storage: Storage
    source: Encoder | OnnxWeights
    folder: Path

    per_token = 0.0

    def weights(self, storage: Storage) -> Weights:
        """Stored as `storage` says."""
        if self.packed is not None:
            return self.packed
        if isinstance(self.source, OnnxWeights):
            return graph_weights(self.source.tensors, self.source.fixed, storage, widens=False)
        floats = [tensor for tensor in self.source.tensors if is_float(tensor)]
        fixed = [tensor for tensor in self.source.tensors if not is_float(tensor)]
        return graph_weights(floats, fixed, storage, widens=True)

    def beside(self, storage: Storage) -> int:
        """Bytes of the graph without its weights, and of the tokenizer."""
        if isinstance(self.source, OnnxWeights):
            graph = self.source.graph_bytes
        else:
            graph = storage.graph[0] + storage.graph[1] * self.source.num_hidden_layers
        if not self.figures.keeps_tokenizer:
            return graph
        files = (self.folder / name for name in _TOKENIZER_FILES)
        return graph + sum(file.stat().st_size for file in files if file.is_file())

    @property
    def packed(self) -> Weights | None:
        """The weights of a checkpoint that is quantised already."""
        return self.source.packed if isinstance(self.source, Encoder) else None

    @property
    def notes(self) -> list[str]:
        """What to know of a checkpoint that is quantised already."""
        return list(self.source.notes) if isinstance(self.source, Encoder) else []

    @property
    def work(self) -> int:
        """Bytes of activations of the largest batch."""
        return math.ceil(self._rows * self._work.of_one(self._length or 1))

    @property
    def _rows(self) -> int:
        """Sequences in one run: of a task, `max_num_tokens` bounds their tokens, too."""
        engine = self.model.engine
        if engine.max_num_tokens is None or self.model.task == "tensors":
            return engine.max_batch_size
        return min(engine.max_batch_size, max(1, engine.max_num_tokens // (self._length or 1)))

    @cached_property
    def _work(self) -> Work:
        if isinstance(self.source, Encoder):
            work = encoder_work(self.source, self.storage.activation)
        else:
            work = onnx_work(self.source, self._dimensions, self.storage.activation)
        return work.times(self.figures.activation_copies)

    @property
    def _dimensions(self) -> dict[str, int]:
        given = self.model.engine.options.get("dimensions")
        items = given.items() if isinstance(given, Mapping) else ()
        return {str(name): size for name, size in items if isinstance(size, int)}

    @property
    def _length(self) -> int | None:
        asked = self.model.engine.max_seq_len
        if isinstance(self.source, Encoder):
            return asked or self.source.longest
        open_dimensions = {
            f"{tensor.name}[{at}]"
            for tensor in self.source.inputs
            for at, size in enumerate(tensor.shape or ())
            if at and isinstance(size, str) and size not in self._dimensions
        }
        if not open_dimensions:
            return None
        length = asked or _longest_profile(self.model.engine.options)
        if length is None:
            raise ConfigurationError(
                f"models.{self.name}: nothing says how large {', '.join(sorted(open_dimensions))} "
                f"of {self.source.file} may be",
                remedy="set `engine.max_seq_len`, or the sizes by name in engine.options "
                "(`dimensions` of onnxruntime, `profiles` of tensorrt)",
            )
        return length

    def _runs(self, device: Device, instances: int) -> int:
        """Runs of the largest batch at a time, of each instance: they share its weights alone.

        Texts of a task that nothing else bounds run by a few hundred tokens, many runs of which
        are less than the largest batch.
        """
        text = self.model.task not in {"tensors", *IMAGE_TASKS}
        if device.name != HOST or (text and self.model.engine.max_num_tokens is None):
            return 1
        return max(1, min(self.model.serving.most_parallel_runs, usable_cores() // instances))

    def fit(self, device: Device, refused: str | None) -> Fit:
        """On a device; instances share neither weights nor activations."""
        instances = sum(group.count for group in self.model.serving.instance_group)
        share = 1.0 if device.name == HOST else self.figures.device_share
        usable = device.memory * share / instances
        fixed = resident(self.figures, self.storage, self.weights(self.storage), self._workspace)
        room = GraphRoom(usable, fixed, self._work.times(self._runs(device, instances)))
        batch, length = self.model.engine.max_batch_size, self._length
        needed = room.needed(self._rows, length or 1)
        return Fit(
            device=device,
            refused=refused,
            count=1,
            needed=math.ceil(needed * instances),
            usable=math.floor(usable * instances),
            fits=refused is None and needed <= usable,
            batch=batch,
            length=length,
            largest_batch=room.largest_batch(length or 1),
            longest=None if length is None else self._longest(room, self._rows),
        )

    def _longest(self, room: GraphRoom, batch: int) -> int:
        longest = room.longest(batch)
        return min(longest, self.source.longest) if isinstance(self.source, Encoder) else longest

    @property
    def _workspace(self) -> int:
        asked = self.model.engine.options.get("workspace_mib")
        if self.figures.workspace_bytes and isinstance(asked, int):
            return asked * _MIB
        return self.figures.workspace_bytes


def graph_subject(
    project: Project, name: str, figures: BuilderFigures, storage: Storage
) -> GraphSubject:
    """Read what a model is made from. Raises ConfigurationError."""
    model = project.models[name]
    known = builder_named(model.engine.builder, project.root).exports(model.task)
    checkpoint = checkpoint_of(project, model)
    source: Encoder | OnnxWeights
    graph = checkpoint.suffix == ".onnx" or (checkpoint / _MODEL).is_file()
    allow_pickle = model.engine.allow_pickle and not graph
    files = (*SAFETENSORS, *(_PICKLES if allow_pickle else ()))
    if known and any((checkpoint / file).is_file() for file in files):
        pooling = str(model.engine.options.get("pooling", "none"))
        if model.task in IMAGE_TASKS:
            source = read_vision(checkpoint, known, allow_pickle=allow_pickle)
        elif model.task == "embedding" and is_clip(checkpoint):
            source = read_clip_texts(checkpoint, allow_pickle=allow_pickle)
        else:
            source = read_encoder(checkpoint, known, model.task, pooling, allow_pickle=allow_pickle)
    elif graph:
        source = read_weights(checkpoint / _MODEL if checkpoint.is_dir() else checkpoint)
    else:
        kinds = "model.safetensors or " if known else ""
        raise ConfigurationError(
            f"models.{name}: {checkpoint} has no {kinds}{_MODEL}",
            remedy="correct `checkpoint:`, or export the model to ONNX first",
        )
    folder = checkpoint if checkpoint.is_dir() else checkpoint / "none"
    return GraphSubject(name, model, figures, storage, source, folder)


def _longest_profile(options: Mapping[str, Any]) -> int | None:
    """The largest size behind the batch that optimisation profiles allow."""
    asked = options.get("profiles")
    profiles = asked if isinstance(asked, list) else [asked]
    shapes = [
        shape.get("max")
        for profile in profiles
        if isinstance(profile, Mapping)
        for shape in profile.values()
        if isinstance(shape, Mapping)
    ]
    sizes = [n for shape in shapes if isinstance(shape, list) for n in shape[1:]]
    return max((size for size in sizes if isinstance(size, int)), default=None)
