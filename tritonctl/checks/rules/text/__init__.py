# SPDX-License-Identifier: Apache-2.0
"""TC10x and TC110: whether config.pbtxt can be read, and says what it seems to say."""

from tritonctl.checks.rules.text import config_text

__all__ = ["config_text"]
