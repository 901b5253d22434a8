# SPDX-License-Identifier: Apache-2.0
"""TC8xx: total memory of all models, and the size of requests."""

from tritonctl.checks.rules.capacity import gpu_memory, requests, shared_memory

__all__ = ["gpu_memory", "requests", "shared_memory"]
