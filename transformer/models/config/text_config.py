"""The config keys for embedding tokens, which all models of text have."""

from dataclasses import dataclass

from transformer.config import Nonnegative, NonnegativeFloat, Positive
from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.models.transforms.lora import LoraConfig


@dataclass(frozen=True)
class TextConfig(LoraConfig):
    """The config of a stack of blocks over embedded tokens."""

    scale_embeddings: bool = False  # multiply embeddings by sqrt(d_model) (Vaswani et al. 2017)
    embedding_rms: NonnegativeFloat = 0.0  # initial RMS of embeddings; 0: 0.02, with scale_embeddings 1
    position_rms: NonnegativeFloat = 0.0  # initial RMS of added positions; 0: embedding_rms
    vocab_size: Nonnegative = 0  # tokens of the vocabulary, those of the tokenizer or more; 0: as many
    vocab_multiple: Positive = 128  # pad the vocabulary to a multiple, for the hardware and the mesh

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position_rms and not POSITIONS[self.position].has("embed"):
            having = " or ".join(repr(name) for name, kind in POSITIONS.items() if kind.has("embed"))
            given = f"position_rms: {self.position_rms} with position {self.position!r}"
            raise UserError(f"{given}; expected 0, or {having}")

    def entries(self, tokens: int) -> int:
        """The size of the vocabulary with a tokenizer of that many tokens.

        Raises:
          UserError: `vocab_size` is smaller.
        """
        if 0 < self.vocab_size < tokens:
            have = f"the tokenizer has {tokens:,} tokens"
            raise UserError(f"config.model.vocab_size: {self.vocab_size:,}; {have}, expected as many or more")
        return self.vocab_size or tokens

    @property
    def table(self) -> tuple[int, int, bool, str, float, float]:
        """The fields of `Embedding` after the number of tokens."""
        scale = 1.0 if self.parametrization == "standard" else self.logit_scale
        return self.d_model, self.vocab_multiple, self.scale_embeddings, self.dtype, self.embedding_rms, scale

    @property
    def logit_scale(self) -> float:
        """The factor of logits by tied embeddings, whose entries do not shrink in wider models as those of a
        kernel do; with `scale_embeddings` they do, by its square root."""
        return self.growth["embed"] ** (-0.5 if self.scale_embeddings else -1.0)

    @property
    def added_rms(self) -> float:
        """`position_rms`, or if it is 0 `embedding_rms`."""
        return self.position_rms or self.embedding_rms
