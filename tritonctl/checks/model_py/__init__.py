# SPDX-License-Identifier: Apache-2.0
"""A model.py read as a syntax tree; nothing of it runs."""
