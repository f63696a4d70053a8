"""What is exported, as ONNX by PyTorch's exporter, run by onnxruntime."""

import numpy as np
import pytest

import launch
from tests.interop import parity
from tests.interop.test_gguf import SMALL, TEXT
from transformer.data.tokenization.tokenizers import Tokenizer
from workdir import api

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

BERT = {"hidden_act": "gelu", "pad_token_id": 0, "type_vocab_size": 2, "max_position_embeddings": 64}
MODELS = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": False}),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}),
    "Bert": ("BertConfig", "BertForMaskedLM", BERT),
}


class Logits(torch.nn.Module):
    """The logits of a model, of tokens that are all read."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits


@pytest.mark.parametrize("kind", MODELS)
def test_onnxruntime_computes_the_same_logits(kind, rng, tmp_path):
    """Of other tokens, and of more of them, than those that it was traced with."""
    config, model, keys = MODELS[kind]
    tokenizer = Tokenizer.train("bpe", [TEXT * 3] * 5, 280)
    lacks = ("num_key_value_heads", "rms_norm_eps", "rope_theta") if kind == "Bert" else ()
    sizes = {name: value for name, value in SMALL.items() if name not in lacks}
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes | keys))
    parity.save(made, tmp_path / "theirs", 1, tokenizer=tokenizer)
    run = f"--workdir={tmp_path / 'run'}"
    assert launch.main(["--mode=import", f"--from={tmp_path / 'theirs'}", run]) == 0
    assert launch.main(["--mode=export", run, f"--to={tmp_path / 'exported'}"]) == 0
    exported = getattr(transformers, model).from_pretrained(tmp_path / "exported").eval()
    file = str(tmp_path / "model.onnx")
    traced = torch.ones((2, 5), dtype=torch.long)
    shapes = {"input_ids": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    options = {"input_names": ["input_ids"], "dynamic_shapes": shapes, "dynamo": True, "verbose": False}
    torch.onnx.export(Logits(exported), (traced,), file, **options)
    tokens = rng.integers(4, 200, (3, 17))
    (theirs,) = onnxruntime.InferenceSession(file).run(None, {"input_ids": tokens})
    loaded, params = api.load(tmp_path / "run")
    if kind == "Bert":  # whose export is compared with what it is here by test_encoder_runs
        with torch.no_grad():
            ours = Logits(exported)(torch.from_numpy(tokens)).numpy()
    else:
        ours = loaded.experiment.model.apply({"params": params}, tokens.astype(np.int32))
    np.testing.assert_allclose(theirs, np.asarray(ours)[..., : theirs.shape[-1]], rtol=1e-4, atol=5e-5)
