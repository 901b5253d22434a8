# SPDX-License-Identifier: Apache-2.0
"""TC0xx: whether folders and files are where Triton looks for them."""

from tritonctl.checks.rules.layout import files, folders, model_folder, variants, versions

__all__ = ["files", "folders", "model_folder", "variants", "versions"]
