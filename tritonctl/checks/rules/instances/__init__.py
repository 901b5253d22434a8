# SPDX-License-Identifier: Apache-2.0
"""TC6xx: devices and cores of instances, and deadlocks between them."""

from tritonctl.checks.rules.instances import backends, bls, devices, limits, threads

__all__ = ["backends", "bls", "devices", "limits", "threads"]
