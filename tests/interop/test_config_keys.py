"""Keys of config.json: which are read over, which are refused, and that transformers agrees."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest

from experiments import find_experiment
from transformer.config import from_values
from transformer.errors import UserError
from transformer.interop import FAMILIES
from transformer.interop.harmless import FORMS, NAMES, ON, is_harmless
from transformer.interop.hub_folder import HubFolder

pytestmark = pytest.mark.usefixtures("in_root")

PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text())
"""Model -> its config.json, written down from knowledge (labels and tasks abridged), and the keys of it that
mean nothing here."""

GPT2 = PUBLISHED["openai-community/gpt2"]["config"]

FOLDERS = {"gemma3_text": "gemma3", "xlm-roberta": "xlm_roberta"}
"""The names of families whose folder in transformers has another."""


def opened(folder, config, ignore=()):
    (folder / "config.json").write_text(json.dumps(config))
    return HubFolder(folder, ignore)


def model_of(hub):
    kind = find_experiment(hub.family.experiment)
    return hub.values(kind.Config.__dataclass_fields__["model"].type)["model"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_read(tmp_path, name):
    """With the same result as without the keys that are said to mean nothing."""
    config, ignored = PUBLISHED[name]["config"], PUBLISHED[name]["ignored"]
    hub = opened(tmp_path, config)
    assert sorted(hub.ignored) == sorted(ignored)
    said = [line for line in hub.remarks if " ignored: " in line]
    assert [*map(sorted, (line.rpartition(": ")[2].split(", ") for line in said))] == [sorted(ignored)][
        : len(said)
    ]
    assert bool(said) == bool(ignored)
    without = {key: value for key, value in config.items() if key not in ignored}
    assert model_of(hub) == model_of(opened(tmp_path, without))


def test_the_table_has_every_family():
    assert {each["config"]["model_type"] for each in PUBLISHED.values()} == {*FAMILIES} and len(
        PUBLISHED
    ) > 40


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_mrope": True}, "use_mrope: True has no meaning"),
        ({"rope_interleaved": True, "alibi": 1}, "rope_interleaved: True, alibi: 1 have no meaning here for"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads: {'0': [1]} has"),
        ({"n_special": 4}, "n_special: 4 has"),
        ({"is_causal": False}, "is_causal: False has"),
        ({"forced_bos_token_id": 0}, "forced_bos_token_id: 0 has"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: {'bits': 4} has"),
        ({"adapters": {"adapters": {"mine": {}}, "fusions": [1]}}, "adapters: {"),
        ({"attention_chunk_size": 8}, "attention_chunk_size: 8 has"),
        (
            {"language_model_config": "x", "bos_token_id_of": 1},
            "language_model_config: 'x', bos_token_id_of: 1",
        ),
        ({"no\x1b[2Jrope": True}, r"'no\x1b[2Jrope': True has"),
    ],
)
def test_keys_that_can_change_the_function_are_refused(tmp_path, changes, said):
    with pytest.raises(UserError) as caught:
        model_of(opened(tmp_path, GPT2 | changes))
    assert said in str(caught.value) and "--ignore=" in str(caught.value)
    assert model_of(opened(tmp_path, GPT2 | changes, [*changes])) == model_of(opened(tmp_path, GPT2))


@pytest.mark.parametrize(
    "harmless",
    [
        {"pruned_heads": {}},
        {"adapters": {"adapters": {}, "fusions": {"none": []}}},
        {"eos_token_ids": [0, 1]},
        {"unsloth_version": "2025.1"},
        {"classifier_dropout": 0.2, "seq_length": 8},
    ],
)
def test_what_is_off_or_of_another_program_is_harmless(harmless):
    assert all(is_harmless(*each) for each in harmless.items())


OTHERS: dict[str, object] = dict.fromkeys(("embedding_dropout", "attention_dropout", "dropout"), 0.5) | {
    "dtype": "bfloat16",
    "kernel": "reference",
    "scan_layers": True,
    "remat": "full",
    "lora_rank": 3,
    "lora_alpha": 5.0,
    "lora_layers": "all",
    "logits_dtype": "bfloat16",
    "vocab_multiple": 24,
}
"""A key of the computation -> another value."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_the_computation_alone_change_nothing_that_is_exported(tmp_path, name):
    """Each key of `own` in turn, and the multiple of the vocabulary; rates of dropout are written."""
    config, ignored = PUBLISHED[name]["config"], PUBLISHED[name]["ignored"]
    hub = opened(tmp_path, config, ignored)
    kind = find_experiment(hub.family.experiment).Config.__dataclass_fields__["model"].type
    model = from_values(kind, model_of(hub), "model")
    function = hub.family.config(model)
    for key in {*model.own, "vocab_multiple"} & vars(model).keys():
        written = hub.family.config(dataclasses.replace(model, **{key: OTHERS[key]}))
        differing = {each for each in {*written, *function} if written.get(each) != function.get(each)}
        assert not [each for each in differing if "drop" not in each], key


def test_labels_that_share_a_name_are_told_apart_by_their_numbers(tmp_path):
    names = {"0": "tench", "1": "crane", "2": "crane"}
    config = PUBLISHED["google/vit-base-patch16-224"]["config"]
    hub = opened(tmp_path, config | {"id2label": names})
    assert hub.labels == ["tench", "crane (1)", "crane (2)"]
    assert hub.remarks == ["config.json: classes of one name: 'crane (1)', 'crane (2)'"]
    with pytest.raises(UserError, match="expected different names"):
        _ = opened(tmp_path, config | {"id2label": names | {"3": "crane (1)"}}).labels


def reads(path):
    """The attributes of configs that a module of transformers uses, and those whose default is true."""
    names, on = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("config"):
            names.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            of, name = node.args[:2]
            if ast.unparse(of).endswith("config") and isinstance(name, ast.Constant):
                names.add(name.value)
                default = node.args[2:]
                on |= {name.value} if default and getattr(default[0], "value", None) is True else set()
    return names, on


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_computes_with_no_key_that_is_read_over(name):
    """Nor is one of its defaults unknown here, nor true where a missing key is taken for off."""
    transformers = pytest.importorskip("transformers")
    root = Path(transformers.__file__).parent
    own = root.joinpath("models", FOLDERS.get(name, name)).glob("modeling_*.py")
    shared = [root / f"{each}.py" for each in ("masking_utils", "modeling_rope_utils", "cache_utils")]
    found = [reads(path) for path in (*own, *shared)]
    names, on = (set().union(*each) for each in zip(*found, strict=True))
    for family in FAMILIES[name]:
        known = {*family.known, *family.assumed}
        kernels = {"_attn_implementation"}  # which kernel
        dropouts = {each for each in names if each.endswith("dropout")}
        read_over = {each for each in names if each in NAMES or FORMS.fullmatch(each)}
        assert read_over - known - kernels - dropouts == set()
        assert on - known - ON - {"token_classification_bias"} == set()
        defaults = transformers.AutoConfig.for_model(name).to_dict()
        assert family.foreign(defaults) == []
