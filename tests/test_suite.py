"""The names of test files, the lists in `tests/conftest.py`, which CI runs again, its shares, and what the
tests install."""

import argparse
import ast
import collections
import dataclasses
import re
import subprocess
import tomllib
import types
from pathlib import Path

import pytest

from tests import conftest, runs
from tests.conftest import CORE, OPTIMIZED
from transformer import requirements
from transformer.data.cache.disk_cache import TAG


def required(file):
    """The names of packages in a file of requirements."""
    return {name for name, _ in requirements.parse((runs.ROOT / file).read_text().splitlines())}


PEERS = required("requirements-peers.txt")


@pytest.mark.parametrize("name", sorted({*CORE, *OPTIMIZED}))
def test_a_test_that_a_list_names_exists(name):
    path, _, function = name.partition("::")
    code = (runs.ROOT / path).read_text()
    assert f"\ndef {function.partition('[')[0]}" in code


def test_no_two_test_files_have_the_same_name():
    """The folders of tests are not packages, so pytest would import one of the two for both."""
    names = collections.Counter(path.name for path in (runs.ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_prepared_data_are_in_the_repository():
    """Caches and runs mark their folders with a tag."""
    if not (runs.ROOT / ".git").exists():
        pytest.skip("no clone of the repository")
    listed = subprocess.run(["git", "ls-files"], cwd=runs.ROOT, capture_output=True, text=True, check=True)
    assert [name for name in listed.stdout.splitlines() if name.rpartition("/")[2] == TAG] == []


@dataclasses.dataclass(frozen=True)
class Item:
    path: Path
    number: int
    thorough: bool

    @property
    def nodeid(self):
        return f"{self.path}::test_{self.number}"

    @property
    def own_markers(self):
        return []

    def get_closest_marker(self, name):
        return self.thorough and name == "thorough"


@pytest.mark.parametrize("parts", [1, 2, 4, 40])
def test_shares_have_every_thorough_test_once_and_all_others_always(parts):
    places = [(file, test) for test in range(6) for file in range(13)]
    items = [Item(Path(f"test_{file}.py"), test, test % 3 > file % 2) for file, test in places]
    quick = {item for item in items if not item.thorough}
    seen = collections.Counter()
    for number in range(1000, 1000 + parts):
        here, left_out = list(items), []
        hook = types.SimpleNamespace(pytest_deselected=lambda items, to=left_out: to.extend(items))
        option = types.SimpleNamespace(share=conftest.share(f"{number}/{parts}"))
        config = types.SimpleNamespace(hook=hook, option=option)
        conftest.pytest_collection_modifyitems(config, here)
        assert here == [item for item in items if item in set(here)]  # in their order
        assert collections.Counter(here + left_out) == collections.Counter(items)
        assert quick <= set(here)
        assert not {item.path for item in left_out} & {item.path for item in here if item.thorough}
        seen.update(here)
    assert all(seen[item] == (1 if item.thorough else parts) for item in items)


def test_the_first_cases_of_a_function_are_quick():
    """Of those that say how many; another mark of a case stays."""
    own = {"test_a[1]": 1, "test_a[2]": 1, "test_b": None, "test_c[1]": 2, "test_a[3]": 1, "test_c[2]": 2}
    marks = {None: pytest.mark.thorough.mark} | {i: pytest.mark.thorough(but=i).mark for i in (1, 2)}
    other = pytest.mark.skipif(False, reason="").mark
    items = [types.SimpleNamespace(nodeid=name, own_markers=[other, marks[i]]) for name, i in own.items()]
    conftest.mark_quick_cases(items)
    assert all(other in item.own_markers for item in items)
    thorough = [item.nodeid for item in items if len(item.own_markers) == 2]
    assert thorough == ["test_a[2]", "test_b", "test_a[3]"]


@pytest.mark.parametrize("name", conftest.LISTS)
def test_of_a_list_only_its_files_are_imported(name):
    option = types.SimpleNamespace(markexpr=f"{name} and not thorough")
    config = types.SimpleNamespace(option=option, rootpath=runs.ROOT)
    files = [*(runs.ROOT / "tests").rglob("test_*.py")]
    read = [path for path in files if not conftest.pytest_ignore_collect(path, config)]
    assert {path.relative_to(runs.ROOT).as_posix() for path in read} == {
        test.partition("::")[0] for test in conftest.LISTS[name]
    }
    option.markexpr = "not slow"
    assert not any(conftest.pytest_ignore_collect(path, config) for path in files)
    assert not any(conftest.pytest_ignore_collect(path.parent, config) for path in files)


@pytest.mark.parametrize("text", ["", "1", "1/0", "a/2", "1/-2", "0.5/2"])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="K/N"):
        conftest.share(text)


def test_peers_that_are_missing_or_too_old_are_one_line(tmp_path):
    file = tmp_path / "peers.txt"
    file.write_text("numpy>=2,<3\nno-such-peer>=1\ntqdm>=999\n")
    line = conftest.missing_peers(file)
    found = r"missing: no-such-peer; too old: tqdm [\d.]+ \(>=999\)"
    assert re.fullmatch(rf"--peers: {found} \(pip install -r peers.txt\)", line)
    file.write_text("numpy>=2,<3\n")
    assert conftest.missing_peers(file) == ""


def test_the_peers_bring_every_extra_and_the_light_requirements_none():
    extras = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for name, _ in requirements.parse(extras.pop("docs"))} == required("requirements-docs.txt")
    assert {name for lines in extras.values() for name, _ in requirements.parse(lines)} <= PEERS
    assert not (required("requirements.txt") | required("requirements-dev.txt")) & PEERS


@pytest.mark.thorough
def test_a_peer_is_imported_in_functions_of_files_that_ask_for_it_first():
    """So that the tests are collected, and pass, where `requirements-peers.txt` is not installed."""
    modules = {name.removesuffix("-skinny") for name in PEERS}
    for path in (runs.ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in modules.intersection(each.partition(".")[0] for each in names):
                assert node not in tree.body, f"{path}: {name} is imported with the file"
                if path.name.startswith("test_"):
                    assert "importorskip" in text and f'"{name}"' in text, f"{path}: {name}"
