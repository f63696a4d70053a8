"""A language model in one file: the page to read before the library.

    python examples/train_lm.py

A decoder-only Transformer learns to predict each byte of Python's standard library from the bytes before it.
The program prints the loss, the bits per byte of files that are not trained on, and a text that it wrote.

Nothing of the library is imported. Model, loss, optimizer and sampler are those of `configs/lm.py` with
`optimizer.name=adamw`, `optimizer.learning_rate=0.001` and `data.tokenizer=bytes`: on the same batches the
losses of 20 steps agree to a relative 1e-6 (`tests/test_examples.py`). The library adds packed documents,
other models and tasks, several devices, checkpoints, and a cache of keys and values for sampling.

The end of an array's name lists its axes:

    b  rows of the batch          h  attention heads
    t  positions (s: of keys)     k  width of a head
    d  width of the model         f  hidden width of the feed-forward
    v  tokens of the vocabulary   n  any other number
"""

import functools
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

END = 256
"""The token after each file, and before each prompt; the other tokens are the bytes."""

VOCAB_SIZE = 257

Params = dict[str, Any]
Batch = tuple[Any, Any]  # tokens and targets (b, t)


@dataclass(frozen=True)
class Config:
    """The sizes of the model and of the run."""

    d_model: int = 192
    num_layers: int = 4
    num_heads: int = 4
    d_ff: int = 768
    sequence_length: int = 256
    batch_size: int = 8
    steps: int = 600
    warmup_steps: int = 20
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0


