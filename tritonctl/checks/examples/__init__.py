# SPDX-License-Identifier: Apache-2.0
"""Small model repositories for the rules' examples: whole ones, that a real server can load."""
