# SPDX-License-Identifier: Apache-2.0
"""Memory, disk and time estimates of each engine on each device, before anything starts."""