def read_corpus() -> tuple[np.ndarray, np.ndarray]:
    """The files of Python's standard library as tokens (n,): for training, and every 20th for validation."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"test", "tests", "site-packages", "dist-packages"}
    paths = [path for path in root.rglob("*.py") if not left_out & {*path.relative_to(root).parts}]
    files = [np.append(np.fromfile(path, np.uint8).astype(np.int32), END) for path in sorted(paths)]
    return np.concatenate([file for i, file in enumerate(files) if i % 20]), np.concatenate(files[::20])


def batch_at(corpus_n: np.ndarray, step: int, c: Config) -> Batch:
    """Random parts of the corpus (b, t), and the token that follows each of their tokens (b, t).

    A function of (seed, step): a run that was interrupted can continue without the state of a data loader.
    """
    rng = np.random.default_rng((c.seed, step))
    starts_b = rng.integers(len(corpus_n) - c.sequence_length, size=c.batch_size)
    rows_bn = corpus_n[starts_b[:, None] + np.arange(c.sequence_length + 1)]
    return rows_bn[:, :-1], rows_bn[:, 1:]


def init(rng: jax.Array, c: Config) -> Params:
    """Initial parameters. Matrices have variance 1 / fan-in, so that a product has the variance of its input.

    Each of the 2 num_layers sublayers adds a term to the residual stream. The variance of the matrix that
    writes it is divided by their number, so that the sum has the scale of one term (Radford et al. 2019).
    """
    d, h, k, f, sublayers = c.d_model, c.num_heads, c.d_model // c.num_heads, c.d_ff, 2 * c.num_layers
    keys = iter(jax.random.split(rng, 1 + 6 * c.num_layers))

    def normal(*shape: int, variance: float) -> jax.Array:
        return math.sqrt(variance) * jax.random.normal(next(keys), shape)

    def block() -> Params:
        return {
            "attention_norm": jnp.ones(d),
            "query": normal(d, h, k, variance=1 / d),
            "key": normal(d, h, k, variance=1 / d),
            "value": normal(d, h, k, variance=1 / d),
            "output": normal(h, k, d, variance=1 / d / sublayers),
            "feed_forward_norm": jnp.ones(d),
            "up": normal(d, f, variance=1 / d),
            "down": normal(f, d, variance=1 / f / sublayers),
        }

    return {
        "embedding": normal(VOCAB_SIZE, d, variance=0.02**2),
        "blocks": [block() for _ in range(c.num_layers)],
        "final_norm": jnp.ones(d),
    }


def apply(params: Params, tokens_bt: jax.Array) -> jax.Array:
    """(b, t) tokens -> the logits (b, t, v) of the next ones.

    Sublayers are x + f(norm(x)) (Xiong et al. 2020). One matrix is the embedding and the output.
    """
    x_btd = params["embedding"][tokens_bt]
    for p in params["blocks"]:
        x_btd = x_btd + attention(p, rms_norm(x_btd, p["attention_norm"]))
        x_btd = x_btd + feed_forward(p, rms_norm(x_btd, p["feed_forward_norm"]))
    return jnp.einsum("btd,vd->btv", rms_norm(x_btd, params["final_norm"]), params["embedding"])


def attention(p: Params, x_btd: jax.Array) -> jax.Array:
    """softmax(Q K^T / sqrt(k)) V in each head, of no later positions (Vaswani et al. 2017, section 3.2)."""
    q_bthk = rotate(jnp.einsum("btd,dhk->bthk", x_btd, p["query"]))
    k_bshk = rotate(jnp.einsum("bsd,dhk->bshk", x_btd, p["key"]))
    v_bshk = jnp.einsum("bsd,dhk->bshk", x_btd, p["value"])
    scores_bhts = jnp.einsum("bthk,bshk->bhts", q_bthk, k_bshk) / math.sqrt(q_bthk.shape[-1])
    allowed_ts = jnp.tril(jnp.ones(scores_bhts.shape[-2:], bool))
    weights_bhts = jax.nn.softmax(jnp.where(allowed_ts, scores_bhts, -jnp.inf))
    heads_bthk = jnp.einsum("bhts,bshk->bthk", weights_bhts, v_bshk)
    return jnp.einsum("bthk,hkd->btd", heads_bthk, p["output"])


def rotate(x_bthk: jax.Array) -> jax.Array:
    """Rotary position embeddings: rotates each pair (x_i, x_{i + k/2}) by the angle t 10000^(-2i / k).

    The product of a query and a key then depends only on the distance between them (Su et al. 2021).
    """
    t, half = x_bthk.shape[1], x_bthk.shape[-1] // 2
    angle_t1n = jnp.arange(t)[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
    sine_t1n, cosine_t1n = jnp.sin(angle_t1n), jnp.cos(angle_t1n)
    a_bthn, b_bthn = jnp.split(x_bthk, 2, axis=-1)
    return jnp.concatenate(
        [a_bthn * cosine_t1n - b_bthn * sine_t1n, a_bthn * sine_t1n + b_bthn * cosine_t1n], axis=-1
    )


def feed_forward(p: Params, x_btd: jax.Array) -> jax.Array:
    """The same two-layer network at every position."""
    hidden_btf = jax.nn.gelu(jnp.einsum("btd,df->btf", x_btd, p["up"]))
    return jnp.einsum("btf,fd->btd", hidden_btf, p["down"])


def rms_norm(x_btd: jax.Array, scale_d: jax.Array) -> jax.Array:
    """scale * x / sqrt(mean(x^2) + 1e-6) (Zhang and Sennrich 2019)."""
    mean_square_bt1 = jnp.mean(jnp.square(x_btd), axis=-1, keepdims=True)
    return scale_d * x_btd * jax.lax.rsqrt(mean_square_bt1 + 1e-6)


def loss(params: Params, batch: Batch) -> jax.Array:
    """The mean of -log p(target), in nats."""
    tokens_bt, targets_bt = batch
    return optax.softmax_cross_entropy_with_integer_labels(apply(params, tokens_bt), targets_bt).mean()


def make_optimizer(c: Config) -> optax.GradientTransformation:
    """AdamW after clipping by the global norm. The learning rate warms up, then follows half a cosine to 0.

    Weight decay is that of matrices, not of the embedding and the scales of norms.
    """
    rate = optax.warmup_cosine_decay_schedule(0.0, c.learning_rate, c.warmup_steps, c.steps)

    def decayed(params: Params) -> Params:
        return jax.tree.map(lambda x: x.ndim > 1, params) | {"embedding": False}

    return optax.chain(
        optax.clip_by_global_norm(c.clip_norm),
        # `count` starts with 0: no step has a rate of 0, and step `warmup_steps` has the highest.
        optax.adamw(lambda count: rate(count + 1), weight_decay=c.weight_decay, mask=decayed),
    )


@functools.partial(jax.jit, static_argnames="optimizer", donate_argnames=("params", "opt_state"))
def train_step(
    params: Params, opt_state: Any, batch: Batch, *, optimizer: Any
) -> tuple[Params, Any, jax.Array]:
    """One update: the new parameters, the new state of the optimizer, and the loss before the update."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def keep_top_p(logits_v: jax.Array, p: float) -> jax.Array:
    """Keeps the most probable tokens, as few as have probability p together; other logits become -inf.

    Source: Holtzman et al. 2020, section 3.1.
    """
    sorted_v = jnp.sort(logits_v, descending=True)
    probability_v = jax.nn.softmax(sorted_v)
    more_probable_v = jnp.cumsum(probability_v) - probability_v
    lowest = jnp.min(sorted_v, where=more_probable_v < p, initial=jnp.inf)
    return jnp.where(logits_v < lowest, -jnp.inf, logits_v)


