"""Exported GGUF files, read by gguf's own reader and by transformers."""

import contextlib
import io

import numpy as np
import pytest

import launch
from tests.interop import parity
from transformer.data.tokenization.tokenizers import Tokenizer

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SMALL = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 40, "vocab_size": 300, "max_position_embeddings": 64, "rope_theta": 500.0},
    **{"bos_token_id": 256, "eos_token_id": 256, "rms_norm_eps": 1e-5},
}
TEXT = "The cat's 12 hats, naïve: \n\n  x = fib(3)"


def exported(folder, kind, tokenizer, **keys):
    """A model of transformers, imported here and exported."""
    make = getattr(transformers, f"{kind}ForCausalLM")
    made = make(make.config_class(**SMALL | keys))
    parity.save(made, folder / "theirs", 1, tokenizer=tokenizer)
    assert launch.main(["--mode=import", f"--from={folder / 'theirs'}", f"--workdir={folder / 'run'}"]) == 0
    return made, ["--mode=export", f"--workdir={folder / 'run'}", f"--to={folder / 'out'}", "--format=gguf"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("bpe", [TEXT * 3, "the hat of the cat, the cats' hats"] * 5, 280)


@pytest.mark.thorough
@pytest.mark.parametrize("kind,tied", [("Llama", False), ("Qwen2", True)])
def test_readers_of_the_format_find_the_model(tmp_path, kind, tied, tokenizer):
    """Metadata, tokens and every tensor, queries and keys in llama.cpp's order; transformers, which reverses
    that order, computes the same logits."""
    made, flags = exported(tmp_path, kind, tokenizer, tie_word_embeddings=tied)
    assert launch.main(flags) == 0
    file = tmp_path / "out" / "model.gguf"
    reader = gguf.GGUFReader(file)
    found = {name: field.contents() for name, field in reader.fields.items()}
    name = kind.lower()
    sizes = {"context_length": 64, "block_count": 2, "embedding_length": 32, "feed_forward_length": 40}
    sizes |= {"attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 8}
    assert (
        found["general.architecture"] == name
        and found.items() >= {f"{name}.{k}": v for k, v in sizes.items()}.items()
    )
    np.testing.assert_allclose(found[f"{name}.attention.layer_norm_rms_epsilon"], 1e-5, rtol=1e-6)
    assert found[f"{name}.rope.freq_base"] == 500
    assert found["tokenizer.ggml.tokens"][: tokenizer.vocab_size] == [
        *map(tokenizer.name, range(tokenizer.vocab_size))
    ]
    assert found["tokenizer.ggml.tokens"][-1] == "[PAD299]" and found["tokenizer.ggml.token_type"][-1] == 5
    assert (
        found["tokenizer.ggml.token_type"][tokenizer.eos_id] == 3 and found["tokenizer.ggml.pre"] == "gpt-2"
    )
    tensors = {each.name: each.data for each in reader.tensors}
    assert len(tensors) == len(made.state_dict()) - tied and ("output.weight" in tensors) != tied
    query = made.state_dict()["model.layers.1.self_attn.q_proj.weight"].numpy()
    if kind == "Llama":  # rows i and i + 4 of a head of 8 beside each other
        order = [8 * head + half * 4 + i for head in range(4) for i in range(4) for half in range(2)]
        query = query[order]
    np.testing.assert_array_equal(tensors["blk.1.attn_q.weight"], query)
    with contextlib.redirect_stderr(io.StringIO()):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    for key, value in made.state_dict().items():
        torch.testing.assert_close(theirs.state_dict()[key], value, rtol=0, atol=0)
    tokens = torch.arange(3, 40)[None]
    torch.testing.assert_close(theirs(tokens).logits, made(tokens).logits, rtol=1e-5, atol=1e-5)


GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 9}
YARN = {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}
LOCAL = {"full_attention": {"rope_type": "default", "rope_theta": 9.0}, "sliding_attention": YARN}
REFUSED = {
    "positions of windows": (
        "Gemma3",
        {"rope_parameters": LOCAL},
        "rope_parameters: sliding_attention: 'linear'",
    ),
    "scale": (
        "Gemma2",
        {"query_pre_attn_scalar": 9},
        "query_pre_attn_scalar: 9 of 2 layers; expected head_dim",
    ),
    "largest": (
        "Gemma2",
        {"num_hidden_layers": 46},
        "query_pre_attn_scalar: 8 of 46 layers; expected head_dim",
    ),
    "cap": ("Gemma2", {"final_logit_softcapping": None}, "final_logit_softcapping: None; expected a number"),
    "positions": ("Gemma2", {"rope_scaling": YARN}, "rope_scaling: {'rope_type': 'linear'"),
    "windows": (
        "Gemma2",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types: full_attention, sliding_attention; expected windows but in one layer of 2, its last",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_gemma_that_llama_cpp_does_not_have_is_refused(name, tmp_path, capfd, tokenizer):
    kind, keys, said = REFUSED[name]
    _, flags = exported(tmp_path, kind, tokenizer, **GEMMA | keys)
    assert launch.main(flags) == 2
    assert f"--format=gguf: {said}" in capfd.readouterr().err


def test_what_the_format_cannot_say_is_refused(tmp_path, capfd, tokenizer):
    _, flags = exported(tmp_path, "Mistral", tokenizer, sliding_window=7)
    assert launch.main(flags) == 2
    assert "--format=gguf: sliding_window: 7; expected None" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
