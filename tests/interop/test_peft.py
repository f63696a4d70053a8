"""LoRA adapters of PEFT, in and out: it computes the same with what is written, and its own are read."""

import contextlib
import io
import json
import shutil

import jax
import numpy as np
import pytest

import launch
from commands.exporters import peft_adapter
from tests import runs
from tests.interop import parity
from transformer.errors import UserError
from transformer.interop.adapters.peft_config import PeftConfig
from transformer.interop.tensors import Output, open_tensors, read_header, write_file
from transformer.interop.transfer import outputs
from transformer.models.transforms.lora import merged
from workdir.opening import load
from workdir.peft_hub import open_hub

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SIZES = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 40, "max_position_embeddings": 64}
LLAMA = {"num_key_value_heads": 2, "bos_token_id": 256, "eos_token_id": 256}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 2, "vocab_size": 300, "n_positions": 80}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 300}
VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
VIT |= {"image_size": 8, "patch_size": 4, "num_labels": 3}
MARIAN = {"d_model": 32, "vocab_size": 300, "max_position_embeddings": 64, "pad_token_id": 0}
MARIAN |= {"eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
for _side in ("encoder", "decoder"):
    MARIAN |= {f"{_side}_layers": 2, f"{_side}_attention_heads": 4, f"{_side}_ffn_dim": 40}
NEXT = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "num_experts": 4}
NEXT |= {"linear_value_head_dim": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 16}
FEW = ["q_proj", "v_proj"]

MODELS = {
    "llama": ("LlamaForCausalLM", SIZES | LLAMA, {"target_modules": r".*\.1\..*_proj"}),
    "qwen2": ("Qwen2ForCausalLM", SIZES | LLAMA, {"target_modules": FEW, "layers_to_transform": 1}),
    "gemma3": ("Gemma3ForCausalLM", SIZES | LLAMA | {"head_dim": 8}, {"target_modules": ["o_proj"]}),
    "mixtral": ("MixtralForCausalLM", SIZES | LLAMA | {"num_local_experts": 4}, {"target_modules": FEW}),
    "phi3": ("Phi3ForCausalLM", SIZES | LLAMA | {"pad_token_id": 0}, {"target_modules": ["qkv_proj"]}),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        SIZES | LLAMA | NEXT | {"num_hidden_layers": 4, "shared_expert_intermediate_size": 12},
        {"target_modules": ["in_proj_qkvz", "in_proj_ba", "q_proj", "out_proj"]},
    ),
    "neox": ("GPTNeoXForCausalLM", SIZES | {"pad_token_id": 0}, {"target_modules": ["query_key_value"]}),
    "gpt2": ("GPT2LMHeadModel", GPT2, {"target_modules": "all-linear"}),
    "bert": ("BertForMaskedLM", SIZES, {"target_modules": ["key", "output.dense"], "use_rslora": True}),
    "classifier": (
        "BertForSequenceClassification",
        SIZES | {"num_labels": 3},
        {"target_modules": ["query"], "task_type": "SEQ_CLS", "modules_to_save": ["pooler.dense"]},
    ),
    "modernbert": ("ModernBertForMaskedLM", SIZES | ENDS, {"target_modules": ["Wqkv", "Wi", "mlp.Wo"]}),
    "vit": ("ViTForImageClassification", VIT, {"target_modules": ["q_proj", "fc1"]}),
    "t5": (
        "T5ForConditionalGeneration",
        T5,
        {"target_modules": ["q", "v"], "exclude_modules": ".*decoder.*"},
    ),
    "marian": ("MarianMTModel", MARIAN, {"target_modules": ["fc1"]}),
}
"""Class, config, and what has adapters."""


