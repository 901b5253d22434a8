# SPDX-License-Identifier: Apache-2.0
"""Which replica a request goes to: their load, their health, and the choice."""
