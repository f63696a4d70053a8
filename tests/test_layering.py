"""Which package may import which."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "transformer.runtime": set(),
    "transformer.schedulers": set(),
    "transformer.coordinators": {"transformer.errors"},
    "transformer.distributed": {"transformer.coordinators", "transformer.errors"},
    "transformer.requirements": {"transformer.runtime"},
    "transformer.errors": set(),
    "transformer.tracebacks": set(),
    "transformer.json_text": set(),
    "transformer.safe_files": set(),
    "transformer.run_folder": {"transformer.errors"},
    "transformer.conditions": set(),
    "transformer.config": {"transformer.conditions", "transformer.errors", "transformer.run_folder"},
    "transformer.config_help": {"transformer.conditions", "transformer.config"},
    "transformer.sums": set(),
    "commands.sweeps.algebra": {"transformer.errors"},
    "commands.sweeps.spaces": {"transformer.errors", "commands.sweeps.algebra"},
    "transformer.devices": set(),
    "transformer.layers": {
        "transformer.layers",
        "transformer.devices",
        "transformer.errors",
        "transformer.sums",
    },
    "transformer.layers.attention.kernels": {
        "transformer.layers",
        "transformer.devices",
        "transformer.errors",
    },
    "transformer.layers.attention.products": {"transformer.layers"},
    "transformer.layers.attention.views": set(),
    "transformer.models": {
        "transformer.models",
        "transformer.layers",
        "transformer.conditions",
        "transformer.config",
        "transformer.errors",
        "transformer.sums",
    },
    "transformer.data": {
        "transformer.data",
        "transformer.conditions",
        "transformer.config",
        "transformer.errors",
        "transformer.json_text",
        "transformer.safe_files",
    },
    "transformer.training": {
        "transformer.training",
        "transformer.devices",
        "transformer.sums",
        "transformer.run_folder",
        "transformer.safe_files",
        "transformer.conditions",
        "transformer.config",
        "transformer.errors",
        "transformer.json_text",
    },
    "transformer.decoding": {
        "transformer.decoding",
        "transformer.layers.attention.cache",
        "transformer.config",
        "transformer.devices",
        "transformer.errors",
    },
    "transformer.evaluation": {
        "transformer.evaluation",
        "transformer.decoding",
        "transformer.data",
        "transformer.training.experiment",
        "transformer.training.losses.logits_memory",
        "transformer.training.metrics",
        "transformer.training.step",
        "transformer.training.losses.token_losses",
        "transformer.config",
        "transformer.devices",
        "transformer.errors",
    },
    "transformer.interpret": {
        "transformer.interpret",
        "transformer.layers",
        "transformer.models",
        "transformer.errors",
    },
    "transformer.planning": {
        "transformer.planning",
        "transformer.training",
        "transformer.layers.attention.kernels",  # which of them were chosen
        "transformer.devices",  # what described ones can
        "transformer.errors",
    },
    "transformer.interop": {
        "transformer.interop",
        "transformer.data.tokenization.special_tokens",
        "transformer.data.tokenization.tokenizer_formats",
        "transformer.data.tokenization.tokenizer_settings",
        "transformer.data.tokenization.tokenizers",
        "transformer.config",
        "transformer.errors",
        "transformer.json_text",
    },
    "transformer.visualization": {
        "transformer.visualization",
        "transformer.run_folder",
        "transformer.safe_files",
        "transformer.errors",
        "transformer.json_text",
    },
    "experiments": {"experiments", "transformer"},
    "configs": {"configs", "experiments", "transformer.config", "commands.sweeps.algebra"},
    "examples": set(),
    "workdir": {"workdir", "experiments", "transformer"},
    "commands": {"commands", "workdir", "experiments", "transformer"},
    "launch": {
        "commands",
        "transformer.errors",
        "transformer.runtime",
        "transformer.schedulers",
        "transformer.distributed",
        "transformer.requirements",
        "workdir.included",
    },
}
"""What each part may import of ours; the longest matching name counts."""

LIBRARIES = {
    "transformer.runtime": {"jax"},
    "transformer.distributed": {"jax", "numpy"},
    "transformer.requirements": set(),
    "transformer.errors": set(),
    "transformer.json_text": set(),
    "transformer.run_folder": set(),
    "transformer.safe_files": set(),
    "transformer.config": set(),
    "transformer.sums": {"jax", "flax"},
    "transformer.layers": {"jax", "flax"},
    "transformer.layers.attention.kernels": {
        "jax",
        "flax",
        "numpy",
    },  # plans before compilation
    "transformer.layers.attention.views": {
        "jax",
        "numpy",
    },  # the same, and in the program
    "transformer.layers.attention.products": {"numpy"},  # counts, of no arrays
    "transformer.models": {"jax", "flax"},
    "transformer.data": {
        "numpy",
        "grain",
        "tokenizers",
        "jinja2",
        "tensorflow_datasets",
        "tqdm",
        "PIL",
        "sklearn",
        "pyarrow",
    },
    "transformer.decoding": {"jax", "flax", "numpy"},
    "transformer.interpret": {"jax", "flax", "numpy", "optax"},
    "transformer.planning": {"jax", "numpy"},
    "transformer.interop": {"jax", "flax", "numpy", "ml_dtypes", "tokenizers"},
    "transformer.visualization": {"numpy", "matplotlib"},
    "configs": {"ml_collections"},
    "examples": {"jax", "numpy", "optax"},
    "launch": {"jax", "absl"},
}
"""What each part may import besides the standard library, where that is limited."""

OURS = ("transformer", "experiments", "workdir", "commands", "configs", "examples", "launch")


def modules() -> dict[str, Path]:
    files = [ROOT / "launch.py"]
    for package in ("transformer", "experiments", "workdir", "commands", "configs", "examples"):
        files += sorted((ROOT / package).rglob("*.py"))
    names = {}
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


MODULES = modules()


def imports(tree: ast.AST) -> set[str]:
    """Full names of what is imported anywhere: `from a import b` is a.b where that is a module, else a."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else str(node.module))
    return found


