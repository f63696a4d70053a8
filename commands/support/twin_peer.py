"""The other side of --mode=twin: a plain training loop of PyTorch over a model of transformers."""

import contextlib
import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer.errors import UserError

Text = dict[str, np.ndarray]
"""One text of a packed row: tokens, targets and weights (t,); of a pair also its source (s,)."""


def apart(batch: Mapping[str, Any]) -> list[Text]:
    """The texts of packed rows, one by one: what is attended to within a segment is a sequence of its own.

    Raises:
      UserError: positions do not start with the text.
    """
    texts = []
    targets_bt, weights_bt = _of_tokens(batch)
    for row, segments in enumerate(np.asarray(batch["segments"])):
        for segment in sorted({*segments.tolist()} - {0}):
            here = segments == segment
            text = {"tokens": batch["tokens"][row][here], "targets": targets_bt[row][here]}
            text["weights"] = weights_bt[row][here]
            if (batch["positions"][row][here] != np.arange(here.sum())).any():
                raise UserError("--mode=twin: positions that do not begin with each text")
            if "source" in batch:
                text["source"] = batch["source"][row][batch["source_segments"][row] == segment]
            texts.append(text)
    return texts


def _of_tokens(batch: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The target of each token and its weight (b, t), 0 where a masked model has none to guess."""
    if "places" not in batch:
        return batch["targets"], batch["weights"]
    targets_bt, weights_bt = (np.zeros(batch["tokens"].shape, kind) for kind in (np.int32, np.float32))
    for row, m in np.argwhere(np.asarray(batch["guessed"]) > 0):
        at = row, batch["places"][row, m]
        targets_bt[at], weights_bt[at] = batch["targets"][row, m], batch["guessed"][row, m]
    return targets_bt, weights_bt


USUAL = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
"""Arguments of AdamW and their defaults, in both libraries."""


class Peer:
    """A model in a folder, which `step` trains: cross-entropy, clipping to a norm, AdamW.

    As here, weight decay is that of matrices alone, not of embeddings, norms and biases.
    """

    def __init__(self, folder: Path, family: Any, places: Collection[Any], config: Any) -> None:
        """`places` are those of its tensors, `config` is the `OptimizerConfig`."""
        import torch
        import transformers

        self._torch, self._clip = torch, config.clip_norm
        with contextlib.redirect_stderr(io.StringIO()):
            kind = getattr(transformers, family.architecture)
            self._model = kind.from_pretrained(folder, dtype=torch.float32).train()
        for module in self._model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None  # here the row of padding may be that of a token, and learns
        decays = {place.name for place in places if place.paths[0].endswith("kernel")}
        for name, buffer in [*self._model.named_buffers()]:
            if name in {place.name for place in places}:  # which transformers does not train
                module, _, last = name.rpartition(".")
                owner = self._model.get_submodule(module)
                delattr(owner, last)
                owner.register_parameter(last, torch.nn.Parameter(buffer.clone()))
        self._pad = self._model.config.pad_token_id or 0
        parameters = [*self._model.named_parameters()]
        for name, parameter in parameters:  # Marian's table of positions, which is computed, would learn
            parameter.requires_grad_(name in {place.name for place in places})
        groups = [
            {"params": [p for name, p in parameters if name in decays], "weight_decay": config.weight_decay},
            {"params": [p for name, p in parameters if name not in decays], "weight_decay": 0.0},
        ]
        b1, b2, eps = (config.arguments.get(key, usual) for key, usual in USUAL.items())
        self._optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(b1, b2), eps=eps)

    def step(self, texts: list[Text], rate: float) -> float:
        """One update by a batch at a learning rate; the loss before it, nats per target token."""
        tokens, targets, weights = (self._padded(texts, name) for name in ("tokens", "targets", "weights"))
        lengths = "source" if "source" in texts[0] else "tokens"
        shown = [{"shown": np.ones(len(text[lengths]), np.int64)} for text in texts]
        inputs = {"input_ids": tokens, "attention_mask": self._padded(shown, "shown")}
        if "source" in texts[0]:
            inputs |= {"input_ids": self._padded(texts, "source"), "decoder_input_ids": tokens}
        logits = self._model(**inputs).logits.flatten(0, 1)
        losses = self._torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        self._optimizer.zero_grad()
        loss.backward()
        if self._clip:
            self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return float(loss.detach())

    def _padded(self, texts: list[Text], name: str) -> Any:
        """An array (n, t) of all texts, padded with the id of padding; with 0 if it has no tokens."""
        pad = self._pad if name in ("tokens", "source") else 0
        rows = [np.asarray(text[name]) for text in texts]
        shape, kind = (len(rows), max(map(len, rows))), rows[0].dtype
        padded = np.full(shape, pad, np.float32 if kind == np.float32 else np.int64)
        for row, text in zip(padded, rows, strict=True):
            row[: len(text)] = text
        return self._torch.from_numpy(padded)
