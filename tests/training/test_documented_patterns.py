"""Every pattern over the names of parameters that a page or a config tells its reader to type, and what it
matches in a model that has all of them: embeddings with a norm, two blocks, adapters, a pooler and a head."""

import ast
import re

import jax
import jax.numpy as jnp
import pytest

from tests import runs
from tests.parameters import roles_by_name
from transformer.models.classifier import TextClassifier
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.optim.roles import joined
from transformer.training.optim.rules import Rule, numbered, parameter_settings
from transformer.training.parallel import unboxed
from workdir.opening import check_config, read_config

PATTERN = re.compile(
    r"--config\.(optimizer\.rules|optimizer\.train_only|model\.lora_layers)=('[^']*'|[\w,/]*[\w/])"
)
PLACES = [*runs.ROOT.glob("*.md"), *runs.ROOT.glob("docs/**/*.md"), *runs.ROOT.glob("configs/**/*.py")]
DOCUMENTED = sorted(
    {(key, value.strip("'")) for page in PLACES for key, value in PATTERN.findall(page.read_text("utf-8"))}
)

ATTENTION = {f"attention/{name}" for name in ("query", "key", "value", "output")}
FEED_FORWARD = {"feed_forward/up", "feed_forward/down"}
HEAD = {"head/classes/kernel", "head/classes/bias"}
POOLER = {"pooler/dense/kernel", "pooler/dense/bias"}
ADAPTERS = {
    f"encoder/trunk/blocks/{i}/attention/{name}/{adapter}/kernel"
    for i in range(2)
    for name in ("query", "value")
    for adapter in ("lora_down", "lora_up")
}
RULES = '[{"match": "embedding/table$", "weight_decay": 0.1}, {"match": "blocks/0/", "frozen": True}]'

MATCHED = {
    ("model.lora_layers", "attention/"): ATTENTION,
    ("model.lora_layers", "attention/|feed_forward/"): ATTENTION | FEED_FORWARD,
    ("optimizer.train_only", "lora"): ADAPTERS,
    ("optimizer.train_only", "lora,head"): ADAPTERS | HEAD,
    ("optimizer.train_only", "lora,head,pooler"): ADAPTERS | HEAD | POOLER,
    ("optimizer.rules", RULES): {
        "embedding/table$": {"encoder/embedding/table"},
        "blocks/0/": "the first block",
    },
}


def params_of(**keys):
    """The parameters of a classifier, as shapes."""
    keys = {
        "embedding_norm": True,
        "num_layers": 2,
        "pooling": "cls",
        "lora_rank": 2,
        "use_bias": True,
    } | keys
    overrides = [(f"model.{key}", str(value)) for key, value in keys.items()]
    overrides.append(("optimizer.train_only", "lora"))
    values = read_config("configs/finetune_classification.py:tiny", overrides)
    model = TextClassifier(check_config(values).model, 300, 3)
    one = jnp.ones((1, 1), jnp.int32)
    return unboxed(jax.eval_shape(lambda key: model.init(key, one, one, 1)["params"], jax.random.key(0)))


def test_the_table_has_what_the_pages_have():
    assert set(DOCUMENTED) == set(MATCHED)


@pytest.mark.parametrize(("key", "value"), MATCHED)
def test_a_documented_pattern_matches_what_its_page_says(key, value):
    expected = MATCHED[key, value]
    if key == "model.lora_layers":
        paths = (
            joined(path) for path, _ in jax.tree_util.tree_leaves_with_path(params_of(lora_layers=value))
        )
        found = {
            path.partition("blocks/")[2].partition("/lora_down")[0] for path in paths if "lora_down" in path
        }
        assert found == expected
        return
    params = params_of()
    paths = [path for names in numbered(params, ()) for path in names]
    if key == "optimizer.train_only":
        settings = jax.tree.leaves(
            parameter_settings(params, OptimizerConfig(name="adamw", train_only=value), roles=roles_by_name)
        )
        trained = zip(numbered(params, ()), settings, strict=True)
        assert {path for names, each in trained if not each.frozen for path in names} == expected
        return
    of_first = {path for path in paths if "/blocks/0/" in path}
    assert of_first and "encoder/trunk/embedding_norm/scale" in paths
    for rule in (Rule(**given) for given in ast.literal_eval(value)):
        wanted = of_first if expected[rule.match] == "the first block" else expected[rule.match]
        assert {path for path in paths if re.search(rule.match, path)} == wanted
