# SPDX-License-Identifier: Apache-2.0
"""A project's Triton: started, supervised, reloaded and stopped, here or in containers."""
