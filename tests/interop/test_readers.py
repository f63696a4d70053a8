"""What is exported, read by the programs that people run it with: llama.cpp and CTranslate2."""

import contextlib
import io
import math

import numpy as np
import pytest

import launch
from tests.interop import parity
from tests.interop.test_gguf import SMALL, TEXT
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.generation import generate
from workdir import api

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
xllamacpp = pytest.importorskip("xllamacpp")
ctranslate2 = pytest.importorskip("ctranslate2")

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

NEW = 24
PRECISION = 1e-3
"""llama.cpp looks activations up in a table of half precision."""
PROMPTS = ("the hat of the cat", "The cat's 12 hats, naïve:\n\n  x = fib(3)", "日本 hats\tthe")
GPT2 = {
    **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 280, "n_inner": 40},
    **{"bos_token_id": 256, "eos_token_id": 256, "layer_norm_epsilon": 1e-5},
}
GEMMA = {
    **{"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 9, "num_hidden_layers": 4},
    **{"rope_theta": 500.0, "final_logit_softcapping": 3.0},
}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
DECODERS = {
    "Llama": ({"tie_word_embeddings": False}, "LlamaConfig", "LlamaForCausalLM"),
    "Mistral": ({"sliding_window": None}, "MistralConfig", "MistralForCausalLM"),
    "Qwen2": ({"tie_word_embeddings": True}, "Qwen2Config", "Qwen2ForCausalLM"),
    "Qwen3": ({"head_dim": 16}, "Qwen3Config", "Qwen3ForCausalLM"),
    "GPT2": (GPT2, "GPT2Config", "GPT2LMHeadModel"),
    "Gemma2": (GEMMA | {"attn_logit_softcapping": 2.0}, "Gemma2Config", "Gemma2ForCausalLM"),
    "Gemma3": (
        GEMMA | {"num_hidden_layers": 7, "rope_parameters": ROPES},
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
    ),
}


@pytest.fixture(scope="module", params=DECODERS)
def run(request, tmp_path_factory):
    """The folder of a run that was imported, and its exports beside it; the name of its kind."""
    keys, config, model = DECODERS[request.param]
    sizes = {} if request.param == "GPT2" else SMALL
    tokenizer = Tokenizer.train("bpe", [TEXT * 3, "the hat of the cat, the cats' hats"] * 5, 280)
    ends = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes | keys | ends))
    folder = tmp_path_factory.mktemp(request.param)
    # Gemma multiplies its embeddings, which else outweigh its blocks.
    embedding = 0.2 if "Gemma" in request.param else 1.0
    parity.save(made, folder / "theirs", 1, tokenizer=tokenizer, embedding=embedding)
    assert launch.main(["--mode=import", f"--from={folder / 'theirs'}", f"--workdir={folder / 'run'}"]) == 0
    for form in ("gguf", "transformers"):
        to = [f"--workdir={folder / 'run'}", f"--to={folder / form}", f"--format={form}"]
        assert launch.main(["--mode=export", *to]) == 0
    return folder


def continued(folder):
    """For each prompt its tokens, the greedy continuation, and the log-probability of each new token."""
    import jax

    loaded, params = api.load(folder / "run")
    tokenizer, stepper = loaded.experiment.data.tokenizer, loaded.experiment.stepper(params)
    for text in PROMPTS:
        tokens = [tokenizer.bos_id, *tokenizer.encode(text)]
        rows = np.array([tokens], np.int32), np.array([len(tokens)], np.int32)
        (new,), _ = generate(
            stepper, *rows, jax.random.split(jax.random.key(0), 1), max_new_tokens=NEW, temperature=None
        )
        both = np.array([[*tokens, *np.asarray(new)]])
        logits_tv = loaded.experiment.model.apply({"params": params}, both)[0, len(tokens) - 1 : -1]
        scores_t = jax.nn.log_softmax(logits_tv[:, : loaded.experiment.model.vocab_size])[np.arange(NEW), new]
        yield text, tokens, np.asarray(new).tolist(), np.asarray(scores_t), tokenizer


