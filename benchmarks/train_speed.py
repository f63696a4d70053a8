"""The speed of training: tokens/s, share of the peak rate of matrix products, memory, compile time.

    python -m benchmarks.train_speed [--peer] [--cases S-float32 M-bfloat16 ...] [--repeats 5]

`--peer` adds PyTorch (`pip install torch transformers`) with the same shape, batch and optimizer: GPT-2 as
people write it by hand, eager and with `torch.compile`, and that of Hugging Face transformers. All
contestants train on the same tokens. A loss that does not start near log(vocabulary) and fall ends the
benchmark.

On a GPU (`--cases GPT-2-bfloat16`) all compute on it, PyTorch with TF32 for float32 as JAX by default, and
memory is the GPU's. "ours" gets rows as training packs them, with the document of each token; "ours_whole"
gets none, as PyTorch: each row is one document.
"""

import math
import statistics
import time

from benchmarks import common
from benchmarks.common import SHAPES, Contestant, Shape

WARM_UP = 3


def ours(shape: Shape, dtype: str):
    return _measured(*our_step(shape, dtype))


def ours_whole(shape: Shape, dtype: str):
    return _measured(*our_step(shape, dtype, packed=False))


def our_step(shape: Shape, dtype: str, packed: bool = True):
    """The lowered step, its state and its batch; `packed`: rows are divided into documents, here into one."""
    import jax

    from transformer.models.decoder import Decoder

    config = shape.gpt2(dtype=dtype)
    model = Decoder(config, shape.vocab_size)

    def logits(params, batch):
        return model.apply(
            {"params": params},
            batch["tokens"],
            segments_bt=batch["segments"] if packed else None,
            positions_bt=batch["positions"],
        )

    return _step(shape, lambda tokens: model.init(jax.random.key(0), tokens), logits)


def plain_linen(shape: Shape, dtype: str):
    import jax

    from benchmarks.plain_linen import PlainDecoder

    model = PlainDecoder(shape, dtype)
    step = _step(
        shape,
        lambda tokens: model.init(jax.random.key(0), tokens),
        lambda params, batch: model.apply({"params": params}, batch["tokens"]),
    )
    return _measured(*step)


def _step(shape: Shape, init, logits):
    """The library's training step, lowered, and its state and batch, around a function that computes
    logits."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn

    from transformer.training.losses.token_losses import token_loss
    from transformer.training.metrics import Sum
    from transformer.training.state import State
    from transformer.training.step import make_train_step

    class Objective:
        def loss(self, params, batch, rng, train):
            nll_bt, _, _ = token_loss(logits(params, batch), batch["targets"], shape.vocab_size)
            return {"loss": Sum.of(nll_bt, batch["weights"])}

        def weigh(self, batch):
            return {"loss": jnp.sum(batch["weights"])}

    tokens = shape.batch_of_tokens()
    ones = jnp.ones((shape.batch, shape.length), jnp.int32)
    batch = {
        "tokens": jnp.asarray(tokens[:, :-1]),
        "targets": jnp.asarray(tokens[:, 1:]),
        "segments": ones,
        "positions": jnp.cumsum(ones, axis=1) - 1,
        "weights": ones.astype(jnp.float32),
    }
    optimizer = optax.adamw(shape.learning_rate, weight_decay=0.1)
    params = nn.meta.unbox(jax.jit(init)(batch["tokens"]))["params"]
    state = State.create(params, optimizer, ema=False)
    step = jax.jit(make_train_step(Objective(), optimizer, seed=0), donate_argnums=0)
    return step.lower(state, batch), state, batch


def _measured(lowered, state, batch):
    start = time.perf_counter()
    step = lowered.compile()
    report = {
        "compile_s": time.perf_counter() - start,
        "program_gb": step.memory_analysis().temp_size_in_bytes / 2**30,
    }

    def call() -> float:
        nonlocal state
        state, metrics = step(state, batch)
        return float(metrics["loss"].mean)

    return call, report


def torch_gpt(shape: Shape, dtype: str):
    import torch

    from benchmarks.torch_gpt import TorchDecoder

    torch.manual_seed(0)
    return _torch_step(shape, dtype, TorchDecoder(shape))


def torch_gpt_compiled(shape: Shape, dtype: str):
    import torch

    from benchmarks.torch_gpt import TorchDecoder

    torch.manual_seed(0)
    return _torch_step(shape, dtype, TorchDecoder(shape), compiled=True)


def transformers(shape: Shape, dtype: str):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=shape.num_layers,
        n_embd=shape.d_model,
        n_head=shape.num_heads,
        n_positions=shape.length,
        vocab_size=shape.vocab_size,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        attn_implementation="sdpa",
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).train()
    return _torch_step(shape, dtype, model, of=lambda output: output.logits)


def _torch_step(shape: Shape, dtype: str, model, compiled: bool = False, of=lambda output: output):
    """A training step of a PyTorch model; `of` finds the logits in what the model returns."""
    import torch

    device = common.torch_device()
    torch.backends.cuda.matmul.allow_tf32 = True  # as JAX by default
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.learning_rate, weight_decay=0.1, fused=True)
    tokens = torch.from_numpy(shape.batch_of_tokens()).long().to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def mean_loss(inputs, targets):
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = of(model(inputs))
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    loss_of = torch.compile(mean_loss) if compiled else mean_loss

    def call() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    start = time.perf_counter()
    if compiled:
        loss_of(inputs, targets).backward()
    return call, {"compile_s": time.perf_counter() - start, "program_gb": float("nan")}


CONTESTANTS = {
    "ours": ours,
    "ours_whole": ours_whole,
    "torch_gpt": torch_gpt,
    "torch_gpt_compiled": torch_gpt_compiled,
    "plain_linen": plain_linen,
    "transformers": transformers,
}


SIZES = SHAPES | {"GPT-2": common.ACCELERATOR}
CASES = {f"{size}-{dtype}": (size, dtype) for size in SIZES for dtype in ("float32", "bfloat16")}
FOR_CPUS = [case for case, (size, _) in CASES.items() if size in SHAPES]


def work(name: str, case: str) -> None:
    size, dtype = CASES[case]
    call, report = CONTESTANTS[name](SIZES[size], dtype)
    losses = [call() for _ in range(WARM_UP)]
    common.serve(call, losses=losses, **report)


def row(case: str, name: str, contestant: Contestant, first: Contestant, peak: float) -> dict:
    size, dtype = CASES[case]
    shape, report = SIZES[size], contestant.report
    losses = report["losses"]
    if not (abs(losses[0] - math.log(shape.vocab_size)) < 1 and losses[-1] < losses[0]):
        raise SystemExit(f"{name} {size} {dtype}: losses {losses} do not start at log(vocabulary) and fall")
    seconds = statistics.median(contestant.seconds)
    return {
        "size": size,
        "type": dtype,
        "who": name,
        "tokens/s": f"{shape.tokens / seconds:,.0f}",
        "best": f"{shape.tokens / min(contestant.seconds):,.0f}",
        "of ceiling": f"{shape.training_flops() / seconds / peak:.0%}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "memory GB": f"{report['memory_gb']:.2f}",
        "of it program GB": common.gigabytes(report["program_gb"]),
        "compile s": f"{report['compile_s']:.1f}",
        "loss after 3 steps": f"{losses[-1]:.4f}",
    }


if __name__ == "__main__":
    common.contest(
        "benchmarks.train_speed",
        __doc__,
        list(CASES),
        CONTESTANTS,
        work,
        row,
        measure=lambda case: common.ceiling(CASES[case][1]),
        default=FOR_CPUS,
    )
