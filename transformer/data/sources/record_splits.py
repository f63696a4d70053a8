"""The split of a record, by a hash of the fields that decide it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.data.sources.base import SPLITS
from transformer.errors import UserError

MIN_HASHED_RECORDS = 200
"""From this number on, records are split by hash, so that a record stays in its split when others are added;
fewer would be split unevenly."""


def shares(keys: Iterable[bytes]) -> np.ndarray:
    """The `share` (n,) of each key."""
    digests, new = bytearray(), hashlib.blake2b(digest_size=6).copy  # a copy takes 3/4 of the time
    for key in keys:
        (hashed := new()).update(key)
        digests += hashed.digest()
    digits_n3 = np.frombuffer(digests, ">u2").reshape(-1, 3)
    return digits_n3 @ 65536.0 ** -np.arange(1, 4)  # exact: 48 bits of the 53 of a float


def belong(split: str, shares_n: np.ndarray) -> np.ndarray:
    """Which records (n,) are in the split, by the `shares` of their keys; records with the same key are in
    one split.

    `MIN_HASHED_RECORDS` or more are split by a hash of the key. Fewer are split by position, as if those with
    the same key followed the first of them.
    """
    low, high = SPLITS[split]
    n = len(shares_n)
    if n >= MIN_HASHED_RECORDS:
        return (low <= shares_n) & (shares_n < high)
    _, first_k, of_key, count_k = np.unique(
        shares_n, return_index=True, return_inverse=True, return_counts=True
    )
    order_k = np.argsort(first_k)
    starts_k = np.zeros(len(first_k), int)
    starts_k[order_k] = np.cumsum(count_k[order_k]) - count_k[order_k]
    places_n = starts_k[of_key]
    return (int(low * n) <= places_n) & (places_n < int(high * n))


WRITE = json.JSONEncoder(sort_keys=True, default=str).encode  # a column may also have times


def key_of(
    record: Mapping[str, Any],
    names: Sequence[str],
    place: Callable[[], str],
    deciding: Callable[[Any], Any] = lambda value: value,
) -> bytes:
    """The key of a record by what is `deciding` of these fields; `place` gives its location, for messages.

    Raises:
      UserError: a field is missing.
    """
    try:
        (key,) = keys_of([[record[name]] for name in names], deciding)
    except KeyError as error:
        there = ", ".join(record)
        raise UserError(f"{place()}: no field {error} to split by; fields there: {there}") from None
    return key


def keys_of(
    columns: Sequence[Sequence[Any]], deciding: Callable[[Any], Any] = lambda value: value
) -> list[bytes]:
    """The keys of records by what is `deciding` of the values of their fields, of which each is a column;
    text decides as it is."""
    texts = [
        [(value if isinstance(value, str) else WRITE(deciding(value))).strip() for value in column]
        for column in columns
    ]
    keys = texts[0] if len(texts) == 1 else [*map("\0".join, zip(*texts, strict=True))]
    try:
        return [*map(str.encode, keys)]
    except UnicodeEncodeError:  # half of a surrogate pair
        return [key.encode("utf-8", "surrogatepass") for key in keys]