def owner(name: str, table: dict) -> str | None:
    return max((key for key in table if name == key or name.startswith(key + ".")), key=len, default=None)


def violations(name: str, source: str) -> list[str]:
    part = owner(name, ALLOWED)
    if part is None:
        return [] if name == "transformer" else [f"{name} belongs to no part that {__name__} knows"]
    bad = []
    for imported in sorted(imports(ast.parse(source))):
        top = imported.partition(".")[0]
        if imported == "transformer":
            continue  # the folder, `ROOT`
        if top in OURS:
            if owner(imported, dict.fromkeys(ALLOWED[part])) is None:
                bad.append(f"{name} imports {imported}")
        elif part in LIBRARIES and top not in sys.stdlib_module_names and top not in LIBRARIES[part]:
            bad.append(f"{name} imports {imported}")
    return bad


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name):
    assert violations(name, MODULES[name].read_text()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("transformer.layers.attention.attention", "from transformer.models import decoder"),
        ("transformer.layers.attention.attention", "import numpy"),
        ("transformer.data.text.packed_text", "import jax"),
        ("transformer.training.loop", "from transformer.data.text.packed_text import TextData"),
        ("transformer.decoding.sampling", "def f():\n    import transformer.models.decoder"),
        ("transformer.models.decoder", "import experiments"),
        ("experiments.language_modeling", "from commands import train"),
        ("commands.predict", "from configs import base"),
        ("configs.lm", "from transformer.errors import UserError"),
        ("configs.lm", "import jax"),
        ("examples.train_lm", "from transformer.layers.linear import Linear"),
        ("workdir.opening", "from commands import train"),
        ("launch", "from transformer.training import loop"),
    ],
)
def test_the_check_sees_a_wrong_import(name, source):
    assert violations(name, source)


def test_there_are_no_import_cycles():
    def of_module(name):
        tree = ast.parse(MODULES[name].read_text())
        late = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ]
        for node in late:
            node.body = []
        return {each for each in imports(tree) if each in MODULES and each != name}

    graph = {name: of_module(name) for name in MODULES}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}, f"these import one another in a circle: {sorted(graph)}"


def test_no_config_key_has_a_second_default():
    """Below the edge a key is read as an attribute; a default given there would be a second one."""
    for name, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr == "get" and len(node.args) == 2:
                holder = ast.unparse(called.value).split(".")[-1]
                assert holder not in ("config", "c", "cfg", "values", "flags"), f"{name}:{node.lineno}"
            if isinstance(called, ast.Name) and called.id == "getattr" and len(node.args) == 3:
                holder = ast.unparse(node.args[0]).split(".")[-1]
                assert holder not in ("config", "c", "cfg", "flags"), f"{name}:{node.lineno}"


