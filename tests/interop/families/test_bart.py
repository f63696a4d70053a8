"""BART of transformers, in and out."""

import json

import numpy as np
import pytest

import launch
from tests.interop import pairs, parity
from tests.interop.test_encoder_runs import byte_pairs
from transformer.data.pairs.text_pairs import PrefixedTexts, prefixed
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.interop.families.bart import BART

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SIZES = {
    **{"vocab_size": 300, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "scale_embedding": True},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20},
    **{"decoder_ffn_dim": 20, "max_position_embeddings": 80, "activation_function": "gelu_new"},
    **{"pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 299},
    "forced_eos_token_id": None,
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bart")
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES))
    model.final_logits_bias = 0.3 * torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    model.final_logits_bias[0, 299] = 2.0
    parity.save(model, folder, 0, std=0.3, tokenizer=Tokenizer.blank(300))
    return folder, model


@pytest.fixture(scope="module")
def imported(theirs):
    return pairs.Pairs(theirs[0])


def test_logits(imported, theirs, rng):
    pairs.check_logits(imported, theirs[1], rng)


@pytest.mark.thorough
def test_round_trip(imported, theirs, tmp_path, rng):
    pairs.check_round_trip(imported, theirs[1], tmp_path / "out", rng)


@pytest.mark.thorough
def test_greedy_and_beam_search(imported, theirs):
    pairs.check_search(imported, theirs[1], 1, 64, ends=False)
    pairs.check_search(imported, theirs[1], 4, 16, ends=False)


@pytest.mark.thorough
def test_copies(imported, tmp_path):
    parity.check_copies(imported, tmp_path)


@pytest.mark.thorough
def test_a_wrong_entry_of_the_table_is_caught(imported, rng):
    pairs.check_broken_tables(imported, rng, at_least=100)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"normalize_embedding": False}, "normalize_embedding: False; only True"),
        ({"decoder_ffn_dim": 24}, "decoder_ffn_dim: 24 and encoder_ffn_dim: 20; only equal ones"),
        ({"static_position_embeddings": True}, "static_position_embeddings: True; only False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: False; only True"),
    ],
)
def test_what_cannot_be_expressed_is_refused(changes, said):
    with pytest.raises(UserError, match=f"^{said}"):
        BART.model(SIZES | changes)


def summariser(folder):
    """A model as those of summaries: RoBERTa's tokenizer, whose `<s>` is also the first token of targets."""
    sizes = byte_pairs(folder)
    tokenizer = transformers.BartTokenizer.from_pretrained(folder)
    ids = {"eos_token_id": 2, "forced_bos_token_id": 0, "vocab_size": sizes["vocab_size"]}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES | ids))
    model.final_logits_bias = torch.zeros(1, sizes["vocab_size"])
    model.final_logits_bias[0, 2] = 5.0
    parity.save(model, folder, 0, std=0.3)
    (folder / "tokenizer.json").unlink()
    tokenizer.save_pretrained(folder)
    settings = {"num_beams": 3, "early_stopping": "never", "max_length": 12, "length_penalty": 2.0}
    ids = {key: SIZES[key] for key in ("bos_token_id", "pad_token_id", "decoder_start_token_id")}
    settings |= ids | {"eos_token_id": 2, "forced_bos_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(settings))


def written_by(folder, text):
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        ids = model.generate(**tokens(text, return_tensors="pt"), use_cache=False)
    assert ids[0, 1] == 0  # `<s>`
    return tokens.decode(ids[0], skip_special_tokens=True)


@pytest.mark.thorough
def test_summaries_begin_as_there_are_trained_on_and_go_back(tmp_path, capfd):
    folder, run, out = (tmp_path / each for each in ("folder", "run", "out"))
    folder.mkdir()
    summariser(folder)
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={run}"]) == 0
    texts = ["the fire", "go, the food!"]
    tokens, prompt = (
        transformers.AutoTokenizer.from_pretrained(folder),
        parity.Hub(str(folder)).experiment.prompt,
    )
    assert [prompt(text) for text in texts] == tokens(texts)["input_ids"]
    for text in texts:
        capfd.readouterr()
        assert launch.main([f"--workdir={run}", "--mode=predict", f"--prompt={text}"]) == 0
        assert capfd.readouterr().out.rstrip("\n") == written_by(folder, text)
    values = json.loads((run / "config.json").read_text())
    assert (values["generate"]["first"], values["data"]["first_token"]) == ("<s>", "<s>")
    table = tmp_path / "a.tsv"
    rows = [f"the fire {i}\tgo {i}" for i in range(60)]
    table.write_text("\n".join(["source\ttarget", *rows, ""]))
    keys = {"initialize_from": f"hf:{folder}", "data.source": f"tsv:{table}", "generate.max_new_tokens": 11}
    keys |= {"data.source_length": 40, "data.target_length": 40}
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    tuned = ["--config=configs/summarization.py:tiny", f"--workdir={tmp_path / 'tuned'}", *given]
    assert launch.main(tuned) == 0
    values = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert (values["generate"]["first"], values["data"]["first_token"]) == ("<s>", "<s>")
    assert launch.main([f"--workdir={tmp_path / 'tuned'}", "--mode=export", f"--to={out}"]) == 0
    for text in texts:
        capfd.readouterr()
        assert launch.main([f"--workdir={tmp_path / 'tuned'}", "--mode=predict", f"--prompt={text}"]) == 0
        assert capfd.readouterr().out.rstrip("\n") == written_by(out, text)


def test_texts_begin_with_a_token_unless_they_are_empty():
    cache = prefixed(
        PrefixedTexts(np.array([9, 5, 6, 8, 9, 8]), np.array([0, 1, 2, 0, 0, 0]), np.array([0, 4, 6])), [7]
    )
    assert cache.tokens.tolist() == [9, 7, 5, 6, 8, 9, 8]
    assert cache.num_bytes.tolist() == [0, 0, 1, 2, 0, 0, 0] and cache.offsets.tolist() == [0, 5, 7]
