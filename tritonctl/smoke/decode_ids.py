# SPDX-License-Identifier: Apache-2.0
"""Decode token ids with a tokenizer.json: a program for an interpreter that has `tokenizers`.

    echo '{"file": "tokenizer.json", "ids": [5, 6], "skip_special_tokens": true}' | python THIS

It prints the text as JSON.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Read the request from standard input, write the text to standard output."""
    from tokenizers import Tokenizer

    request = json.load(sys.stdin)
    tokenizer = Tokenizer.from_file(request["file"])
    skip = request["skip_special_tokens"]
    json.dump(tokenizer.decode(request["ids"], skip_special_tokens=skip), sys.stdout)


if __name__ == "__main__":
    main()
