# SPDX-License-Identifier: Apache-2.0
"""What transformers' `apply_chat_template` makes of conversations, in the builder's environment.

Usage: chat_reference.py CASES.json ANSWERS.json
A case is {"folder": ..., "messages": [...], "tools": [...] or null}; its answer a list of ids, or
the text of the error.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer  # noqa: TID251 - this script runs in the builder's environment


def main(cases: str, answers: str) -> None:
    """Write the ids, in the order of the cases."""
    found: list[list[int] | str] = []
    for case in json.loads(Path(cases).read_text(encoding="utf-8")):
        tokenizer = AutoTokenizer.from_pretrained(case["folder"])
        try:
            found.append(
                tokenizer.apply_chat_template(
                    case["messages"],
                    tools=case["tools"],
                    add_generation_prompt=True,
                    return_dict=False,
                )
            )
        except Exception as error:
            found.append(str(error))
    Path(answers).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
