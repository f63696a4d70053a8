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
DECODERS = {
    "Llama": ({"tie_word_embeddings": False}, "LlamaConfig", "LlamaForCausalLM"),
    "Mistral": ({"sliding_window": None}, "MistralConfig", "MistralForCausalLM"),
    "Qwen2": ({"tie_word_embeddings": True}, "Qwen2Config", "Qwen2ForCausalLM"),
    "Qwen3": ({"head_dim": 16}, "Qwen3Config", "Qwen3ForCausalLM"),
    "GPT2": (GPT2, "GPT2Config", "GPT2LMHeadModel"),
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
    parity.save(made, folder / "theirs", 1, tokenizer=tokenizer)
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
                for i in range(place, min(place + 8, end))
                if new[i] == entry["id"] and math.isclose(entry["logprob"], scores_t[i], abs_tol=PRECISION)
            ]
            assert fits, (entry, new[place:], scores_t[place:])
            place = fits[0]


def test_ctranslate2_writes_the_same_tokens(run):
    """Greedily, at the same probabilities; it knows no rotary Mistral without a window."""
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
