"""Pages of the documentation site that are written when it is built, as hooks of MkDocs (`mkdocs.yml`).

The site has `docs/`, the pages at the root of the repository, and a reference: config keys from the
dataclasses, commands from their flags, the API from docstrings. Links between files of the repository become
links of the site; a file that is not a page, such as `examples/train_lm.py`, gets a page with its source.
"""

import argparse
import ast
import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "AGENTS.md": "agents.md",
}
"""Pages at the root of the repository -> their places in the site."""

PACKAGES = ("workdir", "transformer", "experiments", "commands/sweeps")
"""Folders in the API reference, with their sub-packages."""

GROUPS = {
    "": "Top level",
    "model": "Model",
    "data": "Data",
    "loss": "Loss",
    "optimizer": "Optimizer",
    "train": "Training",
    "parallel": "Devices",
    "evaluate": "Evaluation",
    "sample": "Sampling",
    "generate": "Generation (text to text)",
    "answer": "Answers (question answering)",
}
"""Groups of config keys -> their headings, in the order of the page."""

LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml"}

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


# Links.


def site_path(path: str) -> str:
    """The page or file of the site for a path in the repository: "docs/runs.md" -> "runs.md"."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith("/README.md"):
        return "source/" + path.removesuffix("README.md") + "index.md"
    return f"source/{path}.md"


def linked_paths(text: str, path: str) -> Iterator[str]:
    """The paths in the repository to which the Markdown `text` of the file `path` links, outside of code."""
    for part in FENCE.split(text)[::2]:
        for match in LINK.finditer(part):
            yield resolve(match[2], path)


def resolve(link: str, path: str) -> str:
    """The path in the repository to which a relative link in a file leads; of a folder, its README."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{target}/README.md" if (ROOT / target).is_dir() else target


def with_site_links(text: str, path: str) -> str:
    """The Markdown `text` of the file `path` of the repository, its links leading to pages of the site."""
    here = posixpath.dirname(site_path(path))

    def replaced(match: re.Match[str]) -> str:
        target = site_path(resolve(match[2], path))
        return f"{match[1]}{posixpath.relpath(target, here or '.')}{match[3]}"

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


# Sources of files that pages link to.


def source_page(path: str) -> str:
    """The page of a file outside of `docs/`: Markdown as it is, notebooks by cells, code in a block."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return with_site_links(text, path)
    if path.endswith(".ipynb"):
        return notebook_page(path, json.loads(text))
    return f"# {path}\n\n{fenced(text, LANGUAGES.get(Path(path).suffix, 'text'))}"


def notebook_page(path: str, notebook: Any) -> str:
    """The cells of a notebook, without outputs."""
    cells = [f"The notebook `{path}`, without its outputs."]
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        cells.append(
            with_site_links(text, path) if cell["cell_type"] == "markdown" else fenced(text, "python")
        )
    if cells[1].startswith("# "):
        cells[:2] = cells[1::-1]  # the heading first
    return "\n\n".join(cells)


def fenced(code: str, language: str) -> str:
    """A block of code, in a fence longer than any in the code."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code.rstrip()}\n{fence}\n"


# The reference.


def keys_page() -> str:
    """The page of all config keys, read from the config dataclasses of all experiments.

    A key that experiments describe alike is one entry; where they differ, each variant names its experiments.
    """
    from experiments import EXPERIMENTS, find_experiment
    from transformer.config_help import Key, describe_keys

    variants: dict[str, dict[str, tuple[Key, list[str]]]] = {}
    for name in EXPERIMENTS:
        for key in describe_keys(find_experiment(name).Config):
            _, names = variants.setdefault(key.name, {}).setdefault(repr(key), (key, []))
            names.append(name)
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    for name, found in variants.items():
        group, dot, _ = name.partition(".")
        everywhere = len(found) == 1 and sum(len(names) for _, names in found.values()) == len(EXPERIMENTS)
        entries = [
            key_entry(key, "" if everywhere else ", ".join(f"`{each}`" for each in names))
            for key, names in found.values()
        ]
        groups.setdefault(group if dot else "", []).append("".join(entries))
    lead = (
        "# Config keys\n\nEvery key of every experiment, from the dataclasses that read them. Set a key in a "
        "config file (`config.model.d_model = 384`) or on the command line (`--config.model.d_model=384`). "
        "`python launch.py --config=FILE --help=all` prints the keys of one config.\n"
    )
    parts = [f"\n## {GROUPS.get(group, group)}\n\n{''.join(keys)}" for group, keys in groups.items() if keys]
    return lead + "".join(parts)


def key_entry(key: Any, experiments: str) -> str:
    """A key as an item of a definition list; `experiments` says which have it, "" if all do."""
    default = "" if key.default is None else f" = {json.dumps(key.default)}"
    kind = escaped(", ".join(filter(None, [key.type, key.bound, key.condition])))
    owners = f" Of {experiments}." if experiments else ""
    return f"`{key.name}{default}`{{#{key.name}}}\n:   {escaped(key.meaning)} (*{kind}*).{owners}\n\n"