def made(kind, folder):
    """A model of transformers that is saved in `folder`, and a function that makes the same again."""
    name, values, _ = MODELS[kind]
    cls = getattr(transformers, name)
    kinds = {"gemma3": transformers.Gemma3TextConfig}
    config = kinds.get(kind, cls.config_class)(**values)
    parity.save(cls(config), folder, 3)
    if "bert" in name.lower():
        (folder / "tokenizer.json").unlink()
        words = [*["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], *(f"w{i}" for i in range(200))]
        (folder / "vocab.txt").write_text("\n".join(words))

    def again():
        with contextlib.redirect_stderr(io.StringIO()):
            return cls.from_pretrained(folder).eval()

    return again


def adapted(again, folder, base, seed=0, **keys):
    """The model with random adapters, which are saved in `folder`."""
    keys = {"r": 4, "lora_alpha": 6, "init_lora_weights": False} | keys
    model = peft.get_peft_model(again(), peft.LoraConfig(**keys)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                x.copy_(0.3 * torch.randn(x.shape, generator=generator))
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder)
    return model


def loaded(again, folder):
    """The model with the adapters of a folder."""
    return peft.PeftModel.from_pretrained(again(), folder).eval()


def state_of(model):
    return {name: x.numpy() for name, x in model.merge_and_unload().state_dict().items()}


def folder_bytes(folder):
    names = ("adapter_config.json", "adapter_model.safetensors")
    return [(folder / name).read_bytes() for name in names]


def launched(*flags):
    assert launch.main([*map(str, flags)]) == 0


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", MODELS)
def test_what_peft_writes_is_read_and_written_again(kind, tmp_path):
    """Merged weights are those of PEFT, also where adapters are kept; its tensors come back bit by bit, and
    what is written is read and written again byte by byte."""
    base, theirs, run = tmp_path / "base", tmp_path / "theirs", tmp_path / "run"
    again = made(kind, base)
    model = adapted(again, theirs, base, **MODELS[kind][2])
    expected = state_of(model)
    hub = open_hub(str(theirs), keep=False)
    tensors = {name: np.asarray(hub.folder.tensors[name].open(), np.float32) for name in hub.places}
    same = {name for name in tensors if name in expected}
    assert len(same) > 8 or kind == "vit"
    hub = open_hub(str(theirs))
    kept = merged(hub.read(hub.abstract), hub.model)
    written = {x.name: x.read() for x in outputs(hub.plain.places, kept, np.dtype(np.float32))}
    plain = {name: np.asarray(x.open(), np.float32) for name, x in open_tensors(base).items()}
    changed = [name for name in same if name in plain and not np.array_equal(plain[name], expected[name])]
    assert changed or kind == "vit"
    for name in same:
        np.testing.assert_allclose(tensors[name], expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(written[name], expected[name], rtol=1e-6, atol=1e-6, err_msg=name)

    launched("--mode=import", f"--from={theirs}", f"--workdir={run}", "--adapter=keep")
    export = ("--mode=export", "--format=peft", f"--base={base}")
    launched(*export, f"--workdir={run}", f"--to={tmp_path / 'ours'}")
    stored, back = (open_adapter(tmp_path / name) for name in ("theirs", "ours"))
    heads = {name for name in back if name.startswith("base_model.model.classifier.")}
    assert back.keys() - heads == stored.keys() - heads
    for name in stored:
        np.testing.assert_array_equal(back[name], stored[name], name)
    for name, x in state_of(loaded(again, tmp_path / "ours")).items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)

    launched("--mode=import", f"--from={tmp_path / 'ours'}", f"--workdir={run}-2", "--adapter=keep")
    launched(*export, f"--workdir={run}-2", f"--to={tmp_path / 'second'}")
    assert folder_bytes(tmp_path / "second") == folder_bytes(tmp_path / "ours")


def write(path, arrays):
    write_file(path, [Output(name, x.dtype, x.shape, lambda x=x: x) for name, x in arrays.items()])


def open_adapter(folder):
    return {name: np.array(x.open()) for name, x in read_header(folder / "adapter_model.safetensors").items()}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "base"
    return folder, made("llama", folder)


@pytest.fixture(scope="module")
def adapter(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "theirs"
    return folder, adapted(llama[1], folder, llama[0], target_modules=FEW, task_type="CAUSAL_LM")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


LORA = ("model.lora_rank=3", "optimizer.train_only=lora", "optimizer.name=adamw", "train.steps=2")
LORA += ("optimizer.learning_rate=0.1", "optimizer.warmup_steps=0")


def trained(corpus, run, origin, *keys):
    flags = (f"--config.{key}" for key in (f"initialize_from={origin}", *LORA, *keys))
    assert launch.main(runs.tiny(corpus, run, *flags)) == 0
    return run


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("keys", [(), ("model.lora_layers=.*", "model.scan_layers=true")])
def test_peft_computes_with_what_was_trained_here(corpus, tmp_path, rng, kind, keys):
    """Of GPT-2 queries and values are one layer there, whose adapter has the ranks of both."""
    base, run, out = (tmp_path / name for name in ("base", "run", "out"))
    again = made(kind, base)
    trained(corpus, run, f"hf:{base}", *keys)
    launched("--mode=export", "--format=peft", f"--workdir={run}", f"--to={out}")
    opened, params = load(run)
    tokens_bt = rng.integers(0, 256, (2, 16), np.int32)
    ours = np.asarray(jax.jit(opened.experiment.model.apply)({"params": params}, tokens_bt))[..., :300]
    found, plain = (parity.their_logits(x, tokens_bt) for x in (loaded(again, out), again()))
    assert parity.close(ours, found) and np.abs(found - plain).max() > 1e-2
    if kind == "gpt2":
        config = json.loads((out / "adapter_config.json").read_text())
        assert (config["fan_in_fan_out"] and 9 in {config["r"], *config["rank_pattern"].values()}) or not keys
    launched("--mode=import", f"--from={out}", f"--workdir={run}-2", "--adapter=keep")
    export = ("--mode=export", "--format=peft", f"--workdir={run}-2", f"--base={base}")
    launched(*export, f"--to={out}-2")
    assert folder_bytes(tmp_path / "out-2") == folder_bytes(out)
    launched("--mode=import", f"--from={out}", f"--workdir={run}-3")
    opened, params = load(tmp_path / "run-3")
    assert "lora_down" not in str(jax.tree_util.tree_structure(params))
    ours = np.asarray(jax.jit(opened.experiment.model.apply)({"params": params}, tokens_bt))[..., :300]
    assert parity.close(ours, found)


@pytest.mark.thorough
def test_an_adapter_is_trained_on(corpus, adapter, llama, tmp_path, rng, capfd):
    folder, model = adapter
    run = tmp_path / "run"
    flags = [f"--config.initialize_from=hf:{folder}", "--config.train.steps=1"]
    assert launch.main(runs.tiny(corpus, run, *flags)) == 2
    said = capfd.readouterr().err
    assert "model.lora_rank=4 takes them where model.lora_layers says so (/(query|value)$ there), " in said
    assert "--mode=import merges them" in said and not run.exists()
    keys = ("model.lora_rank=4", "optimizer.learning_rate=0.0")
    trained(corpus, run, f"hf:{folder}", *keys)
    opened, params = load(run)
    assert opened.config.model.lora_alpha == 6
    tokens_bt = rng.integers(0, 256, (2, 16), np.int32)
    ours = np.asarray(jax.jit(opened.experiment.model.apply)({"params": params}, tokens_bt))[..., :300]
    assert parity.close(ours, parity.their_logits(model, tokens_bt))
    launched("--mode=export", "--format=peft", f"--workdir={run}", f"--to={tmp_path / 'out'}")
    stored, back = open_adapter(folder), open_adapter(tmp_path / "out")
    assert back.keys() == stored.keys()
    for name in stored:
        np.testing.assert_array_equal(back[name], stored[name], name)


@pytest.mark.thorough
def test_layers_without_an_adapter_stay_without_one(corpus, llama, tmp_path):
    """Ranks that a layer lacks are zeros, which no gradient changes."""
    folder, run = tmp_path / "theirs", tmp_path / "run"
    rank = {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "alpha_pattern": {"0.self_attn.q_proj": 3}}
    adapted(llama[1], folder, llama[0], target_modules=r".*(0.*q|1.*v)_proj", **rank)
    trained(corpus, run, f"hf:{folder}", "model.lora_rank=4")
    launched("--mode=export", "--format=peft", f"--workdir={run}", f"--to={tmp_path / 'out'}")
    stored, back = open_adapter(folder), open_adapter(tmp_path / "out")
    assert {name: x.shape for name, x in back.items()} == {name: x.shape for name, x in stored.items()}
    assert not any(np.array_equal(back[name], stored[name]) for name in stored)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["rank_pattern"] == {"model.layers.0.self_attn.q_proj": 2}
    assert config["alpha_pattern"] == {"model.layers.0.self_attn.q_proj": 3}


def refused(flags, capfd, run):
    capfd.readouterr()
    assert launch.main([*map(str, flags)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert not run.exists()
    return line


@pytest.fixture
def broken(adapter, tmp_path):
    shutil.copytree(adapter[0], tmp_path / "broken")
    return tmp_path / "broken"


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3'; expected one of 'LORA'"),
        ({"use_dora": True}, "use_dora: True; expected it off: only W + lora_alpha / r B A"),
        ({"bias": "all"}, "bias: 'all'; expected one of 'none'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa'; expected one of True"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: [1]; expected it off"),
        ({"new_in_2030": 2}, "new_in_2030: 2; expected it off"),
        ({"r": 0}, "r: 0; expected a whole number of at least 1"),
        ({"r": 5}, f"{Q}A.weight has the shape [4, 32]; adapter_config.json and the model make it [5, 32]"),
        ({"rank_pattern": {"q_proj": 0}}, "q_proj: 0; expected a whole number"),
        ({"rank_pattern": {"(": 4}}, "'(' is not a regular expression"),
        ({"rank_pattern": [1]}, "rank_pattern: [1]; expected an object"),
        ({"alpha_pattern": {"q_proj": "x"}}, "q_proj: 'x'; expected a number above 0"),
        ({"lora_alpha": -1}, "lora_alpha: -1; expected a number above 0"),
        ({"lora_alpha": 10**400}, "; expected a number above 0, at most 1e30"),
        ({"base_model_name_or_path": "~absent/x"}, "it is a PEFT adapter of the model '~absent/x'"),
        (
            {"target_modules": ["c_attn"]},
            "target_modules: ['c_attn'] names no linear layer of the model",
        ),
        ({"target_modules": "("}, "'(' is not a regular expression"),
        ({"target_modules": [3]}, "target_modules: [3]; expected names"),
        ({"target_modules": None}, "target_modules: missing key"),
        (
            {"target_modules": ["q_proj"]},
            "v_proj.lora_A.weight, which is not of a linear",
        ),
        (
            {"target_modules": ["q_proj", "v_proj", "up_proj"]},
            "it lacks base_model.model.model.layers.0.mlp",
        ),
        ({"layers_to_transform": ["a"]}, "layers_to_transform: ['a']; expected"),
        (
            {"base_model_name_or_path": "meta/tiny"},
            "it is a PEFT adapter of the model 'meta/tiny'",
        ),
    ],
)
def test_a_config_of_something_else_is_one_line(broken, tmp_path, capfd, change, said):
    path = broken / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    run = tmp_path / "run"
    line = refused(["--mode=import", f"--from={broken}", f"--workdir={run}"], capfd, run)
    assert said in line and str(broken) in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{Q}B.weight": None}, f"it lacks {Q}B.weight"),
        ({f"{Q}B.weight": (32, 3)}, f"{Q}B.weight has the shape [32, 3]; adapter_config.json and the model"),
        ({f"{Q}A.weight": np.nan}, f"{Q}A.weight has values that are not finite"),
        (
            {"base_model.model.lm_head.weight": (3, 3)},
            "it has base_model.model.lm_head.weight, which",
        ),
        ({f"{Q}magnitude_vector": (3,)}, f"it has {Q}magnitude_vector, which is not of"),
        (
            {"q_proj.lora_A.weight": (3,)},
            "q_proj.lora_A.weight: expected a name that starts with base_m",
        ),
    ],
)
def test_tensors_of_something_else_are_one_line(broken, tmp_path, capfd, change, said):
    arrays, path = open_adapter(broken), broken / "adapter_model.safetensors"
    for name, value in change.items():
        arrays[name] = np.full_like(arrays[name], value) if isinstance(value, float) else value
        arrays[name] = np.zeros(value, np.float32) if isinstance(value, tuple) else arrays[name]
    write(path, {name: x for name, x in arrays.items() if x is not None})
    run = tmp_path / "run"
    line = refused(["--mode=import", f"--from={broken}", f"--workdir={run}"], capfd, run)
    assert said in line and str(broken) in line


def test_the_model_is_found_where_it_may_be(llama, adapter, tmp_path, capfd):
    folder, run = tmp_path / "adapters" / "mine", tmp_path / "run"
    shutil.copytree(adapter[0], folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "meta/tiny"}))
    with pytest.raises(UserError, match=f"or put it at {folder.parent / 'tiny'}"):
        open_hub(str(folder))
    assert open_hub(str(folder), base=str(llama[0])).folder.path == llama[0]
    shutil.copytree(llama[0], folder.parent / "tiny")
    assert open_hub(str(folder)).folder.path == folder.parent / "tiny"
    flags = ["--mode=import", f"--from={folder}", f"--workdir={run}", f"--base={tmp_path}"]
    assert f"--base: {tmp_path}: there is no model in it" in refused(flags, capfd, run)
    flags = ["--mode=import", f"--from={llama[0]}", f"--workdir={run}", f"--base={llama[0]}"]
    assert "is not an adapter of PEFT" in refused(flags, capfd, run)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "adapter_model.bin is not read" in refused([*flags[:1], f"--from={folder}", flags[2]], capfd, run)


