# SPDX-License-Identifier: Apache-2.0
"""This machine: files and locks, processes, environments, containers, GPUs, units, progress."""
