"""lm-evaluation-harness on our models, against its own backend for those of transformers."""

import dataclasses
import json
from unittest import mock

import pytest

from tests.interop import parity
from transformer.errors import UserError
from workdir.hub import Hub

lm_eval = pytest.importorskip("lm_eval")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.usefixtures("in_root"), pytest.mark.thorough]

TEXTS = ["the number is", "größer als 🙂", "", "a b c d e f g h i j k l m n o p q r s t u " * 4, "trailing "]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same random GPT-2 behind our adapter and behind theirs."""
    from lm_eval.models.huggingface import HFLM

    from transformer.evaluation.harness import HarnessModel

    config = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=2, vocab_size=257, n_positions=80, bos_token_id=256, eos_token_id=256
    )
    folder = tmp_path_factory.mktemp("gpt2")
    model = transformers.GPT2LMHeadModel(config).eval()
    parity.save(model, folder, 0)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, device="cpu", max_length=80)
    hub = Hub(str(folder))
    params = hub.read(hub.abstract)
    return HarnessModel(hub.experiment, params, start=False), theirs, HarnessModel(hub.experiment, params)


def instances(kind, *requests):
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=each, idx=i) for i, each in enumerate(requests)]


def test_likelihoods_are_those_of_the_harness(models):
    ours, theirs, started = models
    pairs = [(text, f" {word}") for text in TEXTS for word in ("one", "zwölf and more")]
    given = instances("loglikelihood", *pairs)
    found, wanted = ours.loglikelihood(given), theirs.loglikelihood(given)
    for (log_p, greedy), (their_log_p, their_greedy) in zip(found, wanted, strict=True):
        assert log_p == pytest.approx(their_log_p, abs=1e-4) and greedy == their_greedy
    other = started.loglikelihood(given)
    assert all(abs(a[0] - b[0]) > 1e-3 for a, b in zip(other[:4], found[:4], strict=True))
    given = instances("loglikelihood_rolling", *[(text,) for text in TEXTS if text])
    rolled = ours.loglikelihood_rolling(given)
    assert rolled == pytest.approx(theirs.loglikelihood_rolling(given), abs=1e-3)


def test_generation_is_that_of_the_harness(models):
    ours, theirs, _ = models
    options = {"until": ["\n", "e"], "max_gen_toks": 12, "do_sample": False}
    given = instances("generate_until", *[(text, options) for text in ("ab", "the number is", "x y z")])
    assert ours.generate_until(given) == theirs.generate_until(given)
    options = {"max_new_tokens": 7, "do_sample": False, "temperature": 2.0, "num_beams": 1}  # still greedy
    given = instances("generate_until", *[(text, options) for text in ("ab", "the number is")])
    found = ours.generate_until(given)
    assert found == theirs.generate_until(given) and all(0 < len(text) <= 7 for text in found)


def test_of_a_long_prompt_the_end_is_read_that_leaves_room(models):
    ours, theirs, _ = models
    for limit in (1, 12, 60, 79):
        options = {"until": [], "max_gen_toks": limit}
        given = instances("generate_until", *[("abc de" * 3 * n, options) for n in (3, 4, 5, 20)])
        assert ours.generate_until(given) == theirs.generate_until(given)


CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def test_conversations_are_those_of_the_harness(models, monkeypatch):
    from transformer.evaluation.harness import HarnessModel

    _, theirs, started = models
    ours = HarnessModel(started._experiment, started._params)
    with pytest.raises(UserError, match="the tokenizer has no chat template"):
        ours.apply_chat_template([{"role": "user", "content": "hi"}])
    for each in (ours._tokenizer, theirs.tokenizer):
        monkeypatch.setattr(each, "chat_template", CHAT)
    assert ours.chat_template(True) == theirs.chat_template(True) == CHAT
    talk = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "It is"}]
    texts = [
        (ours.apply_chat_template(*given), theirs.apply_chat_template(*given))
        for given in ((talk[:1],), (talk, True), (talk, False))
    ]
    for text, expected in texts:
        assert text == expected and ours.tok_encode(text) == theirs.tok_encode(text)
    pairs = [(text, answer) for text, _ in texts for answer in ("four", " 4")]
    given = instances("loglikelihood", *pairs)
    found, wanted = ours.loglikelihood(given), theirs.loglikelihood(given)
    for (log_p, _), (expected, _) in zip(found, wanted, strict=True):
        assert log_p == pytest.approx(expected, abs=1e-4)
    given = instances("generate_until", *[(text, {"max_gen_toks": 12}) for text, _ in texts])
    assert ours.generate_until(given) == theirs.generate_until(given)


def test_each_token_that_ends_a_completion_ends_it(models):
    """As transformers does by the list in generation_config.json."""
    ours, theirs, _ = models
    experiment, generation = ours._experiment, theirs.model.generation_config
    given = instances("generate_until", ("the number is", {"until": [], "max_gen_toks": 30}))
    (text,) = ours.generate_until(given)
    last = next(letter for letter in text[1:] if letter.isascii())
    sample = dataclasses.replace(experiment.config.sample, end_tokens=(last,))
    with mock.patch.object(experiment, "config", dataclasses.replace(experiment.config, sample=sample)):
        assert ours.generate_until(given) == [text[: text.index(last)]]
    ids = [256, experiment.data.tokenizer.find(last)]
    with mock.patch.object(generation, "eos_token_id", ids):
        assert theirs.generate_until(given) == [text[: text.index(last) + 1]]  # a special one is not shown


def test_a_continuation_that_does_not_fit_is_refused(models):
    """Their backend ends in an assertion."""
    ours, *_ = models
    given = instances("loglikelihood", ("a", " b" * 40), ("a", " b" * 40 + "c"))
    ours.loglikelihood(given[:1])
    with pytest.raises(UserError, match=r"a continuation of 81 tokens; the model reads 80 \(model.max_len"):
        ours.loglikelihood(given)


def test_options_of_generation_are_followed_or_named(models):
    ours, *_ = models
    sampled = {"do_sample": True, "temperature": 5.0, "max_gen_toks": 12}
    greedy, random, likeliest = (
        ours.generate_until(instances("generate_until", ("the number is", options)))
        for options in ({"max_gen_toks": 12}, sampled, sampled | {"top_k": 1})
    )
    assert likeliest == greedy != random
    given = instances("generate_until", ("ab", {"num_beams": 4, "until": "e"}))
    with pytest.raises(UserError, match="generation_kwargs: num_beams=4 cannot be followed; read are until"):
        ours.generate_until(given)


def test_a_local_task_has_the_same_results(models, tmp_path):
    from lm_eval.tasks import TaskManager

    ours, theirs, _ = models
    rows = [{"question": f"number {i}", "choices": ["a", "bb", "ccc"], "answer": i % 3} for i in range(9)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "local.yaml").write_text(
        f"""task: local_choices
dataset_path: json
dataset_kwargs:
  cache_dir: {tmp_path}/cache
  data_files:
    test: {tmp_path}/data.jsonl
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""
    )
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = [
        lm_eval.simple_evaluate(model=model, tasks=["local_choices"], task_manager=tasks, bootstrap_iters=0)
        for model in (ours, theirs)
    ]
    found, wanted = (each["results"]["local_choices"] for each in results)
    for name in ("acc,none", "acc_norm,none"):
        assert found[name] == wanted[name]
    samples = [each["samples"]["local_choices"] for each in results]
    for mine, other in zip(*samples, strict=True):
        values = [[float(each[0][0]) for each in sample["resps"]] for sample in (mine, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