ASKED = {
    "commands.sweeps.algebra": (1, "a value of a sweep may be NumPy's"),
    "transformer.conditions": (1, "a member of a family may be a function"),
    "transformer.config": (1, "a group of keys may be any dataclass"),
    "transformer.data.sources.line_files": (1, "errors of readers"),
    "transformer.data.sources.packed_files": (1, "errors of readers"),
    "transformer.data.sources.tfds": (2, "features and values of TFDS"),
    "transformer.data.tokenization.tokenizer_kinds": (1, "a function of a notebook"),
    "transformer.data.tokenization.tokenizers": (2, "the kinds of models of the package tokenizers"),
    "transformer.evaluation.shared_prefix": (1, "a stepper that extends a cache, which is optional"),
    "transformer.layers.attention.attention": (1, "a partial function has no name"),
    "transformer.layers.attention.kernels.splash_parts": (2, "private names of jax"),
    "transformer.layers.block": (1, "a sublayer by its name"),
    "transformer.layers.feed_forward": (1, "a feed-forward network of a notebook"),
    "transformer.layers.measures": (1, "any module of flax"),
    "transformer.models.stack_checks": (1, "a mixer of a notebook"),
    "transformer.models.transforms.mup": (1, "a layer without a mixer"),
    "transformer.planning.memory": (1, "a literal of jax"),
    "transformer.runtime": (1, "other C libraries"),
    "transformer.safe_files": (2, "other systems"),
    "transformer.training.checkpoints.checksums": (1, "metadata of orbax"),
    "transformer.training.checkpoints.untrusted": (3, "metadata of orbax"),
    "transformer.training.checkpoints.storage": (1, "errors of orbax"),
    "transformer.training.hooks": (2, "an evaluator may be a plain function"),
    "transformer.training.optim.optax_optimizers": (1, "names of optax"),
    "transformer.training.run_config": (1, "data without further sets"),
    "transformer.training.signals": (1, "other systems"),
    "transformer.training.topology": (1, "devices without slices"),
    "workdir.compatibility.consistency": (2, "settings of jax, and modules without a file"),
    "workdir.opening": (2, "ml_collections, and what a config file returns"),
    "workdir.provenance": (1, "other systems"),
}
"""Module -> how often it asks whether an object has a member (`hasattr`, or `getattr` with a default), and of
what: objects of other libraries, and what a user gives. What is ours has a default in its base class."""


def probes(source: str) -> int:
    """How often a module asks whether an object has a member."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [(node.func.id, len(node.args)) for node in calls if isinstance(node.func, ast.Name)]
    return sum(name == "hasattr" or (name == "getattr" and count == 3) for name, count in named)


def test_nobody_asks_whether_an_object_of_ours_has_a_member():
    found = {name: count for name, file in MODULES.items() if (count := probes(file.read_text()))}
    more = {name: count for name, count in found.items() if count > ASKED.get(name, (0, ""))[0]}
    assert more == {}, "give the base class a default, or say here why it cannot have one"
    assert sum(count for count, _ in ASKED.values()) < 40
    assert probes("hasattr(a, 'b') or getattr(a, 'b', 0) or getattr(a, name)") == 2


def test_files_stay_short():
    long = {
        name: lines for name, file in MODULES.items() if (lines := len(file.read_text().splitlines())) > 320
    }
    assert long == {}


def test_folders_stay_small():
    folders = Counter(file.parent for file in MODULES.values() if file.name != "__init__.py")
    del folders[ROOT / "commands"]  # one file per command
    large = {str(folder): count for folder, count in folders.items() if count > 15}
    assert {path: count for path, count in large.items() if "configs" not in path} == {}


MIRRORS = {
    *("base", "chat", "config", "coordinates", "fork", "masked_lm", "plan", "report", "scaling", "t5"),
    *("transformer_xl", "value_embeddings", "verify", "vision", "word_embedding"),
}
"""Names of several files: a base class of each family; a command and its library; an objective, its model and
its data; the check of a run and that of a cache."""


def test_a_file_is_known_by_its_name():
    names = Counter(file.stem for name, file in MODULES.items() if not name.startswith("configs"))
    assert {name for name, count in names.items() if count > 1} <= MIRRORS | {"__init__"}
