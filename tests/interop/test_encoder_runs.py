"""Encoders of transformers as a user meets them: their tokenizers, predictions, fine-tuning and export."""

import json

import numpy as np
import pytest
from tokenizers import processors

import launch
from tests.interop import parity
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.interop import wordpiece
from transformer.interop.hub_folder import HubFolder
from transformer.interop.vocabulary import byte_level_bpe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 2}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*wordpiece.SPECIAL, "the", "film", "was", "good", "bad", "number", ",", "."]
WORDS += [*LETTERS, *(f"##{letter}" for letter in LETTERS), "##ing", "日"]
LABELLED = (("good", "yes"), ("bad", "no"))
TEXTS = ["The FILM was [MASK], number zing.", "a [MASK] film was [MASK].", "Café 日本 [MASK]\tgood"]


def words(folder):
    """BERT's tokenizer as its paper's code had it: vocab.txt alone."""
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return {"vocab_size": len(WORDS), "max_position_embeddings": 40}


def mpnet_words(folder):
    """MPNet's tokenizer: BERT's vocabulary after the special tokens of RoBERTa."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return {"vocab_size": len(tokens), "max_position_embeddings": 40}


def byte_pairs(folder):
    """RoBERTa's tokenizer: vocab.json and merges.txt."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pairs = ["t h", "th e", "Ġ the", "Ġ f", "Ġf i", "Ġ g", "o o"]
    letters = [token for token in Tokenizer.train("bytes").backend.get_vocab() if len(token) == 1]
    tokens = [*special, *sorted(letters), *(pair.replace(" ", "") for pair in pairs), "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    return {"vocab_size": len(tokens), "max_position_embeddings": 60, "type_vocab_size": 1}


def random_model(make, keys):
    """A small model of transformers; DistilBERT's have another name for one of the sizes."""
    known, sizes = make.config_class(), SIZES | {"hidden_dim": SIZES["intermediate_size"]}
    return make(make.config_class(**{key: size for key, size in sizes.items() if hasattr(known, key)} | keys))


def masked(folder, make, tokenizer, **more):
    """A model of transformers for masked language modelling, in a folder with its own tokenizer."""
    model = random_model(make, tokenizer(folder) | more)
    parity.save(model, folder, 3)
    (folder / "tokenizer.json").unlink()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [("Bert", words), ("Roberta", byte_pairs), ("MPNet", mpnet_words), ("DistilBert", words)],
)
def test_masks_are_filled_with_the_same_tokens(name, tokenizer, tmp_path):
    theirs, tokens = masked(tmp_path, getattr(transformers, f"{name}ForMaskedLM"), tokenizer)
    hub = parity.Hub(str(tmp_path))
    predict, data = hub.experiment.predict, hub.experiment.data
    for text, found in zip(TEXTS, predict(hub.read(hub.abstract), TEXTS), strict=True):
        inputs = tokens(text.replace("[MASK]", tokens.mask_token), return_tensors="pt")
        for each in (text, text.replace("[MASK]", tokens.mask_token)):
            np.testing.assert_array_equal(hub.experiment.masked_tokens(each), inputs["input_ids"][0])
            assert not hub.experiment.problem(each)
        with torch.no_grad():
            logits_tv = theirs(**inputs).logits[0]
        places = (inputs["input_ids"][0] == tokens.mask_token_id).nonzero()[:, 0]
        assert len(found) == len(places)
        for line, place in zip(found, places, strict=True):
            p = logits_tv[place][torch.tensor(data.words.ordinary)].softmax(-1)
            top = p.topk(5)
            expected = [f"{p:.4f}" for p in top.values.tolist()]
            assert [each.rpartition(" ")[2] for each in line.split("\t")] == expected
            ids = [int(data.words.ordinary[i]) for i in top.indices.tolist()]
            assert [each.rpartition(" ")[0] for each in line.split("\t")] == [
                hub.experiment._shown(i) for i in ids
            ]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertModel"])
