# SPDX-License-Identifier: Apache-2.0
"""TC3xx: whether an ensemble's steps fit together."""

from tritonctl.checks.rules.ensembles import batches, edges, flow, pooling, steps, streams, tasks

__all__ = ["batches", "edges", "flow", "pooling", "steps", "streams", "tasks"]
