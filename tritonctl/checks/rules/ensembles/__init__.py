# SPDX-License-Identifier: Apache-2.0
"""TC3xx: ensembles whose steps do not fit together."""

from tritonctl.checks.rules.ensembles import batches, edges, flow, pooling, steps, streams, tasks

__all__ = ["batches", "edges", "flow", "pooling", "steps", "streams", "tasks"]
