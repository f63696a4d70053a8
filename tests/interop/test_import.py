"""--mode=import, --mode=export and initialize_from=hf:FOLDER as whole programs, and what they refuse."""

import json
import math
import re
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import launch
from commands import export
from tests import runs
from tests.interop import parity
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.interop.hub_folder import family_for
from transformer.interop.json_files import as_list
from transformer.interop.tensors import WHOLE, Output, open_tensors, write_tensors
from transformer.models.decoder import DecoderConfig
from workdir import opening
from workdir.hub import Hub
from workdir.opening import load

pytestmark = pytest.mark.usefixtures("in_root")

CONFIG = {
    **{"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 300},
    **{"eos_token_id": 256, "bos_token_id": 256},
}
"""The smallest GPT-2, with more tokens than its tokenizer has."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A folder as transformers writes it."""
    folder, rng = tmp_path_factory.mktemp("gpt2"), np.random.default_rng(0)
    shapes = {"wte.weight": (300, 16), "wpe.weight": (64, 16), "ln_f.weight": (16,), "ln_f.bias": (16,)}
    for n in range(2):
        own = {"attn.c_attn": (16, 48), "attn.c_proj": (16, 16), "mlp.c_fc": (16, 64), "mlp.c_proj": (64, 16)}
        for name, shape in own.items():
            shapes |= {f"h.{n}.{name}.weight": shape, f"h.{n}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{n}.{name}.weight": (16,), f"h.{n}.{name}.bias": (16,)}
    arrays = {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    save(folder, arrays)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    Tokenizer.train("bytes").save(folder / "tokenizer.json")
    return folder


def save(folder, arrays):
    outputs = [Output(name, x.dtype, x.shape, lambda x=x: x) for name, x in arrays.items()]
    write_tensors(folder, outputs, 1 << 40)


@pytest.fixture(scope="module")
def imported(gpt2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "run"
    assert launch.main(["--mode=import", f"--from={gpt2}", f"--workdir={folder}"]) == 0
    return folder


def test_both_commands_count_the_same_parameters(imported, gpt2, tmp_path, capfd):
    given = [f"--workdir={tmp_path / 'run'}", f"--to={tmp_path / 'out'}"]
    assert launch.main(["--mode=import", f"--from={gpt2}", given[0]]) == 0
    assert launch.main(["--mode=export", *given]) == 0
    size = sum(math.prod(tensor.shape) for tensor in open_tensors(gpt2).values())
    assert capfd.readouterr().out.count(f" {size:,} parameters ") == 2


@pytest.mark.thorough
def test_an_imported_model_predicts_and_is_evaluated(imported, corpus, capfd):
    assert launch.main([f"--workdir={imported}", "--mode=predict", "--prompt=né", "--max_new_tokens=4"]) == 0
    assert capfd.readouterr().out.startswith("né")
    data = [f"--config.data.source={corpus}", "--config.data.sequence_length=32"]
    assert launch.main([f"--workdir={imported}", "--mode=evaluate", *data]) == 0
    assert "eval/bits_per_byte" in capfd.readouterr().out


def test_an_exported_model_has_the_same_tensors(imported, gpt2, tmp_path):
    given = [f"--workdir={imported}", "--mode=export", f"--to={tmp_path / 'out'}", "--shard_gb=1e-6"]
    assert launch.main(given) == 0
    before, after = open_tensors(gpt2), open_tensors(tmp_path / "out")
    assert len({tensor.path for tensor in after.values()}) > 1  # sharded
    assert {name.removeprefix("transformer.") for name in after} == before.keys()
    for name, tensor in after.items():
        np.testing.assert_array_equal(tensor.open(), before[name.removeprefix("transformer.")].open())
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert CONFIG.items() <= written.items()
    special = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert special["bos_token"] == "<|endoftext|>"


@pytest.mark.thorough
def test_training_begins_with_an_imported_model(gpt2, imported, corpus, tmp_path, capfd):
    """By the name of its folder, and with LoRA on a mesh; what is left as it was is as imported."""
    keys = {
        **{"initialize_from": f"hf:{gpt2}", "model.lora_rank": 2, "optimizer.train_only": "lora"},
        **{"parallel.mesh.data": 2, "parallel.mesh.fsdp": 2, "parallel.mesh.tensor": 2, "train.steps": 2},
        **{"optimizer.name": "adamw", "data.sequence_length": 32},
    }
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    run = runs.tiny(corpus, tmp_path / "tuned", *given)
    assert launch.main(run) == 0, capfd.readouterr().err
    assert f"parameters of hf:{gpt2}:" in capfd.readouterr().out
    tuned, params = load(tmp_path / "tuned")
    before = load(imported)[1]
    assert tuned.config.model.num_layers == 2 and tuned.config.model.position == "learned"
    np.testing.assert_array_equal(params["embedding"]["table"], before["embedding"]["table"])
    adapter = params["blocks"]["attention"]["query"]["lora_up"]["kernel"]
    assert np.abs(adapter).max() > 0
    assert launch.main([*run, "--config.train.steps=3"]) == 0  # resumed, without the folder of the model
    assert launch.main([f"--workdir={tmp_path / 'tuned'}", "--mode=export", f"--to={tmp_path / 'out'}"]) == 0
    merged = open_tensors(tmp_path / "out")["transformer.h.1.attn.c_attn.weight"].open()
    q, k, v = np.split(merged, 3, axis=1)
    was = open_tensors(gpt2)["h.1.attn.c_attn.weight"].open()
    kernel = load(tmp_path / "tuned")[1]["blocks"]["attention"]["query"]
    added = kernel["lora_down"]["kernel"][1] @ kernel["lora_up"]["kernel"][1].reshape(2, 16) * 8
    np.testing.assert_allclose(q, was[:, :16] + added, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(k, was[:, 16:32])
    assert np.abs(v - was[:, 32:]).max() > 0


@pytest.mark.parametrize("mode", ["import", "train"])
def test_a_key_with_which_it_is_another_function_is_refused(gpt2, corpus, tmp_path, capfd, mode):
    key, run = "--config.model.norm_epsilon=0.5", tmp_path / "run"
    given = ["--mode=import", f"--from={gpt2}", f"--workdir={run}"]
    start = f"--config.initialize_from=hf:{gpt2}"
    assert launch.main([*(given if mode == "import" else runs.tiny(corpus, run, start)), key]) == 2
    error = capfd.readouterr().err
    assert "model.norm_epsilon is 1e-05 there and 0.5 here, with which the parameters" in error
    assert error.count("\n") == 1 and not run.exists()


@pytest.mark.thorough
def test_preferences_are_relative_to_an_imported_model(gpt2, tmp_path, capfd):
    """The reference is read as the policy is: at a rate of 0 they are one, and no pair is preferred."""
    pairs = [{"prompt": f"what is {i}?", "chosen": f"{i}", "rejected": f"it is {i}"} for i in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    keys = {"initialize_from": f"hf:{gpt2}", "data.source": f"jsonl:{tmp_path}/a.jsonl", "train.steps": 1}
    keys |= {"data.sequence_length": 64, "optimizer.learning_rate": 0}
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    run = ["--config=configs/dpo.py:tiny", f"--workdir={tmp_path}/run", *given]
    assert launch.main(run) == 0, capfd.readouterr().err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [loss for line in map(json.loads, lines) if (loss := line.get("eval/loss"))]
    assert losses == pytest.approx([math.log(2)] * len(losses), rel=1e-5) and losses


@pytest.fixture
def broken(gpt2, tmp_path):
    return shutil.copytree(gpt2, tmp_path / "model")


def refused(folder, tmp_path, capfd, *more):
    """What is said of a folder that is not imported."""
    before = runs.listing(tmp_path)
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={tmp_path / 'run'}", *more]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and runs.listing(tmp_path) == before
    assert not [*tmp_path.glob("run*")]
    return err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt3"}, "model_type: 'gpt3'; expected one of gpt2, llama, "),
        ({"model_type": ["gpt2"]}, "model_type: \"['gpt2']\""),
        ({"n_layer": "two"}, "num_layers: 'two'"),
        ({"n_layer": 10**9}, "num_layers: 1000000000"),
        ({"n_layer": 3}, "it lacks transformer.h.2."),
        ({"n_layer": 1}, "it has transformer.h.1."),
        ({"n_embd": {}}, "n_inner: missing key, which does not follow from the others"),
        ({"n_head": 3}, "d_model: 16 is not divisible by num_heads 3"),
        ({"n_embd": 32}, "has the shape"),
        ({"vocab_size": 256}, "257 tokens in the tokenizer, vocab_size 256 in config.json"),
        (
            {"vocab_size": 1000},
            "transformer.wte.weight has the shape [300, 16]; config.json makes it [1000, 16]",
        ),
        ({"activation_function": "swish"}, "activation_function: 'swish'; expected one of 'gelu_new'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True; only False"),
        ({"layer_norm_epsilon": -1.0}, "norm_epsilon: -1.0; expected more than 0"),
        ({"auto_map": {"AutoModel": "run.py"}}, "auto_map: {'AutoModel': 'run.py'} has no meaning here"),
        ({"layer_norm_epsilon": float("nan")}, "NaN is not a number"),
        ([], "a JSON list; expected an object"),
        (None, "a JSON NoneType"),
    ],
)
def test_a_config_that_means_nothing_here_is_refused(broken, tmp_path, capfd, change, said):
    config = CONFIG | change if isinstance(change, dict) else change
    (broken / "config.json").write_text(json.dumps(config))
    assert said in refused(broken, tmp_path, capfd)


def test_an_import_says_once_which_keys_it_ignores(broken, tmp_path, capfd):
    config = CONFIG | {"n_special": 0, "output_past": True, "zap": 2, "zip": 3}
    (broken / "config.json").write_text(json.dumps(config))
    command = ["--mode=import", f"--from={broken}", f"--workdir={tmp_path / 'run'}"]
    assert launch.main(command) == 2
    assert "zap: 2, zip: 3 have no meaning here for 'gpt2'; if " in capfd.readouterr().err
    for keys, said in (
        (["--ignore=nothing"], "--ignore: 'nothing': there is no such key in"),
        (["--ignore=n_layer"], "--ignore: 'n_layer': 'gpt2' has this key; only others can be left out"),
        (["--ignore=zap"], "zip: 3 has no meaning"),
    ):
        assert launch.main([*command, *keys]) == 2
        assert said in capfd.readouterr().err and not (tmp_path / "run").exists()
    assert launch.main([*command, "--ignore=zap", "--ignore=zip"]) == 0
    assert capfd.readouterr().out.endswith("\nconfig.json: ignored: zap, zip, n_special, output_past\n")


@pytest.mark.thorough
def test_tensors_that_are_not_the_models_are_refused(broken, tmp_path, capfd):
    whole = {name: np.array(tensor.open()) for name, tensor in open_tensors(broken).items()}
    for change, said in (
        ({"wte.weight": None}, "it lacks transformer.wte.weight"),
        ({"h.0.attn.rotary": np.zeros(3, np.float32)}, "it has transformer.h.0.attn.rotary, which"),
        ({"h.0.attn.bias": np.zeros((1, 1, 64, 64), np.uint8)}, ""),  # the mask, which is known
        ({"ln_f.bias": np.full(16, np.nan, np.float32)}, "ln_f.bias has values that are not finite"),
    ):
        given = {name: x for name, x in (whole | change).items() if x is not None}
        save(broken, given)
        if said:
            assert said in refused(broken, tmp_path, capfd)
        else:
            assert launch.main(["--mode=import", f"--from={broken}", f"--workdir={tmp_path / 'fine'}"]) == 0
            capfd.readouterr()
    (broken / WHOLE).write_bytes((broken / WHOLE).read_bytes()[:-3])
    assert "data_offsets" in refused(broken, tmp_path, capfd)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tokenizer.json", "{", "not a tokenizer.json"),
        (
            "tokenizer.json",
            None,
            "there is no tokenizer.json, no vocab.txt, no tokenizer.model, and no vocab.json with",
        ),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: a JSON list"),
        ("config.json", None, "there is no config.json"),
    ],
)
def test_files_that_cannot_be_read_are_refused(broken, tmp_path, capfd, name, text, said):
    (broken / name).unlink(missing_ok=True)
    if text is not None:
        (broken / name).write_text(text)
    assert said in refused(broken, tmp_path, capfd)


def test_folders_that_are_there_are_not_written_over(gpt2, imported, tmp_path, capfd):
    assert launch.main(["--mode=import", f"--from={gpt2}", f"--workdir={imported}"]) == 2
    assert "is there already" in capfd.readouterr().err
    assert launch.main(["--mode=export", f"--workdir={imported}", f"--to={gpt2}"]) == 2
    assert "is there already" in capfd.readouterr().err
    assert launch.main(["--mode=import", "--from=nowhere", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "there is no such folder" in capfd.readouterr().err


def test_folders_of_the_user_beside_the_new_one_stay(gpt2, imported, tmp_path, capfd):
    for name in ("out", "run"):
        (tmp_path / f"{name}.part").mkdir()
        (tmp_path / f"{name}.part" / "mine").write_text(name)
    before = runs.listing(tmp_path)
    export = ["--mode=export", f"--workdir={imported}", f"--to={tmp_path / 'out'}"]
    wrong = [[*export, "--family=llama"]]
    wrong += [["--mode=import", f"--from={gpt2}", f"--workdir={tmp_path / 'run'}", "--config.model.nrm=rms"]]
    for given in wrong:
        assert launch.main(given) == 2
        assert runs.listing(tmp_path) == before and len([*tmp_path.iterdir()]) == 2
    assert launch.main(export) == launch.main(wrong[-1][:-1]) == 0
    assert {each.name for each in tmp_path.iterdir()} == {"out", "out.part", "run", "run.part"}
    assert before.items() <= runs.listing(tmp_path).items()


def test_of_two_exports_at_once_the_first_to_end_stays(imported, gpt2, tmp_path, capfd, monkeypatch):
    given = ["--mode=export", f"--workdir={imported}", f"--to={tmp_path / 'new' / 'out'}"]
    write = export._write

    def meanwhile(*arguments):
        monkeypatch.setattr(export, "_write", write)
        line = write(*arguments)
        assert launch.main(given) == 0
        return line

    monkeypatch.setattr(export, "_write", meanwhile)
    assert launch.main(given) == 2
    assert f"--to: {tmp_path / 'new' / 'out'} cannot be made (" in capfd.readouterr().err
    assert [each.name for each in tmp_path.rglob("*") if each.is_dir()] == ["new", "out"]
    written = {name.removeprefix("transformer.") for name in open_tensors(tmp_path / "new" / "out")}
    assert written == open_tensors(gpt2).keys()


@pytest.mark.parametrize("size", ["0", "-1", "inf", "nan", "1e300"])
def test_sizes_of_files_that_cannot_be(tmp_path, capfd, size):
    given = [f"--workdir={tmp_path / 'run'}", f"--to={tmp_path / 'out'}", f"--shard_gb={size}"]
    assert launch.main(["--mode=export", *given]) == 2
    said = f"error: --shard_gb: {float(size)}; expected the gigabytes of a file, above 0\n"
    assert capfd.readouterr().err == said and not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_made_is_one_line(gpt2, imported, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "new"
    assert launch.main(["--mode=export", f"--workdir={imported}", f"--to={place}"]) == 2
    assert capfd.readouterr().err == f"error: --to: {place} cannot be made (Not a directory)\n"
    assert launch.main(["--mode=import", f"--from={gpt2}", f"--workdir={place}"]) == 2
    assert capfd.readouterr().err == f"error: --workdir: {place} cannot be made (Not a directory)\n"


@pytest.mark.parametrize("experiment", ["language_modeling", "chat", "dpo", "text_to_text"])
def test_a_language_model_is_exported_whatever_it_was_trained_on(experiment):
    run = SimpleNamespace(experiment=experiment, model=DecoderConfig(feed_forward="swiglu"), data=None)
    family, config = family_for(run)
    assert (family.model_type, config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    with pytest.raises(UserError, match="it is a run of classification"):
        family_for(SimpleNamespace(**vars(run) | {"experiment": "classification"}), "llama")


@pytest.mark.thorough
def test_the_run_of_the_first_command_is_exported_with_its_logits(corpus, tmp_path, rng):
    """As the help of launch.py shows it for configs/lm.py."""
    transformers = pytest.importorskip("transformers")
    run, out = tmp_path / "run", tmp_path / "out"
    assert launch.main(runs.tiny(corpus, run)) == 0
    assert launch.main(["--mode=export", f"--workdir={run}", f"--to={out}"]) == 0
    opened, params = load(run)
    model, tokens_bt = opened.experiment.model, rng.integers(0, 256, (2, 16), np.int32)
    theirs = parity.their_logits(transformers.AutoModelForCausalLM.from_pretrained(out), tokens_bt)
    ours = np.asarray(jax.jit(model.apply)({"params": params}, tokens_bt))[..., : model.vocab_size]
    assert parity.close(ours, theirs)


@pytest.mark.thorough
def test_a_model_with_parts_that_no_family_has_is_not_exported(corpus, tmp_path, capfd):
    assert launch.main(runs.tiny(corpus, tmp_path / "run", "--config.model.position=alibi")) == 0
    capfd.readouterr()
    given = ["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={tmp_path / 'out'}", "--family=gpt2"]
    assert launch.main(given) == 2
    said = capfd.readouterr().err
    assert "--family: gpt2 cannot express" in said and "model.position: 'alibi', 'gpt2' has 'learned'" in said
    assert launch.main(given[:-1]) == 2
    said = capfd.readouterr().err
    assert re.search(r": of gpt2, llama, [a-z0-9_, ]* the closest is arcee: ", said)
    assert "model.position: 'alibi', 'arcee' has 'rope'" in said and "'llama'" not in said
    assert not (tmp_path / "out").exists()


def test_several_tokens_that_end_a_text(gpt2, tmp_path, capfd):
    there = tmp_path / "there"
    shutil.copytree(gpt2, there)
    (there / "generation_config.json").write_text('{"eos_token_id": [256, 104, 99999]}')
    names = Hub(str(there)).values["sample"]["end_tokens"]
    assert names == ["h"]
    run, out = tmp_path / "run", tmp_path / "out"
    assert launch.main(["--mode=import", f"--from={there}", f"--workdir={run}"]) == 0
    assert launch.main(["--mode=export", f"--workdir={run}", f"--to={out}"]) == 0
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == [256, 104]
    assert Hub(str(out)).values["sample"]["end_tokens"] == names
    capfd.readouterr()
    asked = [f"--workdir={run}", "--mode=predict", "--prompt=a", "--config.sample.end_tokens=['<|eot_id|>']"]
    assert launch.main(asked) == 2
    assert "sample.end_tokens: '<|eot_id|>'; the tokenizer has no such token" in capfd.readouterr().err


def test_a_warm_start_takes_what_ends_a_text_from_a_folder_and_from_its_import(gpt2, tmp_path):
    """One token is one value as well as a list of it; a key that is given wins."""
    there, run = tmp_path / "there", tmp_path / "run"
    shutil.copytree(gpt2, there)
    (there / "generation_config.json").write_text('{"eos_token_id": 104}')
    assert launch.main(["--mode=import", f"--from={there}", f"--workdir={run}"]) == 0
    for origin in (f"hf:{there}", str(run)):
        for config in ("configs/lm.py:tiny", "configs/finetune_chat.py:tiny"):
            values = opening.read_to_train(config, [("initialize_from", origin)])
            assert values["sample"]["end_tokens"] == ["h"]
        given = [("initialize_from", origin), ("sample.end_tokens", "['a']")]
        values = opening.read_to_train("configs/lm.py:tiny", given)
        assert opening.check_config(values, given).sample.end_tokens == ("a",)


def test_a_warm_start_takes_what_is_never_written_and_leaves_the_search(tmp_path):
    values = opening.read_config("configs/translation.py:tiny")
    values["generate"] |= {"suppress": ["<pad>"], "beam_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = opening.read_to_train("configs/translation.py:tiny", [("initialize_from", str(tmp_path))])
    assert (found["generate"]["suppress"], found["generate"]["beam_size"] == 7) == (["<pad>"], False)


@pytest.mark.parametrize(
    ("value", "wanted"), [(None, []), (0, [0]), ([], []), ([2, 3], [2, 3]), ("a", ["a"])]
)
def test_one_value_is_a_list_of_it(value, wanted):
    assert as_list(value) == wanted


def test_how_a_model_draws_tokens_is_that_of_its_folder(gpt2, tmp_path, capfd):
    there, path = tmp_path / "there", tmp_path / "there" / "generation_config.json"
    shutil.copytree(gpt2, there)
    drawn = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    path.write_text(json.dumps(drawn | {"repetition_penalty": 1.1, "suppress_tokens": [5], "min_length": 0}))
    said = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "min_p": 0.0}  # transformers' default of top_k
    assert Hub(str(there)).values["sample"] == said
    assert launch.main(["--mode=import", f"--from={there}", f"--workdir={tmp_path / 'run'}"]) == 0
    printed = capfd.readouterr()
    assert "generation_config.json: repetition_penalty=1.1, suppress_tokens=[5] will not be" in printed.err
    kept = json.loads((tmp_path / "run" / "config.json").read_text())["sample"]
    assert {key: kept[key] for key in said} == said
    out = tmp_path / "out"
    assert launch.main(["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={out}"]) == 0
    assert Hub(str(out)).values["sample"] == said and Hub(str(out)).folder.generation_file == path.name
    path.write_text(json.dumps(drawn | {"do_sample": False}))
    assert Hub(str(there)).values["sample"] == {}
    path.write_text(json.dumps(drawn | {"top_p": "all", "bad_words_ids": 7}))
    assert launch.main(["--mode=import", f"--from={there}", f"--workdir={tmp_path / 'bad'}"]) == 2
    assert "sample.top_p: 'all'" in capfd.readouterr().err and not (tmp_path / "bad").exists()


@pytest.mark.thorough
def test_transformers_continues_a_prompt_as_the_run_does(corpus, tmp_path, capfd):
    """As the page on interoperation shows it: a Llama with a tokenizer that was trained here."""
    pytest.importorskip("torch")
    auto = pytest.importorskip("transformers")
    keys = {
        **{"model.feed_forward": "swiglu", "model.num_kv_heads": 1, "model.tie_embeddings": "false"},
        **{
            "model.scan_layers": "true",
            "model.num_layers": 3,
            "data.tokenizer": "bpe",
            "data.vocab_size": 300,
        },
        **{"optimizer.name": "adamw", "train.steps": 3, "sample.temperature": 0.0},
    }
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    assert launch.main(runs.tiny(corpus, tmp_path / "run", *given)) == 0, capfd.readouterr().err
    out = tmp_path / "out"
    assert launch.main(["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={out}"]) == 0
    assert "parameters as llama" in capfd.readouterr().out
    tokenizer, model = auto.AutoTokenizer.from_pretrained(out), auto.AutoModelForCausalLM.from_pretrained(out)
    inputs = tokenizer("épsilon beta", return_tensors="pt")
    run, params = load(tmp_path / "run")
    ours = run.experiment.data.tokenizer
    assert inputs["input_ids"][0].tolist() == [ours.bos_id, *ours.encode("épsilon beta")]
    drawn = model.generate(**inputs, max_new_tokens=8)[0]  # greedily, as the run
    (answer,) = next(iter(run.experiment.predict(params, ["épsilon beta"])))
    new = tokenizer.decode(drawn[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert new == answer and len(new) > 2
