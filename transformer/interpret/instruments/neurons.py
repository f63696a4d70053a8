"""Neurons: the tokens of a data set at which each hidden unit is largest."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from transformer.interpret.instruments.base import Batch, Subject, Table

HIDDEN = "**/feed_forward/down/input"
"""The default of --site: the hidden units of all layers."""

BEFORE, SHOWN, TOPS = 12, 16, 8
"""Tokens of a context before the largest one; units that a table has; and tokens of each."""


class Tops(NamedTuple):
    """The k largest values of each unit, (f, k), and the numbers of their tokens; the mean and the standard
    deviation of each unit over all m tokens, (f,), in float64; and the share of tokens where it is not 0."""

    values_fk: np.ndarray
    tokens_fk: np.ndarray
    mean_f: np.ndarray
    std_f: np.ndarray
    active_f: np.ndarray


def top_activations(parts: Iterable[np.ndarray], k: int) -> Tops:
    """The largest activations of units over the tokens of `parts`, (m, f) each, which are numbered in order;
    of equal ones the first. The result depends on all tokens, not on how they are divided into parts.

    Source: Geva et al. 2021, "Transformer feed-forward layers are key-value memories", section 3.
    """
    count, top = 0, None
    for part_mf in parts:
        part_fm = np.asarray(part_mf, np.float64).T
        sums = np.stack([part_fm.sum(1), (part_fm**2).sum(1), (part_fm != 0).sum(1)])
        numbers_fm = np.broadcast_to(count + np.arange(part_fm.shape[1]), part_fm.shape)
        if top is not None:
            part_fm, numbers_fm = np.hstack([top[0], part_fm]), np.hstack([top[1], numbers_fm])
            sums += top[2]
        order_fk = np.argsort(-part_fm, axis=1, kind="stable")[:, :k]
        top = *(np.take_along_axis(x, order_fk, axis=1) for x in (part_fm, numbers_fm)), sums
        count += len(part_mf)
    if top is None:
        raise ValueError("top_activations: no tokens")
    mean_f, square_f, active_f = top[2] / count
    values_fk, tokens_fk, _ = top
    return Tops(values_fk, tokens_fk, mean_f, np.sqrt(np.maximum(square_f - mean_f**2, 0)), active_f)


class Contexts:
    """The tokens of the batches that pass through it, to show those before a token of a number."""

    def __init__(self, subject: Subject) -> None:
        self._subject, self._rows, self._firsts, self.count = subject, list[np.ndarray](), list[int](), 0

    def valid(self, batch: Batch, *paths: str) -> np.ndarray:
        """(m, f): the values of all units of `paths` at tokens that are not padding."""
        for tokens_t, valid_t in zip(batch.tokens_bt, batch.valid_bt, strict=True):
            self._rows.append(tokens_t[valid_t])
            self._firsts.append(self.count)
            self.count += int(valid_t.sum())
        values = (np.asarray(batch.values[path], np.float32)[batch.valid_bt] for path in paths)
        return np.concatenate([x.reshape(len(x), -1) for x in values], axis=1)

    def around(self, number: int) -> tuple[str, str]:
        """The name of a token, and the text around it, with the token in brackets."""
        row = int(np.searchsorted(self._firsts, number, side="right")) - 1
        place = number - self._firsts[row]
        names = self._subject.names(self._rows[row][max(0, place - BEFORE) : place + 3])
        middle = min(place, BEFORE)
        space = self._subject.between
        before, after = space.join(names[:middle]), space.join(names[middle + 1 :])
        context = f"{before}{space}[{names[middle]}]{space}{after}"
        return names[middle], context.replace("\n", "⏎")


def table_of(title: str, tops: Tops, units: Sequence[str], contexts: Contexts) -> Table:
    """The units whose largest value is the most standard deviations above their mean, of those that are not 0
    at as many tokens as are shown, a row each, with these tokens, and below the contexts of the largest."""
    peaks_f = (tops.values_fk[:, 0] - tops.mean_f) / np.maximum(tops.std_f, 1e-12)
    peaks_f = np.where(tops.values_fk[:, -1] == 0, -np.inf, peaks_f)
    chosen = np.argsort(-peaks_f, kind="stable")[:SHOWN]
    shown = [[contexts.around(int(number)) for number in tops.tokens_fk[unit]] for unit in chosen]
    notes = [
        f"{units[unit]} {value:8.3f}  {context}"
        for unit, row in zip(chosen, shown, strict=True)
        for value, (_, context) in zip(tops.values_fk[unit][:3], row, strict=False)
    ]
    columns = [f"top_{i + 1}" for i in range(tops.values_fk.shape[1])]
    texts = [[name for name, _ in row] for row in shown]
    return Table(title, tops.values_fk[chosen], [units[unit] for unit in chosen], columns, texts, notes)


def table(subject: Subject) -> Table:
    """The units of --site with the largest peaks over the validation split."""
    contexts, units = Contexts(subject), list[str]()

    def parts() -> Iterable[np.ndarray]:
        for batch in subject.recorded("validation", subject.options["site"] or HIDDEN):
            values = {path: x for path, x in batch.values.items() if "#" not in path}
            sizes = {path.removesuffix(HIDDEN[2:]): int(np.prod(x.shape[2:])) for path, x in values.items()}
            units[:] = [f"{layer}:{unit}" for layer, size in sizes.items() for unit in range(size)]
            yield contexts.valid(batch, *values)

    tops = top_activations(parts(), TOPS)
    count = f"{len(units):,} units over {contexts.count:,} tokens"
    return table_of(f"the tokens at which units are largest, of {count}", tops, units, contexts)
