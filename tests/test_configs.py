import ast
import dataclasses
import json
import math
import re
import shlex
import sys
import typing
from pathlib import Path

import jax
import pytest

import launch
from commands.table import BESIDE
from configs import attention, base
from experiments import EXPERIMENTS, find_experiment
from experiments.contrastive import LACKED
from tests import runs
from transformer.conditions import FieldOf
from transformer.config import (
    Bound,
    OneOf,
    OnThisSystem,
    bounds_of,
    flatten,
    from_values,
    marks_of,
    refuse_idle,
    to_values,
    without_effect,
)
from transformer.config_help import describe_keys
from transformer.errors import UserError
from transformer.training.optim.optimizer import make_schedule
from transformer.training.run import Run
from transformer.training.step import make_train_step
from workdir import opening
from workdir.compatibility.differences import FIXED, FREE
from workdir.opening import read_config

FOLDER = runs.ROOT / "configs"
CONFIGS = sorted(
    path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py") if path.name != "base.py"
)

pytestmark = pytest.mark.usefixtures("in_root", "drawn")


def values_of(name: str) -> dict:
    """All keys of an experiment with their defaults."""
    return base.defaults(name).to_dict()


def groups(config: typing.Any) -> typing.Iterator[typing.Any]:
    """A frozen config and every group in it."""
    yield config
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(value := getattr(config, field.name)):
            yield from groups(value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_defaults_of_an_experiment_are_all_its_keys_and_valid(name):
    values = values_of(name)
    assert values["experiment"] == name
    assert to_values(from_values(find_experiment(name).Config, values)) == values


def bounded_keys(name: str) -> typing.Iterator[tuple[typing.Any, str, Bound | OneOf]]:
    """Each group of an experiment's keys as it is by default, with each of its keys that has a bound."""
    config = from_values(find_experiment(name).Config, values_of(name))
    for group in groups(config):
        for key, bound in bounds_of(type(group)).items():
            yield group, key, bound


def edges(bound: Bound | OneOf | OnThisSystem, default: typing.Any) -> tuple[list, list]:
    """The values just outside of a bound, and those at it that are still valid."""
    if isinstance(bound, OneOf):
        return ["", "nonsense"], [*bound.names]
    if isinstance(bound, OnThisSystem):
        remote = "gs://bucket/x"
        return [remote if isinstance(default, str) else {remote: 1.0}], [default]

    def beside(value: float, towards: float) -> float:
        if isinstance(default, int):
            return value + (1 if towards > value else -1)
        return math.nextafter(value, towards)

    ends = [end for end in (bound.least, bound.most) if math.isfinite(end)]
    outside = [beside(end, math.copysign(math.inf, -1 if end == bound.least else 1)) for end in ends]
    inside = [end if end not in bound.without else beside(end, default) for end in ends]
    return [*outside, *bound.without, math.nan, math.inf, -math.inf], inside


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_key_with_a_bound_refuses_what_is_outside_and_takes_what_is_at_it(name):
    found = [*bounded_keys(name)]
    assert len(found) > 25
    for group, key, bound in found:
        outside, inside = edges(bound, getattr(group, key))
        for value in outside:
            with pytest.raises(UserError) as error:
                dataclasses.replace(group, **{key: value})
            assert str(error.value) == f"{key}: {value!r}; expected {bound.expected}"
        for value in inside:
            try:
                assert getattr(dataclasses.replace(group, **{key: value}), key) == value
            except UserError as error:  # of a combination with another key
                assert f"{key}: {value!r}; expected {bound.expected}" not in str(error)


UNBOUNDED = {"pattern_size", "pattern_extra", "position_factor", "stride", "shift", "vocab_size"}
"""Numbers whose range depends on other keys."""

FREE_NUMBERS = {"lora_alpha", "pixel_mean"}
"""Numbers that may be anything."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_number_has_a_bound_or_is_known_to_have_none(name):
    config = from_values(find_experiment(name).Config, values_of(name))
    numbers = {
        key
        for cls in map(type, groups(config))
        for key, hint in typing.get_type_hints(cls).items()
        if hint in (int, float) and key not in bounds_of(cls)
    }
    assert numbers <= UNBOUNDED | FREE_NUMBERS


def test_a_misspelt_key_fails_where_it_is_set():
    config = base.defaults("language_modeling")
    with pytest.raises(AttributeError, match="d_modle"):
        config.model.d_modle = 64
    with pytest.raises(KeyError, match="d_modle"):
        base.choose(config, "tiny", {"tiny": {"model": {"d_modle": 64}}})
    config.optimizer.arguments.beta = 0.9
    config.evaluate.sets.wiki = "text:*.txt"
    config.loss.arguments.gamma = 2.0
    assert from_values(
        find_experiment("language_modeling").Config, config.to_dict() | {"loss": {"name": "focal"}}
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_key_has_its_meaning_beside_it(name):
    keys = describe_keys(find_experiment(name).Config)
    assert {key.name: key.default for key in keys} | {"experiment": name} == {
        **flatten(values_of(name)),
        **{key.name: {} for key in keys if key.type == "a mapping"},
    }
    assert [key.name for key in keys if len(key.meaning) < 6] == []


def test_free_keys_exist():
    keys = {key for name in EXPERIMENTS for key in flatten(values_of(name))}
    described = [key for name in EXPERIMENTS for key in describe_keys(find_experiment(name).Config)]
    keys |= {f"{key.name}." for key in described if key.type == "a mapping"}
    for name in (*FREE, *FIXED, *BESIDE):
        assert any(key.startswith(name) for key in keys), name


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_says_its_command_its_cost_and_its_result(config):
    docstring = ast.get_docstring(ast.parse((runs.ROOT / "configs" / config).read_text())) or ""
    assert f"python launch.py --config=configs/{config}" in docstring
    assert "Cost: " in docstring and "Result: " in docstring
    assert len(docstring.splitlines()) <= 12, "histories of measurements belong into docs/study_notes.md"


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_says_only_what_differs_and_is_valid(config):
    values = read_config(f"configs/{config}")
    default = flatten(values_of(values["experiment"]))
    tree = ast.parse((runs.ROOT / "configs" / config).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            key = ast.unparse(node.targets[0]).partition(".")[2]
            assert key not in default or flatten(values)[key] != default[key], f"{key} is the default"
    for each in (values, read_config(f"configs/{config}:tiny")):
        refuse_idle(from_values(find_experiment(values["experiment"]).Config, each))


@pytest.mark.parametrize(
    ("experiment", "key", "idle", "read"),
    [
        ("language_modeling", "text_field", "text:/a.txt", "jsonl:/b"),
        ("masked_lm", "text_field", "text:/a.txt", "hf:/b"),
        ("vision", "image_field", "folder:/a", "tfds:mnist"),
        ("vision", "label_field", "digits", "tfds:mnist"),
    ],
)
def test_a_field_that_no_source_has_is_refused(experiment, key, idle, read):
    def check(**groups):
        values = values_of(experiment)
        for name, group in groups.items():
            values[name] |= group
        refuse_idle(from_values(find_experiment(experiment).Config, values))

    check(data={"source": idle})
    with pytest.raises(UserError, match=rf"^config.data.{key}: 'body' does nothing with {idle}; leave it at"):
        check(data={"source": idle, key: "body"})
    check(data={"source": read, key: "body"})
    check(data={"source": idle, "validation_source": read, key: "body"})
    check(data={"source": idle, key: "body"}, evaluate={"sets": {"other": read}})
    if experiment != "vision":
        check(data={"sources": {idle: 1, read: 1}, key: "body"})


@pytest.mark.parametrize("config", [*CONFIGS, "studies/speedrun.py:modern"])
def test_a_tiny_run_that_is_lengthened_goes_on_learning(config):
    values = read_config(f"configs/{config}{',' if ':' in config else ':'}tiny")
    optimizer = from_values(find_experiment(values["experiment"]).Config, values).optimizer
    rates = make_schedule(optimizer, 50)
    assert min(float(rates(count)) for count in range(25)) > 0.1 * optimizer.learning_rate


@pytest.mark.parametrize("kind", attention.KINDS)
def test_a_kind_of_attention_says_only_what_differs_and_is_valid(kind):
    values, default = read_config(f"configs/attention.py:{kind}"), values_of("language_modeling")
    for key, value in flatten(attention.KINDS[kind]).items():
        assert flatten(values)[key] == value != flatten(default).get(key)
    refuse_idle(from_values(find_experiment("language_modeling").Config, values))


def test_presets_add_up_in_their_order():
    values = read_config("configs/attention.py:window,tiny")
    assert values == read_config("configs/attention.py:tiny,window")
    assert values["model"]["pattern"] == "window" and values["model"]["d_model"] == 32
    with pytest.raises(UserError, match="'widnow' is not a preset of it; it has multi_query, "):
        read_config("configs/attention.py:tiny,widnow")


SWITCHES = {
    "train.evaluate_every": "1",
    "train.checkpoint_every": "1",
    "train.keep_last": "2",
    "train.average_last": "2",
    "train.batch_size": "16",
    "optimizer.clip_norm": "1.0",
    "optimizer.schedule": "cosine",
    "optimizer.ema_decay": "0.9",
    "parallel.microbatches": "2",
    "data.tokenizer": "bpe",
    "data.vocab_size": "300",
    "model.position": "learned",
    "model.use_bias": "true",
}
"""Keys that switch on what reads further keys."""

OWN_SWITCHES = {
    "language_modeling": {"train.profile_steps": "1", "train.profile_from": "1"},
    "transformer_xl": {"model.position": "rope"},
    "word_embedding": {"data.tokenizer": "words", "data.subsample": "0.1"},
    "grpo": {"sample.temperature": "0.5"},
}
"""What else switches something on in a run of an experiment."""


def one_of_each() -> dict[str, str]:
    """Experiment -> the config of it with the shortest name, in the outermost folder."""
    found = {}
    for name in sorted(CONFIGS, key=lambda name: (name.count("/"), len(name)), reverse=True):
        text = (FOLDER / name).read_text(encoding="utf-8")
        found |= dict.fromkeys(re.findall(r'base\.defaults\("(\w+)"\)', text), name)
    return found


ONE_OF_EACH = one_of_each()


def write_pairs(folder: Path) -> str:
    """A file of short pairs of texts, and the name of the source that it is."""
    pairs = [{"source": f"number {i} of the lines", "target": f"Zahl {i} der Zeilen"} for i in range(60)]
    return write_records(folder, pairs)


def write_labels(folder: Path) -> str:
    """A file of short texts with labels, and the name of the source that it is."""
    return write_records(folder, [{"text": f"line {i}", "label": ("even", "odd")[i % 2]} for i in range(60)])


def write_questions(folder: Path) -> str:
    """A file of questions with contexts and answers, and the name of the source that it is."""
    records = []
    for i in range(60):
        before = "a line without a number, " * (i % 3) + f"the number of line {i} is "
        answers = {"text": [f"{i * i}"], "answer_start": [len(before)]}
        question = f"what is the number of line {i}?"
        records.append({"question": question, "context": f"{before}{i * i}, it says", "answers": answers})
    return write_records(folder, records)


def write_preferences(folder: Path) -> str:
    """A file of conversations, which are preferences too, and the name of the source that it is."""
    records = []
    for i in range(60):
        prompt, chosen, rejected = f"what is {i} and {i}?", f"{2 * i}", f"it is {2 * i}, as far as I know"
        talk = [{"role": "user", "content": prompt}, {"role": "assistant", "content": rejected}]
        answers = {"chosen": chosen, "rejected": rejected, "answer": chosen}
        records.append({"messages": talk, "prompt": prompt} | answers)
    return write_records(folder, records)


def write_records(folder: Path, records: list[dict]) -> str:
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"jsonl:{folder}/a.jsonl"


AT_HAND = {
    "stdlib": runs.write_corpus,
    "snippets": write_labels,
    "written_forms": write_pairs,
    "function_questions": write_questions,
    "library_questions": write_preferences,
    "problems:addition,2": write_preferences,
}
"""Small files in place of the embedded corpora, which take their time to prepare: other tests do that."""


def test_there_is_one_of_each():
    assert ONE_OF_EACH.keys() == EXPERIMENTS.keys()
    for name, config in ONE_OF_EACH.items():
        assert read_config(f"configs/{config}")["experiment"] == name


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """A source of text with some rows of the longest sequences that a config has."""
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"), documents=600)


def at_hand(values: dict, tiny: dict, corpus: str) -> dict:
    """The config with the data of its `tiny` preset, in rows as long as its own; a batch that 8 devices can
    share; and no more than two layers, which are traced one by one."""
    data = tiny["data"] | {key: value for key, value in values["data"].items() if key.endswith("length")}
    data["stride"] = values["data"].get("stride")
    data = {key: value for key, value in data.items() if key in values["data"]}
    if data.get("source") == "stdlib":
        data["source"] = corpus
    train = values["train"] | {"batch_size": -(-values["train"]["batch_size"] // 8) * 8}
    layers = {key: min(2, values["model"].get(key, 0)) for key in ("num_layers", "num_encoder_layers")}
    model = values["model"] | {key: value for key, value in layers.items() if key in values["model"]}
    return values | {"data": data, "train": train, "model": model}


@pytest.mark.thorough
@pytest.mark.parametrize("config", [*CONFIGS, *(f"attention.py:{kind}" for kind in attention.KINDS)])
def test_the_train_step_has_its_shapes_at_full_width_and_tiny(tmp_path, corpus, config):
    """Evaluated in shapes, without an array of the model; tiny ones only where no test trains them."""
    full, tiny = (read_config(f"configs/{each}") for each in (config, config.partition(":")[0] + ":tiny"))
    for values in [full] if config in ONE_OF_EACH.values() or ":" in config else [full, tiny]:
        config_class = find_experiment(values["experiment"]).Config
        frozen = from_values(config_class, at_hand(values, tiny, corpus))
        run = Run(find_experiment(values["experiment"])(frozen), frozen, tmp_path)
        if hasattr(run.experiment.data, "reference"):  # that of preferences, a pass of the model over all
            run.experiment.data.reference = None
        step = make_train_step(
            run.experiment,
            run.optimizer,
            seed=0,
            microbatches=frozen.parallel.microbatches,
            clip_norm=frozen.optimizer.clip_norm,
            ema_decay=frozen.optimizer.ema_decay,
        )
        with run.placed():
            state, metrics = jax.eval_shape(step, run.abstract, run.loader.batch_at(0))
        assert shapes(state) == shapes(run.abstract)
        assert metrics["loss"].total.shape == () and metrics["loss"].total.dtype == "float32"


def shapes(tree) -> list:
    return [(path, leaf.shape, leaf.dtype) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_tiny_preset_trains_saves_evaluates_and_predicts(monkeypatch, capfd, tmp_path, name):
    """And every key of the experiment is read, by what trains, evaluates or predicts: checking a
    key or keeping it in config.json does not count."""
    config = ONE_OF_EACH[name]
    values = read_config(f"configs/{config}:tiny")
    switches = SWITCHES | OWN_SWITCHES.get(name, {})
    overrides = [(key, value) for key, value in switches.items() if key in flatten(values)]
    if values["data"].get("source") in AT_HAND:
        overrides.append(("data.source", AT_HAND[values["data"]["source"]](tmp_path / "corpus")))
    frozen = opening.check_config(values, overrides)
    classes, attends = (
        {type(group) for group in groups(frozen)},
        getattr(frozen.model, "has_attention", False),
    )
    # A key whose condition does not hold is refused where it is set. A mixer is built from all its fields.
    idle = {
        (type(group), key)
        for group in groups(frozen)
        for key in without_effect(group) | without_effect(group, strict=True)
    }
    of_mixer = {
        (type(group), key)
        for group in groups(frozen)
        for key, mark in marks_of(type(group), (FieldOf,))
        if mark.holds(getattr(group, mark.on))
    }
    read = recorded(monkeypatch, classes)
    run = [f"--workdir={tmp_path / 'run'}"]
    arguments = [f"--config.{key}={value}" for key, value in overrides]
    assert launch.main([f"--config=configs/{config}:tiny", *run, *arguments]) == 0, capfd.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir()
    said = capfd.readouterr()
    assert ("attention: " in said.err) == attends
    flags = suggested_flags(said.out)
    assert launch.main([*run, "--mode=evaluate"]) == 0, capfd.readouterr().err
    assert "eval/loss" in capfd.readouterr().out
    assert launch.main([*run, *flags]) == 0, capfd.readouterr().err
    (prompt,) = (flag.removeprefix("--prompt=") for flag in flags if flag.startswith("--prompt="))
    continues = getattr(find_experiment(values["experiment"]), "continues", False)
    answer = capfd.readouterr().out
    restates = values["experiment"] == "diffusion_lm"  # the whole text, with its masks filled in
    assert answer and answer.startswith(prompt) == (continues or restates)
    if "temperature" in values.get("generate", values.get("sample", {})):  # of keys that draw
        assert launch.main([*run, *flags, "--temperature=0.5"]) == 0, capfd.readouterr().err
    fields = {(cls, field.name) for cls in classes for field in dataclasses.fields(cls)}
    with_others = {"profile_from": "train.profile_steps", "initialize_strict": "initialize_from"}
    with_others |= {"depth_exponent": "model.base_layers", "skips": "model.skips"}
    with_others |= {"layer_kinds": "model.layers"}
    with_others |= {"rollbacks": "train.rollbacks", "checkpoint_minutes": "train.checkpoint_minutes"}
    fields = {(cls, name) for cls, name in fields if name not in with_others or with_others[name] in switches}
    # Inherited, and refused with the reason when they are given.
    refused = {"SkipGramDataConfig.sources", "EncoderDecoderConfig.value_embeddings"}
    if name == "image_text":
        refused |= {f"VisionConfig.{key}" for key in LACKED}
        refused.add("VisionConfig.kernel")  # read where a mixer is built, as that of `model` is
    if name == "distillation":  # whose tiny run has no teacher
        refused |= {f"DivergenceConfig.{key}" for key in ("divergence", "temperature")}
        refused |= {f"StudentAnswersConfig.{key}" for key in ("max_new_tokens", "temperature")}
    assert {f"{cls.__name__}.{name}" for cls, name in fields - read - idle - of_mixer} <= refused


def recorded(monkeypatch, classes) -> set:
    """Grows by (class, name) whenever a field of one of these is read in earnest."""
    read, checks = set(), ("__post_init__", "__eq__", "__hash__", "__repr__")

    def recording(cls):
        def __getattribute__(self, name):
            caller = sys._getframe(1)
            of_config = caller.f_globals.get("__name__") == "transformer.config"
            checked = caller.f_code.co_name in checks and type(caller.f_locals.get("self")) in classes
            if not of_config and not checked:
                read.add((cls, name))
            return object.__getattribute__(self, name)

        return __getattribute__

    for cls in classes:
        monkeypatch.setattr(cls, "__getattribute__", recording(cls), raising=False)
    return read


def suggested_flags(said: str) -> list[str]:
    """The flags of the command for `--mode=predict`, of embedders `--mode=embed`, that the last lines of a
    training suggest: what a prompt is (a text, a word, the path of an image) the experiment knows best."""
    words = shlex.split(said.rpartition("Next, for example:")[2])
    (start,) = (i for i, word in enumerate(words) if word in ("--mode=predict", "--mode=embed"))
    return words[start : words.index("python", start)]
