# SPDX-License-Identifier: Apache-2.0
"""Which release is imitated; tests.fakes writes another one."""

__version__ = "1.2.1"
