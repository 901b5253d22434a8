# SPDX-License-Identifier: Apache-2.0
"""TC5xx: batching, queues and sequences: settings that do nothing, or harm."""

from tritonctl.checks.rules.batching import caches, dynamic, python_code, queues, sequences

__all__ = ["caches", "dynamic", "python_code", "queues", "sequences"]