@functools.partial(jax.jit, static_argnames=("size", "temperature", "top_p"))
def write(
    params: Params, prompt_n: np.ndarray, rng: jax.Array, *, size: int, temperature: float, top_p: float
) -> jax.Array:
    """The prompt and further tokens, `size` in all, each drawn from softmax(TopP(logits / temperature)).

    For each token the model reads all `size` positions; those after it change nothing.
    """

    def draw(i: jax.Array, tokens_t: jax.Array) -> jax.Array:
        logits_v = keep_top_p(apply(params, tokens_t[None])[0, i - 1] / temperature, top_p)
        return tokens_t.at[i].set(jax.random.categorical(jax.random.fold_in(rng, i), logits_v))

    prompt_t = jnp.zeros(size, jnp.int32).at[: len(prompt_n)].set(prompt_n)
    return jax.lax.fori_loop(len(prompt_n), size, draw, prompt_t)


def sample(params: Params, prompt: str, c: Config, temperature: float = 0.8, top_p: float = 0.95) -> str:
    """The prompt, shorter than a row in training, and what the model writes up to END or to this length."""
    prompt_n, rng = np.array([END, *prompt.encode()]), jax.random.key(c.seed)
    size = c.sequence_length
    tokens = write(params, prompt_n, rng, size=size, temperature=temperature, top_p=top_p).tolist()
    end = tokens.index(END, 1) if END in tokens[1:] else size
    return bytes(tokens[1:end]).decode(errors="replace")


def main(c: Config) -> None:
    """Trains, and prints the loss of every 20th step, the bits per byte of validation text, and a sample."""
    training_n, validation_n = read_corpus()
    params, optimizer = init(jax.random.key(c.seed), c), make_optimizer(c)
    opt_state = optimizer.init(params)
    print(f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters, {len(training_n):,} tokens")
    for step in range(c.steps):
        batch = batch_at(training_n, step, c)
        params, opt_state, value = train_step(params, opt_state, batch, optimizer=optimizer)
        if (step + 1) % 20 == 0:
            print(f"step {step + 1:4}  loss {value:.3f}", flush=True)
    values = [jax.jit(loss)(params, batch_at(validation_n, step, c)) for step in range(50)]
    print(f"validation: {np.mean(values) / math.log(2):.2f} bits per byte\n")
    print(sample(params, "def fib(", c))


if __name__ == "__main__":
    main(Config())