def test_bert_is_fine_tuned_and_goes_back(tmp_path, capfd, kind):
    """With LoRA, from a folder of transformers, with a head or without; the exported model gives the same
    probabilities there, of texts that its exported tokenizer reads."""
    folder, source = tmp_path / "bert", tmp_path / "a.tsv"
    folder.mkdir()
    masked(folder, getattr(transformers, kind), words)
    rows = [f"the {quality} film, number {a}\t{label}" for a in LETTERS for quality, label in LABELLED]
    source.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    keys = {"initialize_from": f"hf:{folder}", "data.source": f"tsv:{source}", "data.sequence_length": 40}
    keys |= {"model.pooling": "cls", "model.lora_rank": 2, "optimizer.train_only": "lora,head,pooler"}
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    run, out = tmp_path / "run", tmp_path / "out"
    assert launch.main(["--config=configs/finetune_classification.py:tiny", f"--workdir={run}", *given]) == 0
    said = capfd.readouterr().out
    assert "taken  encoder/trunk/blocks" in said
    assert ("taken  pooler/dense/kernel" in said) == (kind == "BertModel")
    assert launch.main([f"--workdir={run}", "--mode=export", f"--to={out}"]) == 0
    capfd.readouterr()
    text = "The good film, number q."
    assert launch.main([f"--workdir={run}", "--mode=predict", f"--prompt={text}"]) == 0
    ours = dict(each.split("=") for each in capfd.readouterr().out.strip().split("\t")[1:])
    tokens = transformers.AutoTokenizer.from_pretrained(out)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    with torch.no_grad():
        p = theirs(**tokens(text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
    assert {name: float(each) for name, each in ours.items()} == pytest.approx(
        {theirs.config.id2label[i]: each for i, each in enumerate(p)}, abs=2e-4
    )
    # What was exported is read again, with its labels.
    again = parity.Hub(str(out))
    assert again.labels == ["no", "yes"]
    (found,) = again.experiment.predict(again.read(again.abstract), [text])
    assert found[0].split("\t")[1:] == [f"{name}={each}" for name, each in ours.items()]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "tokenizer"), [("Roberta", byte_pairs), ("DistilBert", words)])
def test_answers_without_types_of_tokens(name, tokenizer, tmp_path, capfd):
    """A model of one type is imported, points where it does in transformers, is trained on and goes back."""
    make = getattr(transformers, f"{name}ForQuestionAnswering")
    folder, run, out = (tmp_path / each for each in ("folder", "run", "out"))
    folder.mkdir()
    theirs, _ = masked(folder, make, tokenizer, max_position_embeddings=300)
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={run}"]) == 0
    capfd.readouterr()
    prompt = "--prompt=film\tthe film was good"
    assert launch.main([f"--workdir={run}", "--mode=predict", prompt]) == 0
    answer = capfd.readouterr().out.rsplit("\t", 1)[0]
    experiment = parity.Hub(str(folder)).experiment
    tokens = experiment.data.tokenizer
    texts = [np.array(tokens.encode(text)) for text in ("film", "the film was good")]
    ids, _ = experiment.data.special_tokens.build_input(texts)
    with torch.no_grad():
        found = theirs(torch.tensor(ids[None]).long())
    first = len(texts[0]) + 2
    scores = [each[0, first:-1].numpy() for each in (found.start_logits, found.end_logits)]
    at = np.triu(scores[0][:, None] + scores[1], 0) + np.tril(np.full((len(texts[1]),) * 2, -np.inf), -1)
    start, end = np.unravel_index(at.argmax(), at.shape)
    assert answer == tokens.decode([int(i) for i in texts[1][start : end + 1]]).strip()
    keys = {"data.sequence_length": 36, "data.question_length": 12, "data.stride": 8}
    given = [f"--config.{key}={value}" for key, value in (keys | {"initialize_from": run}).items()]
    tuned = [f"--workdir={tmp_path / 'tuned'}", "--config=configs/finetune_question_answering.py:tiny"]
    assert launch.main([*tuned, *given]) == 0 and "taken  head/classes" in capfd.readouterr().out
    assert launch.main([f"--workdir={tmp_path / 'tuned'}", "--mode=export", f"--to={out}"]) == 0
    assert type(transformers.AutoModelForQuestionAnswering.from_pretrained(out)) is make


