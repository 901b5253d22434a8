# SPDX-License-Identifier: Apache-2.0
"""The engines on disk: manifest, store, differences, usage, pruning."""
