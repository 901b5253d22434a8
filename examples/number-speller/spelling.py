# SPDX-License-Identifier: Apache-2.0
"""Spell whole numbers from 0 to 999,999 in six scripts.

Every function takes an ``int`` and returns the text alone, with no leading or trailing space, in
Unicode normal form C. The conventions, where a language has more than one:

========  =======================================================================================
English   American style: no "and", no commas, tens and units joined by a hyphen.
Chinese   Simplified; 二 throughout (never 两); 10..19 begin with 十, not 一十, when they lead the
          number; a run of zeros inside the number is read as one 零, trailing zeros are silent.
Emoji     One keycap sequence a digit: the ASCII digit, U+FE0F, U+20E3.
Thai      เอ็ด for a final 1 of any number above 9, ยี่สิบ for 20..29, no spaces.
Hindi     Indian grouping (सौ, हज़ार, लाख), the irregular forms of 0..99 from a table; the nukta is
          a separate code point, as normal form C wants it.
Korean    Sino-Korean numerals; 일 is dropped before 십, 백, 천 and a lone 만; a space after 만.
========  =======================================================================================
"""

from collections.abc import Callable

LIMIT = 1_000_000

_ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_ENGLISH_TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety".split()
_CHINESE_DIGITS = "零一二三四五六七八九"
_THAI_DIGITS = "ศูนย์ หนึ่ง สอง สาม สี่ ห้า หก เจ็ด แปด เก้า".split()
_THAI_PLACES = ("", "สิบ", "ร้อย", "พัน", "หมื่น", "แสน")
_HINDI = (
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ "
    "दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस "
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस "
    "तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस "
    "चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास "
    "पचास इक्यावन बावन तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ "
    "साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर "
    "सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उनासी "
    "अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी "
    "नब्बे इक्यानवे बानवे तिरानवे चौरानवे पचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे"
).split()
_KOREAN_DIGITS = "영일이삼사오육칠팔구"
_KOREAN_PLACES = ("", "십", "백", "천")


