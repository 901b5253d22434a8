# SPDX-License-Identifier: Apache-2.0
"""TC8xx: whether memory is enough for all models together, and requests fit into messages."""

from tritonctl.checks.rules.capacity import gpu_memory, requests, shared_memory

__all__ = ["gpu_memory", "requests", "shared_memory"]
