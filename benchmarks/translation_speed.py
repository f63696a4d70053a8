"""The speed of an encoder-decoder: training in target tokens/s, beam search in sentences/s.

    python -m benchmarks.translation_speed [--peer] [--cases train beam1 beam16 beam16-256] [--repeats 5]

6 + 6 layers, d_model 512, 8 heads, d_ff 2048, vocabulary 8000, source and target of 64 tokens, float32;
training with 16 pairs per batch, beam search with 4 beams for 1 and for 16 sources; `beam16-256` may write
256 tokens and ends after 64 as well, as most texts end before a limit. `--peer` adds the Marian model of
Hugging Face transformers on PyTorch with the same weights, and for beam search CTranslate2 with them (`pip
install torch transformers ctranslate2`); the table has the losses and the share of equal tokens. No
hypothesis ends early.
"""

import os
import statistics
import tempfile
import time

import numpy as np

from benchmarks import common
from benchmarks.common import Contestant

LAYERS, D, HEADS, FF, VOCAB, LENGTH, BEAMS = 6, 512, 8, 2048, 8000, 64, 4
CASES = {"train": 16, "beam1": 1, "beam16": 16, "beam16-256": 16}
LIMITS = {"beam16-256": 256}
"""The new tokens that there is room for, if that is not `LENGTH`."""
WARM_UP = 3


def weights() -> dict[str, np.ndarray]:
    """Random parameters by path, block parameters stacked, the same in every process."""
    n, d, f, h, k = LAYERS, D, FF, HEADS, D // HEADS
    sizes: dict[str, tuple[int, ...]] = {"embedding/table": (VOCAB, d)}
    for stack, kinds in (("encoder", ["attention"]), ("decoder", ["attention", "cross_attention"])):
        for kind in kinds:
            part = f"{stack}_blocks/{kind}"
            for name in ("query", "key", "value"):
                sizes |= {f"{part}/{name}/kernel": (n, d, h, k), f"{part}/{name}/bias": (n, h, k)}
            sizes |= {f"{part}/output/kernel": (n, h, k, d), f"{part}/output/bias": (n, d)}
        part = f"{stack}_blocks/feed_forward"
        sizes |= {f"{part}/up/kernel": (n, d, f), f"{part}/up/bias": (n, f)}
        sizes |= {f"{part}/down/kernel": (n, f, d), f"{part}/down/bias": (n, d)}
        for kind in [*kinds, "feed_forward"]:
            sizes[f"{stack}_blocks/{kind}_norm/bias"] = (n, d)
    rng = np.random.default_rng(0)
    drawn = {path: 0.04 * rng.standard_normal(size, np.float32) for path, size in sizes.items()}
    norms = [path for path in sizes if path.endswith("norm/bias")]
    return drawn | {path.replace("bias", "scale"): np.ones(sizes[path], np.float32) for path in norms}


