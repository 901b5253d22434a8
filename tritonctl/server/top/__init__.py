# SPDX-License-Identifier: Apache-2.0
"""What a running Triton does now, from its Prometheus metrics: rates, queues, times, memory."""
