"""Texts that end before the first of some strings."""

from collections.abc import Iterable, Iterator, Sequence


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first place where one of `stops` stands."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


def ends(text: str, stops: Sequence[str]) -> bool:
    """Whether `cut` of the text is that of every longer text that begins with it."""
    return len(cut(text, stops)) < len(text) and len(cut(text, stops)) <= _open(text, stops)


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """`cut` of the pieces joined, piece by piece: what may be the beginning of a stop waits for what follows.

    Nothing is taken from `pieces` once the end is certain.
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
    """The first place from which the rest of the text is the beginning of a stop, and not a whole one."""
    longest = max(map(len, stops), default=1) - 1
    places = range(max(0, len(text) - longest), len(text))
    return next(
        (i for i in places if any(stop.startswith(text[i:]) and stop != text[i:] for stop in stops)),
        len(text),
    )
