# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Hugging Face Hub: fetched once and pinned by commit."""
