# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt and its neighbours as text with places: lexer, text format, message, YAML."""