def test_an_adapter_of_another_model_is_not_written(corpus, adapter, llama, tmp_path, capfd):
    run, out = tmp_path / "run", tmp_path / "out"
    launched("--mode=import", f"--from={adapter[0]}", f"--workdir={run}", "--adapter=keep")
    flags = ["--mode=export", "--format=peft", f"--workdir={run}", f"--to={out}"]
    assert "--base: which folder has the model" in refused(flags, capfd, out)
    other = tmp_path / "other"
    shutil.copytree(llama[0], other)
    arrays = {name: np.array(x.open()) for name, x in open_tensors(other).items()}
    arrays["model.layers.1.mlp.up_proj.weight"][0] += 1
    write(other / "model.safetensors", arrays)
    line = refused([*flags, f"--base={other}"], capfd, out)
    assert "model.layers.1.mlp.up_proj.weight differs from the run's" in line
    launched("--mode=import", f"--from={llama[0]}", f"--workdir={tmp_path / 'plain'}")
    flags[2] = f"--workdir={tmp_path / 'plain'}"
    assert "the run has no adapters" in refused([*flags, f"--base={llama[0]}"], capfd, out)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("model-q4.gguf",), "it has a GGUF file, for llama.cpp"),
        (("params.json", "consolidated.00.pth"), "it is a model as Meta publishes it"),
        (("params.json", "consolidated.safetensors"), "it is a model as Mistral AI publishes it"),
        (("notes.txt",), "there is no config.json"),
    ],
)
def test_folders_of_other_programs_are_named(tmp_path, capfd, names, said):
    for name in names:
        (tmp_path / name).write_text("{}")
    run = tmp_path / "run"
    line = refused(["--mode=import", f"--from={tmp_path}", f"--workdir={run}"], capfd, run)
    assert said in line and f"{tmp_path}: there is no config.json" in line