def english(number: int) -> str:
    """Spell ``number`` in English.

    >>> [english(n) for n in (0, 13, 20, 21, 100, 101)]
    ['zero', 'thirteen', 'twenty', 'twenty-one', 'one hundred', 'one hundred one']
    >>> english(7342)
    'seven thousand three hundred forty-two'
    >>> english(100_000), english(999_019)
    ('one hundred thousand', 'nine hundred ninety-nine thousand nineteen')
    """
    if number < 20:
        return _ENGLISH_UNITS[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return _ENGLISH_TENS[tens] + (f"-{_ENGLISH_UNITS[units]}" if units else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, size)
    return f"{english(head)} {name}" + (f" {english(rest)}" if rest else "")


def _chinese_group(group: int, *, leading: bool) -> str:
    """Spell 1..9999; inside a number (``leading`` false) a missing thousand is read as 零."""
    text, gap = "", not leading
    for place, name in zip((1000, 100, 10, 1), "千百十 ", strict=True):
        digit = group // place % 10
        if digit == 0:
            gap = gap or bool(text)
            continue
        text += ("零" if gap else "") + _CHINESE_DIGITS[digit] + name.strip()
        gap = False
    return text


def chinese(number: int) -> str:
    """Spell ``number`` in simplified Chinese.

    >>> [chinese(n) for n in (0, 10, 12, 20, 101, 110, 1010, 1001)]
    ['零', '十', '十二', '二十', '一百零一', '一百一十', '一千零一十', '一千零一']
    >>> [chinese(n) for n in (7342, 10_000, 10_500, 100_000, 102_000, 100_010)]
    ['七千三百四十二', '一万', '一万零五百', '十万', '十万二千', '十万零一十']
    >>> [chinese(n) for n in (110_000, 200_500, 999_999)]
    ['十一万', '二十万零五百', '九十九万九千九百九十九']
    """
    if number == 0:
        return _CHINESE_DIGITS[0]
    myriads, rest = divmod(number, 10_000)
    text = _chinese_group(myriads, leading=True) + "万" if myriads else ""
    if rest:
        text += _chinese_group(rest, leading=not myriads or rest >= 1000)
    return text.removeprefix("一") if text.startswith("一十") else text


def emoji(number: int) -> str:
    r"""Spell ``number`` as keycap emoji, three code points a digit.

    >>> ascii(emoji(70))
    "'7\\ufe0f\\u20e30\\ufe0f\\u20e3'"
    """
    return "".join(f"{digit}\ufe0f\u20e3" for digit in str(number))


def thai(number: int) -> str:
    """Spell ``number`` in Thai.

    >>> [thai(n) for n in (0, 1, 10, 11, 20, 21, 100, 101)]
    ['ศูนย์', 'หนึ่ง', 'สิบ', 'สิบเอ็ด', 'ยี่สิบ', 'ยี่สิบเอ็ด', 'หนึ่งร้อย', 'หนึ่งร้อยเอ็ด']
    >>> thai(7342), thai(210_001)
    ('เจ็ดพันสามร้อยสี่สิบสอง', 'สองแสนหนึ่งหมื่นเอ็ด')
    """
    digits = str(number)
    if len(digits) == 1:
        return _THAI_DIGITS[number]
    places = range(len(digits) - 1, -1, -1)
    return "".join(_thai_digit(int(d), p) for d, p in zip(digits, places, strict=True))


def _thai_digit(digit: int, place: int) -> str:
    """Spell one digit of a number of two digits or more; ``place`` is its power of ten."""
    if digit == 0:
        return ""
    special = {(1, 0): "เอ็ด", (1, 1): "สิบ", (2, 1): "ยี่สิบ"}
    return special.get((digit, place), _THAI_DIGITS[digit] + _THAI_PLACES[place])


def hindi(number: int) -> str:
    """Spell ``number`` in Hindi.

    >>> [hindi(n) for n in (0, 29, 42, 79, 100, 101)]
    ['शून्य', 'उनतीस', 'बयालीस', 'उनासी', 'एक सौ', 'एक सौ एक']
    >>> hindi(7342), hindi(150_000)
    ('सात हज़ार तीन सौ बयालीस', 'एक लाख पचास हज़ार')
    """
    if number < 100:
        return _HINDI[number]
    places = ((100_000, "लाख"), (1000, "हज़ार"), (100, "सौ"))
    size, name = next(place for place in places if number >= place[0])
    head, rest = divmod(number, size)
    return f"{_HINDI[head]} {name}" + (f" {hindi(rest)}" if rest else "")


def korean(number: int) -> str:
    """Spell ``number`` in Sino-Korean numerals.

    >>> [korean(n) for n in (0, 1, 10, 11, 20, 100, 101, 1001)]
    ['영', '일', '십', '십일', '이십', '백', '백일', '천일']
    >>> [korean(n) for n in (7342, 10_000, 11_000, 123_456)]
    ['칠천삼백사십이', '만', '만 천', '십이만 삼천사백오십육']
    """
    if number == 0:
        return _KOREAN_DIGITS[0]
    myriads, rest = divmod(number, 10_000)
    if not myriads:
        return _korean_group(rest)
    head = "만" if myriads == 1 else f"{_korean_group(myriads)}만"
    return f"{head} {_korean_group(rest)}".rstrip()


def _korean_group(group: int) -> str:
    """Spell 0..9999, with nothing for 0 and no 일 in front of a place name."""
    text = ""
    for place in (3, 2, 1, 0):
        digit = group // 10**place % 10
        if digit:
            dropped = digit == 1 and place > 0
            text += ("" if dropped else _KOREAN_DIGITS[digit]) + _KOREAN_PLACES[place]
    return text


SCRIPTS: dict[str, Callable[[int], str]] = {
    "English": english,
    "Chinese": chinese,
    "Emoji": emoji,
    "Thai": thai,
    "Hindi": hindi,
    "Korean": korean,
}


def spell(number: int, script: str) -> str:
    """Spell ``number`` in one of :data:`SCRIPTS`.

    >>> spell(40, "Korean")
    '사십'
    >>> spell(1_000_000, "English")
    Traceback (most recent call last):
    ValueError: 1000000 is not in 0..999999
    """
    if not 0 <= number < LIMIT:
        raise ValueError(f"{number} is not in 0..{LIMIT - 1}")
    return SCRIPTS[script](number)
