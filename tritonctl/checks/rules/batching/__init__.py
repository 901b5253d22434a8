# SPDX-License-Identifier: Apache-2.0
"""TC5xx: batching, queues and sequences: settings that do nothing, or harm."""

from tritonctl.checks.rules.batching import dynamic, python_code, queues, sequences

__all__ = ["dynamic", "python_code", "queues", "sequences"]
