# SPDX-License-Identifier: Apache-2.0
"""Finds mistakes in any Triton model repository before a server loads it."""
