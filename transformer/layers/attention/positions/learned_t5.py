"""Learned positions together with the relative biases of T5."""

from transformer.layers.attention.positions.learned import Learned
from transformer.layers.attention.positions.t5 import T5


class LearnedT5(T5, Learned):
    """The hooks `embed` of `Learned` and `bias` of `T5`, each with a table of its own.

    Source: Song et al. 2020 (MPNet), section 3.1, and the released code.
    """
