"""A peer: GPT-2 in PyTorch as people write it by hand: one projection for q, k and v, fused attention, a tied
head."""

import torch
from torch import nn
from torch.nn import functional

from benchmarks.common import Shape


class TorchBlock(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_btd: torch.Tensor) -> torch.Tensor:
        b, t, d = x_btd.shape
        projected = self.query_key_value(self.attention_norm(x_btd)).view(b, t, 3, self.num_heads, -1)
        q_bhtk, k_bhtk, v_bhtk = projected.permute(2, 0, 3, 1, 4)
        y_bhtk = functional.scaled_dot_product_attention(q_bhtk, k_bhtk, v_bhtk, is_causal=True)
        x_btd = x_btd + self.output(y_bhtk.transpose(1, 2).reshape(b, t, d))
        hidden = functional.gelu(self.up(self.feed_forward_norm(x_btd)), approximate="tanh")
        return x_btd + self.down(hidden)


class TorchDecoder(nn.Module):
    """The shape of `Shape`, initialised as GPT-2 is: normal weights of deviation 0.02, zero biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.positions = nn.Embedding(shape.length, shape.d_model)
        blocks = (TorchBlock(shape.d_model, shape.num_heads) for _ in range(shape.num_layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(shape.d_model)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """(b, t) tokens -> logits (b, t, v)."""
        x_btd = self.embedding(tokens_bt) + self.positions.weight
        return functional.linear(self.norm(self.blocks(x_btd)), self.embedding.weight)
