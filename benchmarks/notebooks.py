"""Runs notebooks from top to bottom in a kernel of their own, and saves them with what they show.

python -m benchmarks.notebooks notebooks/language_model.ipynb
"""

import argparse
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks (all of the repository)")
    for path in parser.parse_args().paths or sorted(Path("notebooks").glob("*.ipynb")):
        began = time.perf_counter()
        nbformat.write(executed(nbformat.read(path, 4), path.parent), path)
        print(f"{path}: {time.perf_counter() - began:.0f} s")


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs: of pictures the PNG alone, and no times of execution."""
    NotebookClient(
        notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data, output.metadata = {"image/png": output.data["image/png"]}, {}
    return notebook


if __name__ == "__main__":
    main()