def test_llama_cpp_writes_the_same_text(run):
    """It makes the tokens of a prompt itself: as many, with the same continuation at the same probabilities,
    to the precision of its tables."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(run / "gguf" / "model.gguf")
    wanted.n_ctx, wanted.n_gpu_layers, wanted.n_parallel = 256, 0, 1
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    wanted.swa_full = True  # else keys outside of a window are computed again
    wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(wanted)
    for text, tokens, new, scores_t, tokenizer in continued(run):
        answer = server.handle_completions(
            {"prompt": text, "n_predict": NEW, "temperature": 0, "logprobs": 1}
        )
        assert answer["usage"]["prompt_tokens"] == len(tokens), text
        end = new.index(tokenizer.eos_id) + 1 if tokenizer.eos_id in new else NEW
        assert answer["usage"]["completion_tokens"] == end
        # An entry is of one token, or of the last one of several that are one character.
        entries, place = answer["choices"][0]["logprobs"]["content"], 0
        assert len(entries) > 3
        for entry in entries:
            fits = [
                i + 1
                for i in range(place, min(place + 16, end))
                if new[i] == entry["id"] and math.isclose(entry["logprob"], scores_t[i], abs_tol=PRECISION)
            ]
            assert fits, (entry, new[place:], scores_t[place:])
            place = fits[0]


def test_ctranslate2_writes_the_same_tokens(run):
    """Greedily, at the same probabilities; it knows no rotary Mistral without a window."""
    if run.name.startswith("Gemma"):
        pytest.skip("CTranslate2 leaves out the caps and the windows of Gemma")
    folder, converted = run / "transformers", run / "ctranslate2"
    with contextlib.redirect_stderr(io.StringIO()):
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    generator = ctranslate2.Generator(str(converted), intra_threads=1)
    options = {
        "max_length": NEW,
        "sampling_topk": 1,
        "include_prompt_in_result": False,
        "return_scores": True,
    }
    for text, tokens, new, scores_t, ours in continued(run):
        assert tokenizer.encode(text) in (tokens, tokens[1:])
        (result,) = generator.generate_batch([tokenizer.convert_ids_to_tokens(tokens)], **options)
        end = new.index(ours.eos_id) if ours.eos_id in new else NEW
        assert result.sequences_ids[0] == new[:end]
        count = min(end + 1, NEW)
        assert math.isclose(result.scores[0], scores_t[:count].mean(), abs_tol=1e-3)


T5 = {
    **{"vocab_size": 280, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3},
    **{"num_heads": 4, "pad_token_id": 0, "decoder_start_token_id": 0},
}


@pytest.mark.parametrize("version", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}])
def test_ctranslate2_translates_with_t5(version, tmp_path):
    """Greedily the tokens that are likeliest here, at the same probabilities, of an export of an import."""
    tokenizer = Tokenizer.train("bpe", [TEXT * 3, "the hat of the cat, the cats' hats"] * 5, 280)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**T5 | version, eos_token_id=tokenizer.eos_id)
    )
    parity.save(model, tmp_path / "theirs", 1, tokenizer=tokenizer, std=0.3)
    run, folder, converted = (tmp_path / name for name in ("run", "out", "ctranslate2"))
    assert launch.main(["--mode=import", f"--from={tmp_path / 'theirs'}", f"--workdir={run}"]) == 0
    assert launch.main(["--mode=export", f"--workdir={run}", f"--to={folder}"]) == 0
    with contextlib.redirect_stderr(io.StringIO()):
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    translator = ctranslate2.Translator(str(converted), intra_threads=1)
    loaded, params = api.load(run)
    for text in PROMPTS:
        source = [*tokenizer.encode(text), tokenizer.eos_id]
        (answer,) = translator.translate_batch(
            [theirs.convert_ids_to_tokens(source)], beam_size=1, max_decoding_length=NEW, return_scores=True
        )
        new = theirs.convert_tokens_to_ids(answer.hypotheses[0])
        new += [tokenizer.eos_id] * (len(new) < NEW)
        read = np.array([[0, *new[:-1]]], np.int32)
        logits_tv = loaded.experiment.model.apply(
            {"params": params}, np.array([source]), read, segments_bt=np.ones_like(read)
        )[0]
        assert np.asarray(logits_tv[:, : tokenizer.vocab_size].argmax(-1)).tolist() == new
        logits_tv = np.asarray(logits_tv, np.float64)[:, :280]
        scores_t = logits_tv - np.log(np.exp(logits_tv).sum(-1, keepdims=True))
        if not version:  # logits of version 1.1 are scaled there too, which does not change their order
            score = scores_t[np.arange(len(new)), new].mean()
            assert math.isclose(answer.scores[0], score, abs_tol=1e-3)
