# SPDX-License-Identifier: Apache-2.0
"""The language of a short text by the scripts of its letters, and the number in it."""

import unicodedata
from collections import Counter

# By the first word of a letter's name in Unicode. Scripts that are not here are known by that word.
LANGUAGE_OF = {
    "LATIN": "English",
    "CJK": "Chinese",
    "THAI": "Thai",
    "DEVANAGARI": "Hindi",
    "HANGUL": "Korean",
}
_LONGEST_NUMBER = 6
_LETTERS = ("L", "M")  # Thai and Devanagari write vowels as marks


def language(text):
    """The language that most of the letters are written in; Emoji where there are none.

    Digits of a script count as its letters do, but for 0 to 9. Raises ValueError for a text whose
    scripts do not agree.
    """
    scripts = Counter(map(_script, filter(_tells, text)))
    if not scripts:
        return "Emoji" if any(unicodedata.category(sign) == "So" for sign in text) else "English"
    script, count = scripts.most_common(1)[0]
    if 2 * count <= scripts.total():
        raise ValueError(f"the question mixes {' and '.join(sorted(scripts))} letters")
    return LANGUAGE_OF.get(script, script.capitalize())


def number(text):
    """The one number in a text, in the digits 0 to 9. Raises ValueError without one."""
    plain = "".join(
        str(unicodedata.decimal(sign)) if unicodedata.decimal(sign, None) is not None else " "
        for sign in text
    ).split()
    if len(plain) != 1:
        raise ValueError(f"the question has {len(plain)} numbers, expected one")
    if len(plain[0]) > _LONGEST_NUMBER:
        raise ValueError(
            f"the number has {len(plain[0])} digits, at most {_LONGEST_NUMBER} will do"
        )
    return str(int(plain[0]))


def _tells(sign):
    ascii_digit = sign in "0123456789"
    return unicodedata.category(sign)[0] in _LETTERS or (sign.isdecimal() and not ascii_digit)


def _script(sign):
    return unicodedata.name(sign, "UNKNOWN").partition(" ")[0]
