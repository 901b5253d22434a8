# SPDX-License-Identifier: Apache-2.0
"""Read the inputs and outputs of an OpenVINO IR from its model.xml.

https://docs.openvino.ai/2025/documentation/openvino-ir-format.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.parsers import expat

from tritonctl.formats.graph_file import (
    BrokenFileError,
    ExternalWeights,
    GraphTensor,
    ModelGraph,
    Shape,
    UndecidedFileError,
    whole_number,
)

# The model.xml of a large language model has a few megabytes.
MAX_IR_BYTES = 64 << 20
_MAX_NAMES = 16
_NAMES = re.compile(r"(?:[^,\\]|\\.)+")
# The first version whose tensors have layouts.
_LAYOUTS = 11

_Port = tuple[str, str]


def read_ir(path: Path) -> ModelGraph:
    """Read a model.xml. Raises OSError, and UndecidedFileError for one that is too large."""
    if path.stat().st_size > MAX_IR_BYTES:
        raise UndecidedFileError(f"it has over {MAX_IR_BYTES >> 20} MiB")
    reader = _Reader()
    try:
        with path.open("rb") as file:
            reader.read(file.read(MAX_IR_BYTES))
    except (expat.ExpatError, BrokenFileError) as error:
        return ModelGraph(path, "OpenVINO IR", read_error=f"it is not an OpenVINO IR: {error}")
    return reader.graph(path)


class _Reader:
    """Collects the elements `net/layers/layer` and `net/edges/edge` during parsing."""

    def __init__(self) -> None:
        self._element_path: list[str] = []
        self._version = 0
        self._layer: Mapping[str, str] = {}
        self._port: _Port = ("", "")
        self._text = ""
        self._layers: dict[str, Mapping[str, str]] = {}
        self._shapes: dict[str, Shape] = {}
        self._names: dict[_Port, tuple[str, ...]] = {}
        self._ports: dict[str, list[_Port]] = {}
        self._dims: dict[_Port, list[int | str]] = {}
        self._from: dict[str, _Port] = {}
        self._weights = 0
        self._with_batch: set[str] = set()

    def read(self, content: bytes) -> None:
        """Parse the content. Raises ExpatError and BrokenFileError."""
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.StartDoctypeDeclHandler = _refuse
        parser.Parse(content, True)
        if not self._layers:
            raise BrokenFileError("it has no layers")

    def graph(self, path: Path) -> ModelGraph:
        """Return the graph of the parsed content."""
        layers = self._layers.values()
        return ModelGraph(
            path,
            "OpenVINO IR",
            inputs=tuple(
                self._input(layer) for layer in layers if layer.get("type") == "Parameter"
            ),
            outputs=tuple(self._output(layer) for layer in layers if layer.get("type") == "Result"),
            weights=(ExternalWeights(path.with_suffix(".bin").name, self._weights),)
            if self._weights
            else (),
            batched=self._batched(),
        )

    def _batched(self) -> bool | None:
        inputs = {name for name, layer in self._layers.items() if layer.get("type") == "Parameter"}
        return inputs <= self._with_batch if inputs and self._version >= _LAYOUTS else None

    def _input(self, layer: Mapping[str, str]) -> GraphTensor:
        identifier, name = layer.get("id", ""), layer.get("name", "")
        ports = self._ports.get(identifier, [])
        names = tuple(name for port in ports for name in self._names[port])
        return GraphTensor((*names, name), None, "", self._shapes.get(identifier))

    def _output(self, layer: Mapping[str, str]) -> GraphTensor:
        port = self._from.get(layer.get("id", ""), ("", ""))
        names = (layer.get("name", ""), self._layers.get(port[0], {}).get("name", ""))
        shape = self._dims.get(port)
        usual = self._names.get(port, ())
        return GraphTensor((*usual, *reversed(names)), None, "", tuple(shape) if shape else None)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._element_path.append(tag)
        match self._element_path:
            case ["net"]:
                self._version = whole_number(attributes.get("version", "")) or 0
            case ["net", "layers", "layer"]:
                self._layer = attributes
                self._layers[attributes.get("id", "")] = attributes
            case ["net", "layers", "layer", "data"] if self._layer.get("type") == "Const":
                sizes = [whole_number(attributes.get(name, "")) or 0 for name in ("offset", "size")]
                self._weights = max(self._weights, sum(sizes))
            case ["net", "layers", "layer", "data"] if self._layer.get("type") == "Parameter":
                if "shape" in attributes:
                    self._shapes[self._layer.get("id", "")] = _shape(attributes["shape"])
            case ["net", "layers", "layer", "output", "port"]:
                self._port = (self._layer.get("id", ""), attributes.get("id", ""))
                self._names[self._port] = _names(attributes.get("names", ""))
                self._ports.setdefault(self._port[0], []).append(self._port)
            case ["net", "layers", "layer", "output", "port", "rt_info", "attribute"]:
                if attributes.get("name") == "layout" and "N" in attributes.get("layout", ""):
                    self._with_batch.add(self._layer.get("id", ""))
            case ["net", "edges", "edge"]:
                port = (attributes.get("from-layer", ""), attributes.get("from-port", ""))
                self._from[attributes.get("to-layer", "")] = port
        self._text = ""

    def _end(self, _: str) -> None:
        if self._element_path == ["net", "layers", "layer", "output", "port", "dim"]:
            self._dims.setdefault(self._port, []).append(_size(self._text))
        self._element_path.pop()

    def _data(self, text: str) -> None:
        if self._element_path[-1] == "dim":
            self._text += text[:_MAX_NAMES]


def _refuse(*_: object) -> None:
    raise BrokenFileError("it has a document type, which no IR has")


def _names(written: str) -> tuple[str, ...]:
    """Split names at commas; `\\,` is a comma within a name."""
    return tuple(name.replace("\\,", ",") for name in _NAMES.findall(written)[:_MAX_NAMES])


def _shape(written: str) -> Shape:
    """Parse a shape such as `?,3,1..224`."""
    return tuple(map(_size, written.split(","))) if written.strip() else ()


def _size(written: str) -> int | str:
    size = whole_number(written)
    return "?" if size is None else size
