"""Instruments, a file each: functions for notebooks, and `table(subject)`, which `--mode=inspect` shows. A
file is imported when its instrument is used, so that flags are checked without JAX."""

from typing import NamedTuple

SUBLAYERS = ("input", "attention", "feed_forward")

BATCHES = 16
"""The batches of a split that are read, unless --batches says how many."""

PROPERTIES = ("position", "previous", "character")


class Instrument(NamedTuple):
    """An instrument: what it shows, and the flags that it reads."""

    shows: str
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    decoder: bool = False  # whether it reads the logits of the next token
    sites: tuple[str, ...] = ()  # the values of --site; (): any path


INSTRUMENTS = {
    "lens": Instrument("the next token by each layer", ("prompt",), decoder=True),
    "tuned_lens": Instrument(
        "the logit lens with a map that is trained for each layer", may=("batches", "steps"), decoder=True
    ),
    "attribution": Instrument(
        "what layers and heads add to its logit", ("prompt",), ("against",), decoder=True
    ),
    "patching": Instrument(
        "how much of it comes back with one value of the run of --prompt in that of --against",
        ("prompt", "against"),
        ("site",),
        decoder=True,
        sites=SUBLAYERS,
    ),
    "path_patching": Instrument(
        "the same of the path from a head to a later one", ("prompt", "against"), decoder=True
    ),
    "heads": Instrument("previous-token and induction heads", may=("prompt",), decoder=True),
    "neurons": Instrument(
        "the tokens of the data at which hidden units are largest", may=("site", "batches")
    ),
    "probes": Instrument("what linear probes read in each layer", may=("property", "batches")),
    "sparse_autoencoder": Instrument("features of activations", may=("site", "batches", "steps")),
    "attention_rollout": Instrument("how much of each token is in each", ("prompt",)),
}
"""Value of --instrument, the name of a file here -> the instrument. A new one is a file and a line."""
