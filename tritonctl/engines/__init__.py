# SPDX-License-Identifier: Apache-2.0
"""Checkpoint to engine with manifest; a separate builder process does the building."""