@pytest.mark.thorough
def test_an_exported_vision_transformer_reads_images_of_any_size_alike(tmp_path, capfd):
    """Also where the run has more positions than an image has patches."""
    from PIL import Image

    run, out, image = tmp_path / "run", tmp_path / "out", tmp_path / "a.png"
    keys = {"position": "learned", "pooling": "cls", "max_length": 40}
    given = [f"--config.model.{key}={value}" for key, value in keys.items()]
    assert launch.main(["--config=configs/vision.py:tiny", f"--workdir={run}", *given]) == 0
    assert launch.main([f"--workdir={run}", "--mode=export", f"--to={out}"]) == 0
    pixels = np.random.default_rng(0).integers(0, 256, (13, 13)).astype(np.uint8)
    Image.fromarray(pixels).save(image)
    capfd.readouterr()
    assert launch.main([f"--workdir={run}", "--mode=predict", f"--prompt={image}"]) == 0
    ours = dict(each.split("=") for each in capfd.readouterr().out.strip().split("\t")[1:])
    theirs = transformers.ViTForImageClassification.from_pretrained(out).eval()
    settings = json.loads((out / "preprocessor_config.json").read_text())
    size = tuple(settings["size"].values())
    x_hw = np.asarray(Image.open(image).resize(size, settings["resample"]), np.float32)
    x_hw = (x_hw * settings["rescale_factor"] - settings["image_mean"][0]) / settings["image_std"][0]
    with torch.no_grad():
        p_c = theirs(torch.tensor(x_hw)[None, None]).logits.softmax(-1)[0].tolist()
    names = theirs.config.id2label
    assert {name: float(each) for name, each in ours.items()} == pytest.approx(
        {names[i]: each for i, each in enumerate(p_c)}, abs=2e-4
    )


@pytest.mark.thorough
def test_images_are_classified_alike_and_fine_tuned(tmp_path, capfd):
    from PIL import Image

    config = transformers.ViTConfig(
        **SIZES, image_size=8, patch_size=4, id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1}
    )
    rng, folder = np.random.default_rng(0), tmp_path / "vit"
    theirs = transformers.ViTForImageClassification(config)
    parity.save(theirs, folder, 1)
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    run, image = tmp_path / "run", tmp_path / "images" / "dog" / "11.png"
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={run}"]) == 0
    capfd.readouterr()
    assert launch.main([f"--workdir={run}", "--mode=predict", f"--prompt={image}"]) == 0
    ours = dict(each.split("=") for each in capfd.readouterr().out.strip().split("\t")[1:])
    with torch.no_grad():
        p = theirs(torch.tensor(pixels).permute(2, 0, 1)[None] / 127.5 - 1).logits.softmax(-1)[0].tolist()
    assert {name: float(each) for name, each in ours.items()} == pytest.approx(
        dict(zip(("cat", "dog"), p, strict=True)), abs=2e-4
    )
    keys = {"data.source": f"folder:{tmp_path / 'images'}", "data.channels": 3, "model.dtype": "bfloat16"}
    given = [f"--config.{key}={value}" for key, value in keys.items()] + [
        f"--config.initialize_from=hf:{folder}"
    ]
    tuned = ["--config=configs/vision.py:tiny", f"--workdir={tmp_path / 'tuned'}", *given]
    assert launch.main(tuned) == 0
    assert "taken  head/classes" in capfd.readouterr().out  # the labels are the same
    assert launch.main([f"--workdir={tmp_path / 'tuned'}", "--mode=export", f"--to={tmp_path / 'out'}"]) == 0
    pixels = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert pixels["image_mean"] == [0.5] * 3 and pixels["size"] == {"height": 8, "width": 8}
    back = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out")
    assert back.config.id2label == {0: "cat", 1: "dog"}


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "ModernBertForSequenceClassification"])
def test_what_is_no_choice_between_classes_is_refused(tmp_path, kind):
    """One class is a regression there, also where nothing else says so."""
    values = {"model_type": kind.partition("For")[0].lower(), "architectures": [kind]}
    two = {"0": "bad", "1": "good"}

    def labels(**more):
        (tmp_path / "config.json").write_text(json.dumps(values | more))
        return HubFolder(tmp_path).labels

    assert labels(id2label=two) == labels(id2label=two, problem_type=None) == ["bad", "good"]
    assert labels(problem_type="single_label_classification") == ["LABEL_0", "LABEL_1"]
    assert labels(num_labels=3) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert labels(num_labels=2, id2label=two) == ["bad", "good"]
    with pytest.raises(UserError, match=r"config.json: num_labels: 'x'; expected a whole number"):
        labels(num_labels="x")
    for problem in ("multi_label_classification", "regression"):
        with pytest.raises(UserError, match=f"config.json: problem_type: '{problem}'; only 'single_label"):
            labels(id2label=two, problem_type=problem)
    with pytest.raises(UserError, match=r"id2label: one class, which stands for regression there$"):
        labels(id2label={"0": "LABEL_0"})


