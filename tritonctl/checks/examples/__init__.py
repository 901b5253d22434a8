# SPDX-License-Identifier: Apache-2.0
"""A bad and a good repository for each rule, complete enough for a real server to load."""
