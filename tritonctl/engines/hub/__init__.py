# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Hugging Face Hub: named in a project, fetched once, pinned by commit."""
