# SPDX-License-Identifier: Apache-2.0
"""TC6xx: whether instances have the devices and cores they ask for, and cannot deadlock."""

from tritonctl.checks.rules.instances import backends, bls, devices, limits, threads

__all__ = ["backends", "bls", "devices", "limits", "threads"]
