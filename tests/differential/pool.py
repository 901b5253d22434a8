# SPDX-License-Identifier: Apache-2.0
"""Models that are always there, so that ensembles of them cost a server nothing to load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.differential.drafts import DECOUPLED, PYTHON
from tritonctl.checks.examples.files import Example

Specs = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Kept:
    """A model of the pool: name, data type and dims of its tensors."""

    inputs: Specs
    outputs: Specs
    batch: int = 8
    more: str = ""
    optional: tuple[str, ...] = ()
    versions: tuple[int, ...] = (1,)
    reshape: str = ""
    steps: tuple[str, ...] = field(default=())

    def files(self, name: str) -> dict[str, str]:
        """As they lie in a repository."""
        lines = [f'name: "{name}"', f"max_batch_size: {self.batch}"]
        lines += [self._line("input", spec) for spec in self.inputs]
        lines += [self._line("output", spec) for spec in self.outputs]
        lines += self.steps or ('backend: "python"', self.more)
        code = DECOUPLED if "decoupled" in self.more else PYTHON
        file, text = ("keep", "") if self.steps else ("model.py", code)
        return {f"{name}/config.pbtxt": "\n".join(lines) + "\n"} | {
            f"{name}/{version}/{file}": text for version in self.versions
        }

    def _line(self, direction: str, spec: tuple[str, str, tuple[int, ...]]) -> str:
        name, dtype, dims = spec
        optional = " optional: true" if name in self.optional else ""
        dims_text = ", ".join(map(str, dims))
        return (
            f'{direction} {{ name: "{name}" data_type: {dtype} dims: [ {dims_text} ]'
            f"{optional}{self.reshape} }}"
        )


FP32_IN: Specs = (("X", "TYPE_FP32", (4,)),)
FP32_OUT: Specs = (("Y", "TYPE_FP32", (4,)),)
INT32_OUT: Specs = (("Y", "TYPE_INT32", (4,)),)
TWO_IN: Specs = (("X", "TYPE_FP32", (4,)), ("N", "TYPE_INT32", (1,)))
NESTED = (
    'platform: "ensemble"',
    'ensemble_scheduling { step { model_name: "pool_fp32" model_version: -1',
    'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }',
)
DECOUPLE = "model_transaction_policy { decoupled: true }"
POOL = {
    "pool_fp32": Kept(FP32_IN, FP32_OUT),
    "pool_cast": Kept(FP32_IN, INT32_OUT),
    "pool_int32": Kept((("X", "TYPE_INT32", (4,)),), INT32_OUT),
    "pool_any": Kept((("X", "TYPE_FP32", (-1,)),), (("Y", "TYPE_FP32", (-1,)),)),
    "pool_square": Kept((("X", "TYPE_FP32", (2, 2)),), (("Y", "TYPE_FP32", (2, 2)),)),
    "pool_two": Kept(TWO_IN, (("Y", "TYPE_FP32", (4,)), ("Z", "TYPE_INT32", (1,)))),
    "pool_optional": Kept(TWO_IN, FP32_OUT, optional=("N",)),
    "pool_string": Kept((("X", "TYPE_STRING", (-1,)),), (("Y", "TYPE_STRING", (-1,)),)),
    "pool_small": Kept(FP32_IN, FP32_OUT, batch=2),
    "pool_plain": Kept(FP32_IN, FP32_OUT, batch=0),
    "pool_matrix": Kept(
        (("X", "TYPE_FP32", (-1, 4)),), (("Y", "TYPE_FP32", (-1, 4)),), batch=0
    ),
    "pool_reshape": Kept(
        (("X", "TYPE_FP32", (1,)),), (("Y", "TYPE_FP32", (1,)),), reshape=" reshape { shape: [] }"
    ),
    "pool_decoupled": Kept(FP32_IN, FP32_OUT, more=DECOUPLE),
    "pool_dynamic": Kept(FP32_IN, FP32_OUT, more="dynamic_batching { }"),
    "pool_versions": Kept(
        FP32_IN, FP32_OUT, versions=(1, 3), more="version_policy { all { } }"
    ),
    "pool_nested": Kept(FP32_IN, FP32_OUT, steps=NESTED),
}  # fmt: skip
USES = {"pool_nested": ("pool_fp32",)}


def pool_files(names: Iterable[str] = POOL) -> Example:
    """Of those that are asked for, and of what they use."""
    wanted = {used for name in names if name in POOL for used in (name, *USES.get(name, ()))}
    return {path: text for name in sorted(wanted) for path, text in POOL[name].files(name).items()}
