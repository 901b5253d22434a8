# SPDX-License-Identifier: Apache-2.0
"""Live figures of a running Triton from its Prometheus metrics: rates, queues, times, memory."""