def test_a_vocabulary_of_word_pieces(tmp_path):
    words(tmp_path)
    settings = {"do_lower_case": False, "strip_accents": False}
    for given, text in (({}, "the film ##ing"), (settings, "[UNK] film ##ing")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(given))
        ours = wordpiece.word_piece(tmp_path / "vocab.txt")
        assert ours.encode("The film" + "ing", add_special_tokens=False).tokens == text.split()
    pair = ours.encode("film", "good film")
    assert pair.tokens == ["[CLS]", "film", "[SEP]", "good", "film", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1, 1]
    for wrong, message in (
        ("the\nthe\n[UNK]", "no token twice"),
        ("the\nfilm", "among them"),
        (b"\xff\xfe", "cannot be read"),
    ):
        path = tmp_path / "vocab.txt"
        path.write_bytes(wrong if isinstance(wrong, bytes) else wrong.encode())
        with pytest.raises(UserError, match=message):
            wordpiece.word_piece(path)


@pytest.mark.parametrize("kind", ["bytes", "words", "started"])
def test_a_tokenizer_of_ours_reads_there_as_here(kind, tmp_path):
    """Special tokens that only the model had become tokens of the tokenizer, around each text, in place of
    others, such as Llama's before a text."""
    tokenizer = Tokenizer.train("bytes" if kind == "bytes" else "words", ["the film was good"] * 3, 60)
    if kind == "started":
        start = [(tokenizer.name(tokenizer.bos_id), tokenizer.bos_id)]
        template = processors.TemplateProcessing(single=[start[0][0], "$A"], special_tokens=start)
        tokenizer.backend.post_processor = template
    special = SpecialTokens.of(tokenizer)
    ids = wordpiece.write_encoder_tokenizer(tmp_path, tokenizer, special, 32, types=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["the film", "was bad"]
    ours, types = special.build_input([np.array(tokenizer.encode(text)) for text in texts])
    found = theirs(*texts)
    assert found["input_ids"] == ours.tolist() and found["token_type_ids"] == types.tolist()
    assert theirs.mask_token_id == special.mask and theirs.model_max_length == 32
    assert ids["pad_token_id"] == theirs.pad_token_id == tokenizer.pad_id
    assert SpecialTokens.of(Tokenizer.load(tmp_path / "tokenizer.json")) == special


def test_an_added_mask_takes_the_space_before_it_where_words_do(tmp_path):
    for kind, takes in (("bpe", True), ("words", False), ("bytes", False)):
        tokenizer = Tokenizer.train(kind, ["a film and a cat"] * 9, 270)
        wordpiece.write_encoder_tokenizer(tmp_path, tokenizer, SpecialTokens.of(tokenizer), 32, types=True)
        written = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
        assert {each["content"]: each["lstrip"] for each in written}["[MASK]"] is takes
        assert not any(each["lstrip"] for each in written if each["content"] != "[MASK]")


def test_special_tokens_of_roberta_are_found(tmp_path):
    byte_pairs(tmp_path)
    backend = byte_level_bpe(tmp_path / "vocab.json", tmp_path / "merges.txt")
    found = SpecialTokens.of(Tokenizer(backend))
    assert (found.cls, found.sep) == (0, 2) and found.vocab_size == found.mask + 1
