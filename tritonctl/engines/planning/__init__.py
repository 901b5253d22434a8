# SPDX-License-Identifier: Apache-2.0
"""What each engine will take of each device, before anything is started."""
