"""Whole tasks of lm-evaluation-harness on local data: the numbers of a run are those of the backend `hf`."""

import json

import pytest

import launch
from tests.interop import parity
from workdir import load

lm_eval = pytest.importorskip("lm_eval")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

SIZES = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
MODELS = {
    "GPT2": {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 96},
    "Llama": {
        **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"intermediate_size": 40, "max_position_embeddings": 96},
    },
}
TASKS = {
    "local_choices": """output_type: multiple_choice
doc_to_text: "{{question}}\\nA:"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_mutual_info}]
""",
    "local_words": """output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: " {{choices[answer]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "local_answers": """output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["e"], max_gen_toks: 9, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "local_texts": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
}
WORDS = ("größer", "a cat", "fib(3)", "the end of it")


@pytest.fixture(scope="module", params=MODELS)
def models(request, tmp_path_factory):
    """A model of transformers, imported as a run, behind our adapter and behind theirs."""
    from lm_eval.models.huggingface import HFLM

    from transformer.evaluation.harness import HarnessModel

    folder = tmp_path_factory.mktemp(request.param)
    make = getattr(
        transformers, f"{request.param}{'LMHeadModel' if request.param == 'GPT2' else 'ForCausalLM'}"
    )
    model = make(make.config_class(**SIZES | MODELS[request.param])).eval()
    parity.save(model, folder / "theirs", 0)
    assert launch.main(["--mode=import", f"--from={folder / 'theirs'}", f"--workdir={folder / 'run'}"]) == 0
    run, params = load(folder / "run")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "theirs" / "tokenizer.json"),
        eos_token="<|endoftext|>",
        bos_token="<|endoftext|>",
    )
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, device="cpu", max_length=96)
    return HarnessModel(run.experiment, params, start=False), theirs


@pytest.mark.parametrize("shots", [0, 2])
def test_tasks_have_the_same_numbers(models, shots, tmp_path):
    """Metrics that count are equal, those of likelihoods to rounding; every written text is the same."""
    from lm_eval.tasks import TaskManager

    rows = [
        {"question": f"number {i}: {WORDS[i % 4]} of", "choices": [*WORDS[:3]], "answer": i % 3}
        for i in range(7)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, keys in TASKS.items():
        where = (
            f"dataset_kwargs: {{cache_dir: {tmp_path}/cache, data_files: {{test: {tmp_path}/data.jsonl}}}}"
        )
        head = f"task: {name}\ndataset_path: json\n{where}\ntest_split: test\n"
        (tmp_path / f"{name}.yaml").write_text(head + keys)
    names = [name for name in TASKS if not shots or name != "local_texts"]
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    options = {"tasks": names, "task_manager": manager, "num_fewshot": shots, "bootstrap_iters": 0}
    ours, theirs = (lm_eval.simple_evaluate(model=model, **options) for model in models)
    for name in names:
        found, expected = ours["results"][name], theirs["results"][name]
        measured = [key for key in expected if key.endswith(",none") and "stderr" not in key]
        assert len(measured) >= TASKS[name].count("{metric:")
        for key in measured:
            precision = 1e-4 if "perplexity" in key or "bits" in key else 0
            assert found[key] == pytest.approx(expected[key], rel=precision, abs=0), (name, key)
        for mine, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert mine["doc"] == other["doc"] and mine["arguments"] == other["arguments"]
            if name == "local_answers":
                assert mine["resps"] == other["resps"]
    texts = [sample["resps"][0][0] for sample in ours["samples"]["local_answers"]]
    assert any(texts) and len({*texts}) > 1
