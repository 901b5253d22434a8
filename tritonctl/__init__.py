# SPDX-License-Identifier: Apache-2.0
"""tritonctl: from a model checkpoint to a fast, correct, operable NVIDIA Triton service."""

from tritonctl.version import __version__

__all__ = ["__version__"]
