# SPDX-License-Identifier: Apache-2.0
"""What goes together: releases, GPUs, precisions, fields, and addresses a release may use."""
