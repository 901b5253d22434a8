# SPDX-License-Identifier: Apache-2.0
"""TC0xx: folders and files that are not where Triton looks for them."""

from tritonctl.checks.rules.layout import (
    agents,
    files,
    folders,
    model_folder,
    packages,
    variants,
    versions,
)

__all__ = ["agents", "files", "folders", "model_folder", "packages", "variants", "versions"]
