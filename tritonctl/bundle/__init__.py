# SPDX-License-Identifier: Apache-2.0
"""A folder with everything that a machine without a network needs for a project."""
