"""Two SentencePiece models with one vocabulary, as published Marian models have them: they encode and decode
as transformers does, and a whole model works with them."""

import inspect
import io
import itertools
import json
import json as module_with_text
import textwrap

import numpy as np
import pytest

import launch
from tests.interop import parity
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.interop.vocabulary import read_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

pytestmark = pytest.mark.usefixtures("in_root")

EN = [line for line in inspect.getsource(module_with_text).splitlines() if line.strip()]
DE = [line.lower()[::-1].replace("e", "ä") for line in EN]


def write(folder, rng, lacking=0):
    """source.spm, target.spm and vocab.json, with ids in any order; `lacking` pieces have none."""
    names = {"<unk>", "<pad>", ">>fra<<"}
    for file, lines, size in (("source.spm", EN, 260), ("target.spm", DE, 220)):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, vocab_size=size, minloglevel=2
        )
        (folder / file).write_bytes(out.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        names |= {model.IdToPiece(i) for i in range(model.vocab_size())} - {"<s>"}
    names = ["</s>", *rng.permutation(sorted(names - {"</s>"}))]
    long = [name for name in names if len(name) > 3 and name[0] not in "<>"]
    names = [str(name) for name in names if name not in long[:lacking]]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    settings = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"separate_vocabs": False}))
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("sides")
    write(found, np.random.default_rng(5))
    return found


@pytest.fixture(scope="module")
def config(folder):
    names = json.loads((folder / "vocab.json").read_text())
    return {
        **{"vocab_size": len(names), "pad_token_id": names["<pad>"], "eos_token_id": 0},
        "decoder_start_token_id": names["<pad>"],
    }


@pytest.fixture(scope="module")
def theirs(folder):
    files = {name: str(folder / f"{name}.spm") for name in ("source", "target")}
    with pytest.warns(UserWarning, match="sacremoses"):
        return transformers.MarianTokenizer(
            source_spm=files["source"], target_spm=files["target"], vocab=str(folder / "vocab.json")
        )


def texts(rng):
    letters = [chr(i) for i in [*range(32, 127), 0xE4, 0xF6, 0x3042, 0x1F642]]
    drawn = ["".join(rng.choice(letters, 12)) for _ in range(40)]
    picked = [str(rng.choice(side)) for side in (EN, DE) for _ in range(20)]
    return ["", " ", "  two  spaces ", "</s> <pad> <unk>", *drawn, *picked]


def test_both_sides_encode_as_in_transformers(folder, config, theirs, rng):
    ours, ids = read_tokenizer(folder, config), json.loads((folder / "vocab.json").read_text())
    assert ours.targets is not ours
    assert (ours.eos_id, ours.pad_id, ours.bos_id) == (0, config["pad_token_id"], config["pad_token_id"])
    sides = [(ours, theirs.spm_source, "text"), (ours.targets, theirs.spm_target, "text_target")]
    same, drawn = 0, texts(rng)
    for text, (side, model, argument) in itertools.product(drawn, sides):
        found = side.encode(text)
        assert found == expected(model, ids, text), text
        assert not {ours.eos_id, ours.pad_id} & {*found}, text
        # There the names of special tokens in a text are these tokens, and neighbouring letters that a model
        # does not know are one token.
        same += found == theirs(**{argument: text}, add_special_tokens=False).input_ids
    assert same > 0.7 * 2 * len(drawn)
    for text in EN[:40]:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    for text in DE[:40]:
        assert ours.targets.encode(text) == theirs(text_target=text, add_special_tokens=False).input_ids


def expected(model, ids, text):
    """The pieces of the library; of a piece that the model does not know each letter by itself."""
    found = []
    for piece in model.encode(text, out_type=str):
        known = model.PieceToId(piece) != model.unk_id()
        found += [ids.get(name, ids["<unk>"]) for name in ([piece] if known else piece)]
    unknown = ids["<unk>"]
    return [i for i, before in zip(found, [None, *found], strict=False) if i != unknown or before != unknown]


def test_targets_decode_as_in_transformers(folder, config, theirs, rng):
    ours = read_tokenizer(folder, config).targets
    unknown = theirs.convert_tokens_to_ids("<unk>")
    for _ in range(40):
        ids = [int(i) for i in rng.integers(1, config["vocab_size"], 12) if i != unknown]
        assert ours.decode(ids).strip() == theirs.decode(ids, skip_special_tokens=True).strip()
    assert "\uffff" not in "".join(ours.decode([i]) for i in range(config["vocab_size"]))


def test_the_language_of_the_target_is_one_token(folder, config, theirs):
    ours = read_tokenizer(folder, config)
    found = ours.encode(">>fra<< def loads(s):")
    assert found == theirs(">>fra<< def loads(s):", add_special_tokens=False).input_ids
    assert found[0] == theirs.convert_tokens_to_ids(">>fra<<")


