# SPDX-License-Identifier: Apache-2.0
"""TC4xx: whether streamed responses arrive whole, in order, and can be cancelled."""

from tritonctl.checks.rules.streaming import bls, ensembles, ordering, python_code, running

__all__ = ["bls", "ensembles", "ordering", "python_code", "running"]
