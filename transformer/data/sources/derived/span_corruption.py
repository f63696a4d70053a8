"""Texts with spans left out, and these spans: what T5 and UL2 are pre-trained on."""

import dataclasses
import functools
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.data.cache.disk_cache import digest
from transformer.data.sources.base import Source
from transformer.data.sources.options import Options
from transformer.errors import UserError

SIDES = ("source", "target")
WORDS = 64
"""Words of a text in a record."""

SETTING = re.compile(r"(?:(t5|ul2|prefix)|(\d*\.?\d+),(\d+(?:\.\d+)?))(?:,(\d+))?:(.+)", re.DOTALL)
FORM = "expected spans:SOURCE, spans:ul2:SOURCE, spans:prefix:SOURCE or spans:SHARE,LENGTH:SOURCE"


@dataclasses.dataclass(frozen=True)
class Denoiser:
    """Leaves out `share` of the words in spans of `span` words in the mean; 0: in one span, at the end."""

    share: float
    span: float

    def cuts(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """The starts and ends (2 k) of k spans of `count` words, at random.

        Every division of the words that are left out into k spans, and of the others into k gaps before them,
        is equally likely, as in the code of Raffel et al. 2020 (`random_spans_noise_mask`).
        """
        out = min(max(round(count * self.share), 1), count - 1)
        if not self.span:
            return np.array([count - out, count])
        spans = min(max(round(out / self.span), 1), out, count - out)

        def parts(total: int) -> np.ndarray:
            ends = np.sort(rng.choice(total - 1, spans - 1, replace=False)) + 1
            return np.diff(ends, prepend=0, append=total)

        return np.cumsum(np.stack([parts(count - out), parts(out)], axis=1).ravel())


PRESETS = {
    "t5": (Denoiser(0.15, 3),),
    "prefix": (Denoiser(0.25, 0),),
    "ul2": (
        *(Denoiser(0.15, 3), Denoiser(0.15, 8), Denoiser(0.5, 3), Denoiser(0.5, 8)),
        *(Denoiser(0.15, 64), Denoiser(0.5, 64), Denoiser(0.25, 0)),
    ),
}
"""Raffel et al. 2020 (section 3.3.4: 15 %, 3 words), and the seven of Tay et al. 2022 (UL2, table 1) in turn,
without its mode tokens."""


class Spans(Source):
    """`spans:SOURCE`: {"source": words of a text with `<extra_id_0>`, `<extra_id_1>`, ... in place of spans,
    "target": each of these names and its span}, for 64 words of the text after another.

    `spans:ul2:SOURCE`, `spans:prefix:SOURCE` and `spans:0.5,8:SOURCE` choose the `Denoiser`s, and `,100`
    before the second colon another number of words. Which words are left out of a record is drawn once: it
    depends on its number and the denoisers. Splits are those of SOURCE. Its texts are in the field `text`, or
    in the one that is asked for in place of `source`.

    Raises:
      UserError: the argument is of another form, or as SOURCE.
    """

    FIELDS = SIDES
    divided_by = "text"

    def __init__(self, argument: str, split: str, options: Options) -> None:
        match = SETTING.fullmatch(argument)
        kind, share, span, words, inner = match.groups("") if match else ("t5", "", "", "", argument)
        self._denoisers = (Denoiser(float(share), float(span)),) if share else PRESETS[kind]
        self._words = int(words or WORDS)
        if not inner or self._words < 2 or any(not 0 < part.share < 1 for part in self._denoisers):
            raise UserError(f"spans:{argument}: {FORM}")
        text, *unknown = [name for name in options.asked if name not in SIDES] or ["text"]
        if unknown or options.field not in options.asked or "target" not in options.asked:
            field = (*unknown, options.field)[0]
            raise UserError(f"spans:{argument}: no field {field!r}; fields there: source, target")
        keys: Any = {"divide": options.divide, "document": options.document, "field": text}
        self._inner = options.open_other(inner, split, cache_dir=options.folder, **keys)
        self.field, self.name, self.is_files = (
            options.field if options.field in SIDES else "source",
            f"spans:{argument} ({split})",
            self._inner.is_files,
        )
        self.tally = self._inner.tally
        rule = repr((self._denoisers, self._words))
        self._seed = zlib.crc32(rule.encode())
        self.identity = digest(self._inner.identity, "spans", rule)

    @property
    def content(self) -> dict[str, Any]:
        """See `Source`."""
        return {f"spans of {name}": value for name, value in self._inner.content.items()}

    def place(self, index: int) -> str:
        """See `Source`."""
        number, _ = self._located(index)
        return self._inner.place(number)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, part = self._located(index)
        words = self._of_text(number)[part * self._words : (part + 1) * self._words]
        rng = np.random.default_rng([self._seed, index])
        cuts = self._denoisers[index % len(self._denoisers)].cuts(len(words), rng).tolist()
        source, target, end = "", "", 0
        for name, (start, stop) in enumerate(zip(cuts[::2], cuts[1::2], strict=True)):
            source += "".join(words[end:start]) + f" <extra_id_{name}>"
            target += f" <extra_id_{name}>" + "".join(words[start:stop])
            end = stop
        return dict(zip(SIDES, ((source + "".join(words[end:])).strip(), target.strip()), strict=True))

    def _of_text(self, number: int) -> Sequence[str]:
        """The words of a text, each with the white space before it; texts are read in their order."""
        last, words = self._last  # one read: another thread may be at another text
        if last != number:
            words = re.findall(r"\s*\S+", self._inner.text(number))
            self._last = number, words
        return words

    _last: tuple[int, Sequence[str]] = -1, ()

    def _located(self, index: int) -> tuple[int, int]:
        """The number of the text of a record, and which of its parts it is."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        return number, index - (int(self._ends[number - 1]) if number else 0)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """The number of records up to the end of each text: all texts are read once. A part of one word, from
        which nothing can be left out, is none."""
        counts = [len(self._of_text(number)) for number in range(len(self._inner))]
        return np.cumsum([(count + self._words - 2) // self._words for count in counts], dtype=np.int64)