def test_pieces_without_an_id_are_left_out(tmp_path, rng):
    names = write(tmp_path, rng, lacking=20)
    ours = read_tokenizer(tmp_path, {"vocab_size": len(names), "eos_token_id": 0})
    for text in texts(rng):
        assert max(ours.encode(text), default=0) < len(names)
        if set(text) <= set(textwrap.dedent("".join(EN))):
            assert ours.decode(ours.encode(text)) == " ".join(text.split(" ")).strip() or "  " in text


def test_saved_and_loaded(folder, config, tmp_path):
    ours = read_tokenizer(folder, config)
    ours.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.identity == ours.identity
    assert again.identity != Tokenizer(ours.backend, ours.special).identity
    for text in (EN[40], DE[40]):
        assert again.encode(text) == ours.encode(text) != ours.targets.encode(text)
        assert again.targets.encode(text) == ours.targets.encode(text)


def test_rows_of_pairs_have_the_tokens_of_each_side(folder, config, tmp_path):
    ours, file = read_tokenizer(folder, config), tmp_path / "pairs.tsv"
    file.write_text(f"source\ttarget\n{EN[40].strip()}\t{DE[40].strip()}\n")
    keys = {"source": f"tsv:{file}", "validation_source": f"tsv:{file}", "cache_dir": str(tmp_path / "cache")}
    data = PairData(PairDataConfig(**keys), ours)
    row = data.rows("train").batch(np.array([0]))
    sides = (row["source"], ours.encode(EN[40])), (row["targets"], ours.targets.encode(DE[40]))
    for tokens, ids in sides:
        assert tokens[0, : len(ids) + 1].tolist() == [*ids, ours.eos_id]
    assert [*data.examples("validation")] == [(EN[40].strip(), [DE[40].strip()])]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: (path / "target.spm").unlink(), "there is source.spm, and no target.spm"),
        (lambda path: (path / "vocab.json").unlink(), "no vocab.json with the ids"),
        (lambda path: (path / "vocab.json").write_text('{"<unk>": 0, "a": 2}'), "ids from 0 to 1, each once"),
        (lambda path: (path / "vocab.json").write_text('{"a": 0}'), "there is no <unk>"),
        (lambda path: (path / "target_vocab.json").write_text("{}"), "only one vocabulary for both sides"),
        (lambda path: (path / "source.spm").write_bytes(b"\xff"), "not a SentencePiece model"),
    ],
)
def test_what_is_refused(tmp_path, rng, spoil, said):
    write(tmp_path, rng)
    spoil(tmp_path)
    with pytest.raises(UserError, match=said):
        read_tokenizer(tmp_path, {})


@pytest.mark.thorough
def test_a_model_with_both_translates_is_tuned_and_goes_back(tmp_path, capfd):
    there, run, tuned, out = (tmp_path / name for name in ("there", "run", "tuned", "out"))
    there.mkdir()
    names = write(there, np.random.default_rng(5))
    pad = names.index("<pad>")
    sizes = {
        **{"vocab_size": len(names), "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20},
        **{"decoder_ffn_dim": 20, "max_position_embeddings": 48, "activation_function": "swish"},
        **{
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "eos_token_id": 0,
            "forced_eos_token_id": None,
        },
    }
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes))
    parity.save(model, there, 0, std=0.3)
    (there / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = transformers.AutoTokenizer.from_pretrained(there)

    assert launch.main(["--mode=import", f"--from={there}", f"--workdir={run}"]) == 0
    assert (run / "target_tokenizer.json").is_file()
    capfd.readouterr()
    given = ["--mode=predict", f"--prompt={EN[3]}", "--config.generate.max_new_tokens=12"]
    assert launch.main([f"--workdir={run}", *given, "--config.generate.beam_size=1"]) == 0
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": 12, "use_cache": False}
    found = model.generate(**theirs([EN[3]], return_tensors="pt"), **options)
    assert capfd.readouterr().out.strip() == theirs.decode(found[0], skip_special_tokens=True).strip()

    data = tmp_path / "pairs.tsv"
    pairs = (f"{source.strip()}\t{target.strip()}\n" for source, target in zip(EN, DE, strict=True))
    data.write_text("source\ttarget\n" + "".join(pairs))
    training = [
        *(f"--config.initialize_from=hf:{there}", f"--config.data.source=tsv:{data}", f"--workdir={tuned}"),
        *("--config=configs/translation.py:tiny", "--config.data.source_field=source"),
        "--config.generate.max_new_tokens=8",
    ]
    assert launch.main(training) == 0, capfd.readouterr().err
    assert launch.main([*training, "--config.train.steps=3"]) == 0, capfd.readouterr().err  # resumed
    assert launch.main([f"--workdir={tuned}", "--mode=batch", "--step=1"]) == 0
    assert launch.main([f"--workdir={tuned}", "--mode=export", f"--to={out}"]) == 0
    again, first = (Tokenizer.load(each / "tokenizer.json") for each in (out, tuned))
    assert again.targets.encode(DE[40]) == first.targets.encode(DE[40]) != first.encode(DE[40])
    assert launch.main(["--mode=import", f"--from={out}", f"--workdir={tmp_path / 'again'}"]) == 0
