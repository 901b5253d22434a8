# SPDX-License-Identifier: Apache-2.0
"""Where a running server differs from its repository, and what it shows to strangers."""
