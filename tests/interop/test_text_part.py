"""The text models inside models of several media."""

import json

import numpy as np
import pytest

import launch
from tests.interop import parity
from workdir import api

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 40, "vocab_size": 300, "head_dim": 8, "max_position_embeddings": 64},
}
IMAGES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
MODELS = {
    "Gemma3": {
        "text_config": SIZES | {"query_pre_attn_scalar": 8, "sliding_window": 16},
        "vision_config": IMAGES | {"image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
    },
    "Llava": {
        "text_config": SIZES | {"model_type": "llama", "tie_word_embeddings": False},
        "vision_config": IMAGES
        | {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, "projection_dim": 8},
    },
}


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_texts_are_those_of_the_whole(tmp_path, capfd, name, newer):
    """By the names of tensors of older and newer versions of transformers; the rest is left out, and said to
    be."""
    from safetensors.numpy import load_file, save_file

    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    theirs = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    parity.save(theirs, folder := tmp_path / "theirs", 1)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    old = {key for key in tensors if key.startswith("language_model.")}
    assert old
    if newer:
        names = {key: f"model.{key.replace('.model.', '.')}" for key in old if ".lm_head" not in key}
        names |= {key: key.removeprefix("language_model.") for key in old if ".lm_head" in key}
        save_file({names.get(key, f"model.{key}"): x for key, x in tensors.items()}, file)
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={tmp_path / 'run'}"]) == 0
    assert f"of '{name.lower()}' the text model alone, '" in "".join(capfd.readouterr())
    run, params = api.load(tmp_path / "run")
    tokens = np.arange(5, 45)[None] % 250
    ours = np.asarray(run.experiment.model.apply({"params": params}, tokens))[..., :300]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(tokens)).logits.numpy()
    assert parity.close(ours, expected)


def test_a_text_model_of_no_known_family_is_refused(tmp_path, capfd):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "seer", "text_config": {"model_type": "bard"}})
    )
    assert launch.main(["--mode=import", f"--from={tmp_path}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "model_type: 'seer'; expected one of" in capfd.readouterr().err
