# SPDX-License-Identifier: Apache-2.0
"""TC4xx: completeness, order and cancellation of streamed responses."""

from tritonctl.checks.rules.streaming import bls, ensembles, ordering, python_code, running

__all__ = ["bls", "ensembles", "ordering", "python_code", "running"]
