"""`pip install .`, after which a notebook anywhere can import the packages."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests import runs
from transformer.training.logging.writers import EXTRAS

PACKAGES = ("commands", "configs", "experiments", "transformer", "workdir")


@pytest.mark.thorough
def test_the_packages_are_installed_whole_with_their_requirements(tmp_path):
    pytest.importorskip("setuptools")
    pytest.importorskip("pip")
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(runs.ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(runs.ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, f"--target={site}", str(source)], check=True, capture_output=True, timeout=300)

    def modules(folder: Path) -> set[str]:
        files = [path for name in PACKAGES for path in (folder / name).rglob("*.py")]
        return {path.relative_to(folder).as_posix() for path in files}

    assert modules(site) == modules(source)
    (installed,) = distributions(path=[str(site)])
    project = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]
    assert (installed.name, installed.version) == (project["name"], project["version"])
    assert installed.metadata["License-Expression"] == project["license"]
    (licence,) = [file for file in installed.files or [] if file.name == "LICENSE"]
    assert licence.read_text() == (runs.ROOT / "LICENSE").read_text()
    lines = (runs.ROOT / "requirements.txt").read_text().splitlines()
    expected = [line.partition("#")[0].strip() for line in lines]
    required = [each for each in installed.requires or [] if "extra ==" not in each]
    assert len(required) == len([line for line in expected if line])
    extras = set(installed.metadata.get_all("Provides-Extra"))
    assert extras == set(project["optional-dependencies"]) and extras > {*EXTRAS}


def test_the_citation_names_the_version_and_the_licence_of_the_package():
    project = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]
    lines = (runs.ROOT / "CITATION.cff").read_text().splitlines()
    cited = dict(line.replace('"', "").split(": ", 1) for line in lines if re.match(r"[a-z-]+: ", line))
    assert (cited["title"], cited["version"]) == (project["name"], project["version"])
    assert (cited["abstract"], cited["license"]) == (project["description"], project["license"])
    assert "Apache License\n                           Version 2.0" in (runs.ROOT / "LICENSE").read_text()