CHOICES = [
    {"target_modules": ["q_proj", "mlp.up_proj"]},
    {"target_modules": ["proj"], "exclude_modules": ["k_proj"]},
    {"target_modules": r".*\.1\.(mlp|self_attn)\.[uq].*"},
    {"target_modules": r"model\.layers\.0"},
    {"target_modules": ["up_proj", "model.layers.0.self_attn.o_proj"], "layers_to_transform": [1]},
    {"target_modules": ["v_proj"], "layers_to_transform": 0, "layers_pattern": "layers"},
    {"target_modules": ["v_proj"], "layers_to_transform": [0], "layers_pattern": ["blocks"]},
    {"target_modules": ["v_proj", "q_proj"], "exclude_modules": r".*\.0\..*q_proj"},
    {"target_modules": ["v_proj", "down_proj"], "modules_to_save": ["self_attn"]},
    {"target_modules": ["q_proj", "k_proj"], "rank_pattern": {"k_proj": 3, r".*\.1\..*": 2, "q_proj": 5}},
    {"target_modules": ["q_proj"], "alpha_pattern": {"1.self_attn.q_proj": 2, "proj": 7}, "use_rslora": True},
]


@pytest.mark.parametrize("keys", CHOICES, ids=map(str, range(len(CHOICES))))
def test_names_patterns_and_scales_are_those_of_peft(keys, llama, tmp_path):
    config = {"r": 4, "lora_alpha": 6} | keys
    model = llama[1]()
    linear = [
        name for name, x in model.named_modules() if isinstance(x, torch.nn.Linear) and "lm" not in name
    ]
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | config))
    ours = PeftConfig(tmp_path / "adapter_config.json")
    try:
        layers = dict(peft.get_peft_model(model, peft.LoraConfig(**config)).base_model.model.named_modules())
    except ValueError:
        with pytest.raises(
            UserError, match="names no linear layer of the model; expected some of q_proj, k_pr"
        ):
            ours.targets(linear, [])
        return
    theirs = {name: x for name, x in layers.items() if isinstance(x, peft.tuners.lora.LoraLayer)}
    assert {*ours.targets(linear, [])} == theirs.keys()
    for name, layer in theirs.items():
        assert ours.rank_of(name) == layer.r["default"]
        assert float(ours.scale_of(name)) == pytest.approx(layer.scaling["default"], rel=1e-12)


