"""Generated pairs for inverse text normalisation: numbers, dates and times in many forms, and a standard
form.

Record i of a split is a function of the split and i.
"""

import datetime
import random
from typing import Any

from transformer.data.sources.base import Source, falls_in
from transformer.data.sources.options import Options
from transformer.errors import UserError

SIZES = {"train": 40_000, "validation": 1_000, "test": 1_000}
# fmt: off
ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
# fmt: on
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SCALES = ((10**6, "million"), (10**3, "thousand"), (10**2, "hundred"))


class InverseTextNormalization(Source):
    """`written_forms`: {"source": "half past three in the afternoon", "target": "15:30"} and the like.

    Splits are by a hash of the target, so that no validation or test target occurs in training.

    Raises:
      UserError: an argument, or a field other than source and target.
    """

    FIELDS = ("source", "target")
    divided_by = "target"
    are_apart = True

    def __init__(self, argument: str, split: str, options: Options) -> None:
        if argument:
            raise UserError(f"written_forms:{argument}: written_forms takes no argument")
        if options.field not in self.FIELDS:
            raise UserError(f"written_forms: no field {options.field!r}; fields there: source, target")
        self.name = f"written_forms ({split})"
        self.field = options.field
        self.identity = f"written_forms 1 {split} {self.field}"
        self._split = split

    def __len__(self) -> int:
        return SIZES[self._split]

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = random.Random(f"{self._split} {range(len(self))[index]}")
        while True:
            source, target = rng.choice((_number, _date, _time))(rng)
            if falls_in(self._split, target.encode()):
                return {"source": source, "target": target}


def spell(n: int) -> str:
    """A whole number below 10^9 in English words: 342 -> "three hundred and forty-two"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{ONES[n % 10]}" if n % 10 else "")
    size, name = next(scale for scale in SCALES if n >= scale[0])
    rest = n % size
    joint = " and " if rest < 100 else " "
    return f"{spell(n // size)} {name}" + (joint + spell(rest) if rest else "")


def _number(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(10 ** rng.randint(2, 8))
    words = spell(n)
    forms = (words, words.replace(" and ", " "), words.replace("-", " "), words.capitalize())
    return rng.choice(forms), f"{n:,}"


def _date(rng: random.Random) -> tuple[str, str]:
    day = datetime.date(1600, 1, 1) + datetime.timedelta(rng.randrange(220_000))
    month, year = f"{day:%B}", day.year
    nth = f"{day.day}{'th' if 10 < day.day < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day.day % 10, 'th')}"
    forms = (
        f"{day.day} {month} {year}",
        f"{month} {day.day}, {year}",
        f"the {nth} of {month} {year}",
        f"{day:%A}, {month} {nth}, {year}",
        f"{nth} {month[:3]}{'.' if len(month) > 3 else ''} {year}",
        f"{day.day}.{day.month}.{year}",
    )
    return rng.choice(forms), day.isoformat()


def _time(rng: random.Random) -> tuple[str, str]:
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 18 else "in the evening"
    spoken, following = spell((hour - 1) % 12 + 1), spell(hour % 12 + 1)
    forms = [f"{(hour - 1) % 12 + 1}:{minute:02d} {'am' if hour < 12 else 'pm'}", f"{hour} h {minute} min"]
    if 0 < minute <= 30:
        amount = {15: "a quarter", 30: "half"}.get(minute, f"{spell(minute)} minutes")
        forms.append(f"{amount} past {spoken} {part}")
    elif minute and hour not in (11, 17, 23):  # after which another part of the day starts
        amount = "a quarter" if minute == 45 else f"{spell(60 - minute)} minutes"
        forms.append(f"{amount} to {following} {part}")
    if rng.random() < 0.5:
        return f"{rng.choice(forms)} and {spell(second)} seconds", f"{hour:02d}:{minute:02d}:{second:02d}"
    return rng.choice(forms), f"{hour:02d}:{minute:02d}"