def escaped(text: str) -> str:
    """Plain text as Markdown in which every sign is itself, but for code between backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    signs = re.compile(r"[\\*_\[\]|#]")
    parts[::2] = [signs.sub(r"\\\g<0>", html.escape(part, quote=False)) for part in parts[::2]]
    return "".join(parts)


def commands_page() -> str:
    """The page of all commands: the docstring and the flags of each, read from its parser."""
    import launch
    from commands import COMMANDS, find_command

    common = launch.Parser(add_help=False)
    launch.add_common_flags(common)
    parts = [
        "# Commands\n\n`python launch.py [--mode=NAME] [--FLAG=VALUE] [--config.KEY=VALUE]`. Without "
        "`--mode` the command is `train`. Exit codes: 0; 1 for a disk or a failure; 2 for a mistake in the "
        "command.\n",
        "## Flags of every command\n\n" + flags_table(common),
    ]
    for name in COMMANDS:
        module, parser = find_command(name), launch.Parser(add_help=False)
        module.add_flags(parser)
        parts.append(f"## {name}\n\n{docstring_page(module.__doc__)}\n\n{flags_table(parser)}")
    return "\n".join(parts)


def docstring_page(docstring: str) -> str:
    """The docstring of a command: lines with a command are code, all else is prose."""
    paragraphs = []
    for paragraph in docstring.strip().split("\n\n"):
        code = any(
            line.lstrip().startswith("python ") or "  python " in line for line in paragraph.splitlines()
        )
        paragraphs.append(fenced(paragraph, "bash").rstrip() if code else escaped(paragraph))
    return "\n\n".join(paragraphs)


def flags_table(parser: argparse.ArgumentParser) -> str:
    """A table of the flags of a parser: how each is written, and its help text."""
    rows = ["| flag | meaning |", "|---|---|"]
    for action in parser._actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        choices = f" One of {', '.join(f'`{each}`' for each in action.choices)}." if action.choices else ""
        help_text = escaped((action.help or "").replace("%%", "%"))
        rows.append(f"| {names} | {help_text}{choices if not action.metavar else ''} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else "No flags of its own.\n"


def api_pages() -> dict[str, str]:
    """Package -> its page of the API: the modules directly in it, for mkdocstrings to fill."""
    pages = {}
    for top in PACKAGES:
        for folder in sorted({file.parent for file in (ROOT / top).rglob("*.py")}):
            package = folder.relative_to(ROOT).as_posix().replace("/", ".")
            modules = [
                f"{package}.{file.stem}" for file in sorted(folder.glob("*.py")) if file.stem != "__init__"
            ]
            init = folder / "__init__.py"
            docstring = (
                ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) if init.exists() else None
            )
            if modules:
                lead = f"# {package}\n\n{escaped(docstring or '')}\n"
                pages[package] = lead + "".join(f"\n::: {module}\n" for module in modules)
    return pages


def docstring_of(file: Path) -> str:
    """The docstring of a module, "" if there is no such file."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "") if file.exists() else ""


# Hooks of MkDocs.


def on_config(config: Any) -> Any:
    """Adds the API reference to the navigation, where `mkdocs.yml` says "API"."""
    sections: dict[str, list[dict[str, str]]] = {}
    for package in api_pages():
        top, _, rest = package.partition(".")
        sections.setdefault(top, []).append({rest or top: f"reference/api/{package}.md"})
    (reference,) = [section["Reference"] for section in config.nav if "Reference" in section]
    (api,) = [entry for entry in reference if "API" in entry]
    api["API"] = [{top: pages} for top, pages in sections.items()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages: those of the root, the reference, and sources that any page links to."""
    from mkdocs.structure.files import File

    pages = {"reference/keys.md": keys_page(), "reference/commands.md": commands_page()}
    pages |= {f"reference/api/{name}.md": text for name, text in api_pages().items()}
    paths = [*ROOT_PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    while paths:
        path = paths.pop()
        if not path.startswith("docs/"):
            pages[site_path(path)] = source_page(path)
        if path.endswith((".md", ".ipynb")):
            text = (ROOT / path).read_text(encoding="utf-8")
            for target in linked_paths(text, path):
                if not target.startswith("docs/") and site_path(target) not in pages:
                    paths.append(target)
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points the links of a page in `docs/` to pages of the site."""
    is_ours = page.file.generated_by is None
    return with_site_links(markdown, f"docs/{page.file.src_uri}") if is_ours else markdown


def on_post_build(config: Any) -> None:
    """Checks that the pages of the site load nothing from elsewhere.

    Raises:
      PluginError: a page has a script, a style sheet or a picture of another host.
    """
    from mkdocs.exceptions import PluginError

    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if address := loaded_from_elsewhere(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page}: it loads {address}; the site must work offline")


def loaded_from_elsewhere(page: str) -> str:
    """The first address of another host that the HTML of a page loads, "" if there is none."""
    tags = r'<(?:script|img|iframe|link rel="(?:stylesheet|preconnect)")'
    match = re.search(rf'{tags}[^>]*(?:src|href)="?(https?:[^"> ]+)', page)
    return match[1] if match else ""
