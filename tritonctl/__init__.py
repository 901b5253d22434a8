# SPDX-License-Identifier: Apache-2.0
"""tritonctl: from a model checkpoint to a fast, correct, operable NVIDIA Triton service."""

__version__ = "0.1.0"
