"""Stop strings: the end of a text is before the first of them."""

from collections.abc import Iterable, Iterator, Sequence


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first occurrence of a stop string."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


def ends(text: str, stops: Sequence[str]) -> bool:
    """Whether `cut` of every longer text with this beginning is `cut` of the text."""
    return len(cut(text, stops)) < len(text) and len(cut(text, stops)) <= _open(text, stops)


def until_stop(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """`cut` of the joined pieces, in pieces: text that may be the beginning of a stop string is held back.

    `pieces` is not read further once the end is certain.
    """
    waiting = ""
    for piece in pieces:
        waiting += piece
        if ends(waiting, stops):
            break
        sure = min(_open(waiting, stops), len(cut(waiting, stops)))
        if sure:
            yield waiting[:sure]
            waiting = waiting[sure:]
    if rest := cut(waiting, stops):
        yield rest


def _open(text: str, stops: Sequence[str]) -> int:
    """The first index from which the rest of the text is a proper prefix of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    places = range(max(0, len(text) - longest), len(text))
    return next(
        (i for i in places if any(stop.startswith(text[i:]) and stop != text[i:] for stop in stops)),
        len(text),
    )