def tokens(batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sources, target inputs (from token 0 on) and targets, (batch, LENGTH) each."""
    rng = np.random.default_rng(1)
    source, targets = rng.integers(1, VOCAB, (2, batch, LENGTH)).astype(np.int32)
    return source, np.pad(targets[:, :-1], ((0, 0), (1, 0))), targets


def ours(case: str):
    import jax
    import jax.numpy as jnp
    import optax
    from flax import traverse_util

    from transformer.decoding.beam import beam_search
    from transformer.models.encoder_decoder import EncoderDecoderConfig
    from transformer.training.losses.token_losses import LossConfig, token_losses
    from transformer.training.state import State
    from transformer.training.step import make_train_step

    config = EncoderDecoderConfig(
        norm="layer",
        d_model=D,
        num_layers=LAYERS,
        num_heads=HEADS,
        d_ff=FF,
        feed_forward="relu",
        norm_placement="post",
        norm_epsilon=1e-5,
        position="sinusoidal",
        scale_embeddings=True,
        use_bias=True,
        vocab_multiple=1,
    )
    model = config.build(VOCAB)
    params = jax.tree.map(jnp.asarray, traverse_util.unflatten_dict(weights(), sep="/"))
    source, inputs, targets = tokens(CASES[case])
    if case != "train":
        arguments = model.stepper(params, 0), source, np.full(len(source), LENGTH, np.int32)
        limits = np.full(len(source), LENGTH, np.int32)
        options = {"length_penalty": 1.0, "eos_id": -1, "limits_b": limits}
        start = time.perf_counter()
        search = beam_search.lower(
            *arguments, **options, beam_size=BEAMS, max_new_tokens=LIMITS.get(case, LENGTH), n_best=1
        ).compile()
        report = {"compile_s": time.perf_counter() - start}
        return lambda: np.asarray(search(*arguments, **options)[0][:, 0, :LENGTH]), report

    class Objective:
        def loss(self, params, batch, rng, train):
            x_btd = model.apply({"params": params}, batch["source"], batch["tokens"], method="hidden")

            def unembed(x_btd):
                return model.apply({"params": params}, x_btd, method="unembed")

            return token_losses(unembed, x_btd, batch, LossConfig(), VOCAB, train)

        def weigh(self, batch):
            return {"loss": jnp.sum(batch["weights"])}

    ones = np.ones(targets.shape, np.int32)
    batch = {"source": source, "tokens": inputs, "targets": targets, "bytes": ones}
    batch = jax.tree.map(jnp.asarray, batch | {"weights": ones.astype(np.float32)})
    optimizer = optax.adamw(1e-4, weight_decay=0.1)
    state = State.create(params, optimizer, ema=False)
    step = jax.jit(make_train_step(Objective(), optimizer, seed=0), donate_argnums=0)
    start = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    report = {
        "compile_s": time.perf_counter() - start,
        "program_gb": compiled.memory_analysis().temp_size_in_bytes / 2**30,
    }

    def call() -> float:
        nonlocal state
        state, metrics = compiled(state, batch)
        return float(metrics["loss"].mean)

    return call, report


def marian():
    """The Marian model of `transformers` with these weights."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=D,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=FF,
        decoder_ffn_dim=FF,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        max_position_embeddings=2 * LENGTH,
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_id=None,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    model.load_state_dict(_marian(weights()), strict=False)
    return model


def transformers(case: str):
    import torch

    model = marian()
    source, inputs, targets = (torch.from_numpy(x).long() for x in tokens(CASES[case]))
    if case != "train":
        model.eval()
        options = {"num_beams": BEAMS, "do_sample": False, "max_new_tokens": LENGTH, "length_penalty": 1.0}

        def search() -> np.ndarray:
            with torch.inference_mode():
                return model.generate(source, attention_mask=torch.ones_like(source), **options)[
                    :, 1:
                ].numpy()

        return search, {"compile_s": 0.0}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def call() -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=source, decoder_input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return call, {"compile_s": 0.0}


def ctranslate2(case: str):
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    model, names = marian(), [f"t{number}" for number in range(VOCAB)]
    model.config.normalize_before, model.config.normalize_embedding = False, False
    spec = BartLoader().get_model_spec(model)  # Marian's own leaves out the last row
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.decoder_start_token = spec.config.eos_token = spec.config.unk_token = names[0]
    spec.config.add_source_eos = False
    options = {"beam_size": BEAMS, "max_decoding_length": LENGTH, "min_decoding_length": LENGTH}
    texts = [[names[token] for token in row] for row in tokens(CASES[case])[0].tolist()]
    with tempfile.TemporaryDirectory() as folder:
        spec.validate()
        spec.save(folder)
        threads = {"inter_threads": 1, "intra_threads": len(os.sched_getaffinity(0))}
        translator = ctranslate2.Translator(folder, compute_type="float32", **threads)

    def search() -> np.ndarray:
        found = translator.translate_batch(texts, **options)
        return np.array([[int(name[1:]) for name in result.hypotheses[0]] for result in found])

    return search, {"compile_s": 0.0}


def _marian(ours: dict[str, np.ndarray]) -> dict:
    """The same parameters by Marian's names; its sinusoidal positions are interleaved as in the paper."""
    import torch

    angles = np.arange(2 * LENGTH)[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(2 * LENGTH, D).astype(np.float32)
    named = {"model.shared.weight": ours["embedding/table"], "lm_head.weight": ours["embedding/table"]}
    for stack in ("encoder", "decoder"):
        named[f"model.{stack}.embed_tokens.weight"] = ours["embedding/table"]
        named[f"model.{stack}.embed_positions.weight"] = table
    parts = {"attention": "self_attn", "cross_attention": "encoder_attn"}
    projections = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    for path, stacked in ours.items():
        stack, _, rest = path.partition("_blocks/")
        part, name, *leaf = rest.split("/") if rest else ("", "")
        for i, x in enumerate(stacked if rest else ()):
            where = f"model.{stack}.layers.{i}"
            kind = "bias" if path.endswith("bias") else "weight"
            if part in parts:
                x = x.reshape(D, D).T if leaf == ["kernel"] else x.reshape(D)
                named[f"{where}.{parts[part]}.{projections[name]}.{kind}"] = x
            elif part == "feed_forward":
                named[f"{where}.{'fc1' if name == 'up' else 'fc2'}.{kind}"] = x.T
            else:
                norm = parts.get(part.removesuffix("_norm"), "final")
                named[f"{where}.{norm}_layer_norm.{kind}"] = x
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in named.items()}


CONTESTANTS = {"ours": ours, "transformers": transformers, "ctranslate2": ctranslate2}


def work(name: str, case: str) -> None:
    call, report = CONTESTANTS[name](case)
    if case == "train":
        return common.serve(call, result=[call() for _ in range(WARM_UP)], **report)
    return common.serve(call, result=call().tolist(), **report)


def row(case: str, name: str, contestant: Contestant, first: Contestant, limit: float) -> dict:
    seconds, best = statistics.median(contestant.seconds), min(contestant.seconds)
    done, unit = (CASES[case] * LENGTH, "tokens/s") if case == "train" else (CASES[case], "sentences/s")
    result, expected = contestant.report["result"], first.report["result"]
    if case == "train":
        shown = "losses " + ", ".join(f"{loss:.4f}" for loss in result)
    else:
        shown = f"{np.mean(np.equal(result, expected)):.0%} the same tokens"
    return {
        "case": case,
        "who": name,
        "speed": f"{done / seconds:,.2f} {unit}",
        "best": f"{done / best:,.2f}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "memory GB": f"{contestant.report['memory_gb']:.2f}",
        "compile s": f"{contestant.report['compile_s']:.1f}",
        "result": shown,
    }


if __name__ == "__main__":
    absent = [("ctranslate2", "train")]
    common.contest("benchmarks.translation_speed", __doc__, [*CASES], CONTESTANTS, work, row, absent=absent)
