# SPDX-License-Identifier: Apache-2.0
"""Readers of config.pbtxt and YAML that keep the span of every value."""
