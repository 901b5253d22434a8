# SPDX-License-Identifier: Apache-2.0
"""TC10x and TC110: a config.pbtxt that is unreadable or misleading."""

from tritonctl.checks.rules.text import config_text

__all__ = ["config_text"]
