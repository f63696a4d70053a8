"""A peer: GPT-2 in PyTorch as people write it by hand: one projection for q, k and v, fused attention, a tied
head."""

import itertools
from typing import Any

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

    def forward(self, x_btd: torch.Tensor, remember=None) -> torch.Tensor:
        """`remember(k, v)` returns the keys and values to attend to, and a mask; None: these, causally."""
        b, t, d = x_btd.shape
        projected = self.query_key_value(self.attention_norm(x_btd)).view(b, t, 3, self.num_heads, -1)
        q_bhtk, k_bhtk, v_bhtk = projected.permute(2, 0, 3, 1, 4)
        k_bhsk, v_bhsk, mask_ts = remember(k_bhtk, v_bhtk) if remember else (k_bhtk, v_bhtk, None)
        y_bhtk = functional.scaled_dot_product_attention(
            q_bhtk, k_bhsk, v_bhsk, attn_mask=mask_ts, is_causal=mask_ts is None
        )
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


class TorchGenerator:
    """Greedy decoding with a KV cache of fixed size. A compiled step reads all of it, so that no shape
    changes (as in gpt-fast); an eager one reads what is filled."""

    def __init__(self, model: TorchDecoder, batch: int, length: int, compiled: bool) -> None:
        self.model, self.compiled = model, compiled
        width, heads = model.embedding.embedding_dim, model.blocks[0].num_heads
        kind: dict[str, Any] = {"device": model.embedding.weight.device, "dtype": torch.float32}
        shape = batch, heads, length, width // heads
        self.caches = [(torch.zeros(shape, **kind), torch.zeros(shape, **kind)) for _ in model.blocks]
        for cache in itertools.chain(*self.caches):  # else CUDA graphs would not write into them
            torch._dynamo.mark_static_address(cache)
        self.slots_s = torch.arange(length, device=kind["device"])
        self.step = torch.compile(self._read, mode=self.mode) if compiled else self._read

    @property
    def mode(self) -> str:
        """CUDA graphs on a GPU, where launching the operations of a small step takes longer than they do."""
        return "reduce-overhead" if self.slots_s.is_cuda else "default"

    @torch.no_grad()
    def generate(self, tokens_bt: torch.Tensor, new: int) -> torch.Tensor:
        """(b, t) prompts -> (b, new) tokens."""
        length = tokens_bt.shape[1]
        token_b1 = self._read(tokens_bt, self.slots_s[:length], length)
        tokens = [token_b1]
        for place in range(length, length + new - 1):
            end = len(self.slots_s) if self.compiled else place + 1
            token_b1 = self.step(token_b1, self.slots_s[place : place + 1], end).clone()
            tokens.append(token_b1)
        return torch.cat(tokens, dim=1)

    def _read(self, tokens_bt: torch.Tensor, places_t: torch.Tensor, end: int) -> torch.Tensor:
        """Reads tokens into these places of the cache, of which it attends to those before `end`; returns the
        next token of each row, (b, 1)."""
        model, mask_ts = self.model, self.slots_s[:end] <= places_t[:, None]
        x_btd = model.embedding(tokens_bt) + model.positions(places_t)
        for block, cache in zip(model.blocks, self.caches, strict=True):

            def remember(k_bhtk, v_bhtk, cache=cache):
                cache[0].index_copy_(2, places_t, k_bhtk)
                cache[1].index_copy_(2, places_t, v_bhtk)
                return cache[0][:, :, :end], cache[1][:, :, :end], mask_ts

            x_btd = block(x_btd, remember)
        logits_bv = functional.linear(model.norm(x_btd[:, -1]), model.embedding.weight)
        return logits_bv.argmax(dim=-1, keepdim=True)
