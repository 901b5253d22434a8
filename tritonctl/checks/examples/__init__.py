# SPDX-License-Identifier: Apache-2.0
"""A bad and a good repository for each rule: whole ones, which a real server can load."""