@pytest.mark.thorough
def test_a_trained_head_is_stored_whole(tmp_path, rng, capfd):
    """A classifier on top of a masked language model: its head and pooler are modules_to_save."""
    base, run, out = (tmp_path / name for name in ("base", "run", "out"))
    made("bert", base)
    keys = ("model.pooling=cls", "optimizer.train_only=lora,head,pooler", "data.sequence_length=32")
    flags = [f"--config.{key}" for key in (f"initialize_from=hf:{base}", *LORA, *keys)]
    launched("--config=configs/finetune_classification.py:tiny", f"--workdir={run}", *flags)
    launched("--mode=export", "--format=peft", f"--workdir={run}", f"--to={out}")
    launched("--mode=export", f"--workdir={run}", f"--to={tmp_path / 'whole'}")
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["bert.pooler.dense", "classifier"]
    auto = transformers.AutoModelForSequenceClassification
    whole = auto.from_pretrained(tmp_path / "whole").eval()
    plain = auto.from_pretrained(base, num_labels=whole.config.num_labels)
    theirs = peft.PeftModel.from_pretrained(plain, out).eval()
    tokens_bt = rng.integers(5, 200, (2, 9))
    found, expected = (parity.their_logits(model, tokens_bt) for model in (theirs, whole))
    assert parity.close(found, expected)
    line = refused(["--mode=import", f"--from={out}", f"--workdir={run}-2"], capfd, tmp_path / "run-2")
    assert "which is in modules_to_save, but a BertForMaskedLM has no such module" in line


def test_an_adapter_of_a_model_without_its_head_is_read(llama, tmp_path):
    """Its names lack the prefix of the model's, as `AutoModel` has them."""
    auto = transformers.AutoModel
    with contextlib.redirect_stderr(io.StringIO()):
        model = adapted(lambda: auto.from_pretrained(llama[0]), tmp_path, llama[0], target_modules=["q_proj"])
    assert "base_model.model.layers.0.self_attn.q_proj.lora_A.weight" in open_adapter(tmp_path)
    tensors = open_hub(str(tmp_path), keep=False).folder.tensors
    for name, x in state_of(model).items():
        np.testing.assert_allclose(tensors[f"model.{name}"].open(), x, rtol=1e-6, atol=1e-6, err_msg=name)


def test_modules_are_named_by_their_last_part_only_where_it_names_no_others():
    linear = ["h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_proj"]
    assert peft_adapter._targets(linear[:1], linear) == ["c_attn"]
    assert peft_adapter._targets(linear[1:], linear) == ["c_proj"]
    assert peft_adapter._targets(linear[:2], linear) == linear[:2]
