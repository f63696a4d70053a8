"""The documentation site: what is generated when it is built, and the links of all pages."""

import re
from pathlib import Path

import pytest

import launch
from commands import COMMANDS, find_command
from docs import site_pages
from experiments import EXPERIMENTS, find_experiment
from tests import runs
from transformer.config_help import describe_keys

DOCS = sorted(path.relative_to(runs.ROOT).as_posix() for path in (runs.ROOT / "docs").rglob("*.md"))
PAGES = [*site_pages.ROOT_PAGES, *DOCS]
SETTINGS = (runs.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAVIGATION = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", SETTINGS, re.MULTILINE)


def text_of(path: str) -> str:
    return (runs.ROOT / path).read_text(encoding="utf-8")


def anchors(path: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site make them."""
    headings = [
        heading
        for part in site_pages.FENCE.split(text_of(path))[::2]
        for heading in re.findall(r"^#+ (.*)$", part, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_to_files_of_the_repository_and_to_headings(path):
    for part in site_pages.FENCE.split(text_of(path))[::2]:
        for link, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]+))?\)", part):
            target = site_pages.resolve(link, path) if link else path
            assert (runs.ROOT / target).is_file(), link
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("path", PAGES)
def test_links_of_the_site_lead_to_its_pages(path):
    """To a page of `docs/`, to one of the root, or to one with the source of a file that there is."""
    here = Path(site_pages.site_path(path)).parent
    text = site_pages.with_site_links(text_of(path), path)
    links = {
        match[2] for part in site_pages.FENCE.split(text)[::2] for match in site_pages.LINK.finditer(part)
    }
    sources = {site_pages.site_path(target) for target in site_pages.linked_paths(text_of(path), path)}
    for link in links:
        place = (runs.ROOT / "site" / here / link).resolve().relative_to((runs.ROOT / "site").resolve())
        assert place.as_posix() in sources
    for place in sources - {*site_pages.ROOT_PAGES.values()}:
        file = place.removeprefix("source/").removesuffix(".md")
        assert (runs.ROOT / "docs" / place).exists() or (
            runs.ROOT / file.replace("index", "README.md")
        ).exists()


def test_every_page_is_in_the_navigation_once():
    expected = [*map(site_pages.site_path, PAGES), "reference/commands.md", "reference/keys.md"]
    assert sorted(NAVIGATION) == sorted(expected)


def test_guides_have_no_dates():
    """Measurements with their dates stand on pages of their own."""
    (guides,) = re.findall(r"^  - Guides:\n(.*?)^  - \w", SETTINGS, re.MULTILINE | re.DOTALL)
    pages = re.findall(r"- (\S+\.md)", guides)
    assert len(pages) > 12
    assert [page for page in pages if re.search(r"20\d\d-\d\d-\d\d", text_of(f"docs/{page}"))] == []


def test_a_list_stands_apart_from_the_paragraph_above():
    """GitHub sees a list without an empty line above it, the site does not."""
    for path in PAGES:
        for part in site_pages.FENCE.split(text_of(path))[::2]:
            for above, _ in re.findall(r"^([^\s|#-].*)\n(- |1\. )", part, re.MULTILINE):
                assert re.match(r"- |\d+\. ", above), f"{path}: {above}"


def test_links_are_those_of_the_site_outside_of_code():
    code = "\n```python\nf[0](docs/runs.md)\n```\n"
    assert site_pages.with_site_links(f"[a](docs/runs.md#b) [c](cluster/){code}[d](#e)", "README.md") == (
        f"[a](runs.md#b) [c](source/cluster/index.md){code}[d](#e)"
    )
    back = "[a](../../README.md) [b](../../examples/train_lm.py) [c](../runs.md)"
    assert site_pages.with_site_links(back, "docs/tutorials/study.md") == (
        "[a](../index.md) [b](../source/examples/train_lm.py.md) [c](../runs.md)"
    )


def test_every_key_is_on_the_page_of_keys_with_its_default_and_meaning():
    page = site_pages.keys_page()
    for name in EXPERIMENTS:
        for key in describe_keys(find_experiment(name).Config):
            assert f"{{#{key.name}}}\n:   {site_pages.escaped(key.meaning)} (" in page
    assert "`model.num_layers = " in page and "`train.steps = " in page
    both = re.findall(r"^`data\.next_sentence = \w+`.*\n.*", page, re.MULTILINE)
    assert [line.rpartition(" Of ")[2] for line in both] == ["`masked_lm`.", "`electra`."]
    (common,) = re.findall(r"^`seed = 0`.*\n.*", page, re.MULTILINE)
    assert "Of " not in common and common.endswith(").")


def test_every_flag_is_on_the_page_of_commands():
    sections = re.split(r"^## ", site_pages.commands_page(), flags=re.MULTILINE)[2:]
    assert [section.partition("\n")[0] for section in sections] == [*COMMANDS]
    for name, section in zip(COMMANDS, sections, strict=True):
        parser = launch.Parser(add_help=False)
        find_command(name).add_flags(parser)
        for action in parser._actions:
            assert all(f"`{flag}`" in section for flag in action.option_strings)
        assert section.count("\n| `") == len(parser._actions)


def test_the_reference_has_every_module_of_its_packages():
    modules = re.findall(r"^::: (\S+)$", "".join(site_pages.api_pages().values()), re.MULTILINE)
    files = {(runs.ROOT / module.replace(".", "/")).with_suffix(".py") for module in modules}
    assert len(files) == len(modules)
    for package in site_pages.PACKAGES:
        assert {file for file in (runs.ROOT / package).rglob("*.py") if file.stem != "__init__"} <= files


def test_sources_are_in_fences_longer_than_their_own():
    page = site_pages.source_page("cluster/slurm.sh")
    assert page.startswith("# cluster/slurm.sh\n\n```bash\n#!") and page.endswith("\n```\n")
    assert site_pages.fenced("a\n```\nb", "text") == "````text\na\n```\nb\n````\n"


def test_a_notebook_is_a_page_with_its_heading_first():
    cells = [("markdown", ["# Title\n", "See [a](../launch.py).\n"]), ("code", ["x = 1\n", "x"])]
    notebook = {"cells": [{"cell_type": kind, "source": source} for kind, source in cells]}
    page = site_pages.notebook_page("notebooks/a.ipynb", notebook)
    assert page.startswith("# Title\nSee [a](../launch.py.md).\n\n")
    assert page.endswith("\n\n```python\nx = 1\nx\n```\n") and "`notebooks/a.ipynb`" in page


@pytest.mark.parametrize(
    ("html", "loaded"),
    [
        ('<a href="https://optuna.org">', ""),
        ('<link rel="canonical" href="https://a.org">', ""),
        ('<script src="assets/bundle.js">', ""),
        ('<script src="https://unpkg.com/x">', "https://unpkg.com/x"),
        ('<link rel="stylesheet" href="https://fonts.org/css">', "https://fonts.org/css"),
        ('<img alt="a" src="https://a.org/a.png">', "https://a.org/a.png"),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(html, loaded):
    assert site_pages.loaded_from_elsewhere(html) == loaded
