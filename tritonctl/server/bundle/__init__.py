# SPDX-License-Identifier: Apache-2.0
"""Everything of a project that a machine without a network needs, in one folder."""
