# SPDX-License-Identifier: Apache-2.0
"""Writes small OpenVINO IRs and what OpenVINO says of them; run in the builder's environment.

    python openvino_graphs.py FOLDER

Each becomes FOLDER/NAME/model.xml; FOLDER/result.json has names and shapes of their tensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov  # noqa: TID251 - this script runs in the builder's environment
from openvino import opset13 as ops  # noqa: TID251 - same


def mixed() -> Any:
    """Inputs with one name, several, a comma in one and none; sizes fixed, open and bounded."""
    x = ops.parameter(ov.PartialShape([-1, 3]), np.float32, name="x_layer")
    x.output(0).set_names({"x"})
    ids = ops.parameter(ov.PartialShape([ov.Dimension(1, 8), 3]), np.float32, name="ids_layer")
    ids.output(0).set_names({"ids", "tokens,all"})
    plain = ops.parameter(ov.PartialShape([2, 3]), np.float32, name="plain")
    weights = ops.constant(np.arange(3, dtype=np.float32), name="weights")
    total = ops.add(ops.add(x, ids), ops.add(plain, weights))
    total.output(0).set_names({"logits"})
    flag = ops.abs(plain, name="flag_layer")
    return ov.Model([ops.result(total), ops.result(flag)], [x, ids, plain], "mixed")


def scalar() -> Any:
    """No dimensions at all, and no weights."""
    x = ops.parameter(ov.PartialShape([]), np.int64, name="x")
    return ov.Model([ops.result(ops.abs(x))], [x], "scalar")


def described(tensor: Any) -> dict[str, Any]:
    """Its names, and its sizes where they are fixed."""
    shape = [size.get_length() if size.is_static else None for size in tensor.partial_shape]
    return {"names": sorted(tensor.names), "shape": shape}


def main() -> None:
    """Write them, read them again as the server does, and say what is there."""
    folder = Path(sys.argv[1])
    found = {}
    for make in (mixed, scalar):
        path = folder / make.__name__ / "model.xml"
        path.parent.mkdir(parents=True)
        ov.save_model(make(), path, compress_to_fp16=False)
        model = ov.Core().read_model(path)
        found[make.__name__] = {
            "inputs": [described(one) for one in model.inputs],
            "outputs": [described(one) for one in model.outputs],
        }
    (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
