"""The report of a run as one self-contained HTML file."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transformer.json_text import parse_json
from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.visualization.evaluations import evaluations
from transformer.visualization.html import Markup, folded, grid, joined, page, picture, section, table, tag
from transformer.visualization.report import PANELS, Series, read_metrics
from transformer.visualization.svg import Curve, number, plot

SAMPLES, CHARACTERS = 6, 4000
"""The most samples that are shown, from the first to the last step, and how much of each."""

FURTHER = 12
"""The most curves besides those of `PANELS`."""

PICTURES = {
    "Attention": "attention",
    "Confusion and calibration": "classes",
    "Map of the word vectors": "maps",
}
"""Title -> the folder in the run's that has pictures by step."""

TILES = {
    "loss, validation": ("eval/loss", "{:.4f}", 1.0),
    "bits per byte": ("eval/bits_per_byte", "{:.4f}", 1.0),
    "accuracy": ("eval/accuracy", "{:.2%}", 1.0),
    "perplexity": ("eval/perplexity", "{:.4g}", 1.0),
    "BLEU": ("generate/bleu", "{:.2f}", 1.0),
    "tokens per second": ("train/tokens_per_second", "{:,.0f}", 1.0),
    "ms per step": ("train/seconds_per_step", "{:,.4g}", 1e3),
    "GiB per device, of a step": ("train/step_gb", "{:.3g}", 1.0),
    "of the peak FLOP/s (MFU)": ("train/mfu", "{:.1%}", 1.0),
}
"""Name -> the metric whose value is shown large, its format, and the factor of its unit."""

MEDIANS = ("train/tokens_per_second", "train/seconds_per_step", "train/mfu")
"""Metrics of speed, of which the median counts; of others it is the last value."""


@dataclass(frozen=True)
class Facts:
    """The contents of a report that are not in the run's folder."""

    name: str
    lead: str  # what was trained, in a sentence
    changed: Sequence[tuple[str, Any, Any, str]] = ()  # key, value, default, meaning
    lines: Sequence[str] = ()  # results and baselines
    starts: Sequence[Mapping[str, Any]] = ()  # see `workdir.provenance`
    again: str = ""  # a command that trains the same run again
    next: Mapping[str, str] = field(default_factory=dict)  # what for -> command


def write_page(folder: RunFolder, facts: Facts, path: Path) -> Path:
    """Writes the report to a file, replaced atomically, and returns its path.

    Raises:
      UserError: there are no metrics yet.
    """
    series = read_metrics(folder.metrics)
    replace(path, page(facts.name, body(folder, facts, series)))
    return path


def body(folder: RunFolder, facts: Facts, series: Series) -> Iterator[Markup]:
    """The sections, without those that have nothing to say."""
    yield tag("h1", facts.name)
    yield tag("p", facts.lead, class_="muted")
    yield tag("div", tiles(series), class_="tiles")
    yield section("Curves", grid(curves(series)))
    yield section(
        "Evaluation", [tag("p", line) for line in facts.lines], evaluations(folder.evaluation), last(series)
    )
    yield section("Samples", samples(folder))
    for title, name in PICTURES.items():
        yield section(title, pictures(folder.path / name))
    yield section("What was trained: keys that differ from the defaults", changed(facts))
    yield section("Hardware and versions", starts(facts.starts))
    yield section("Data", data(folder))
    yield section("Commands", commands(facts))


def tiles(series: Series) -> Iterator[Markup]:
    """The most important values."""
    for name in TILES:
        if value := value_of(series, name):
            yield tag("div", tag("b", value), tag("span", name), class_="tile")


def value_of(series: Series, name: str) -> str:
    """The value that one of the `TILES` shows; "" if it was not measured."""
    metric, form, factor = TILES[name]
    if metric not in series:
        return ""
    values = series[metric][1]
    return form.format(factor * float(np.median(values) if metric in MEDIANS else values[-1]))


def curves(series: Series) -> Iterator[Markup]:
    """The panels that have values, and further results of evaluations that changed over time."""
    shown = set()
    for title, names in PANELS.items():
        logged = [name for name in names if name in series]
        shown |= {*logged}
        drawn = [_curve(name, *series[name]) for name in logged]
        if drawn and (len(drawn) > 1 or len(drawn[0].steps) > 1):
            yield plot(title, drawn, zero=title == "Tokens per second")
    further = [
        name
        for name, (steps, _) in series.items()
        if name not in shown and not name.startswith("train/") and len(steps) > 1
    ]
    for name in further[:FURTHER]:
        yield plot(name, [_curve(name, *series[name])])


def _curve(name: str, steps: np.ndarray, values: np.ndarray) -> Curve:
    if name.startswith("train/"):
        return Curve("training", "train", steps, values)
    return Curve("validation", "eval", steps, values, marked=True)


def last(series: Series) -> Markup:
    """The last, least and greatest value of every metric that training wrote."""
    rows = []
    for key, (steps, values) in sorted(series.items()):
        least, most = int(np.argmin(values)), int(np.argmax(values))
        ends = [f"{values[at]:.5g} at {steps[at]}" for at in (least, most)]
        rows.append([tag("code", key), f"{values[-1]:.5g}", str(steps[-1]), *ends])
    heading = ["metric", "last", "at step", "least", "greatest"]
    listed = table(heading, rows, numbers=[1, 2, 3, 4])
    return tag("details", tag("summary", f"All {len(rows)} metrics of training"), listed)


def samples(folder: RunFolder) -> Iterator[Markup]:
    """Some of the samples; the last one is unfolded."""
    files = sorted(path for path in folder.samples.glob("*.txt") if path.stem.isdecimal())
    chosen = sorted({round(i * (len(files) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)}) if files else []
    for index in chosen:
        text = files[index].read_text(encoding="utf-8", errors="replace")
        more = f"\n... ({len(text):,} characters)" if len(text) > CHARACTERS else ""
        yield folded(f"Step {int(files[index].stem):,}", text[:CHARACTERS] + more, index == len(files) - 1)
    for path in sorted(folder.samples.glob("*.png"))[:SAMPLES]:
        yield picture(path, path.stem, "image")


def pictures(folder: Path) -> Iterator[Markup]:
    """The last picture, and the first one folded."""
    files = sorted(folder.glob("*.png"))
    if files:
        yield picture(files[-1], _step(files[-1]))
    if len(files) > 1:
        first = picture(files[0], _step(files[0]))
        yield tag("details", tag("summary", f"The first: {_step(files[0])}"), first)


def _step(path: Path) -> str:
    return f"step {int(path.stem):,}" if re.fullmatch(r"\d+", path.stem) else path.stem


def changed(facts: Facts) -> Markup | None:
    """The keys that differ from their defaults."""
    rows = [[tag("code", key), tag("code", _text(value)), tag("code", _text(default)), meaning]
            for key, value, default, meaning in facts.changed]  # fmt: skip
    return table(["key", "value", "default", "meaning"], rows) if rows else None


def starts(entries: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    """The machine of each start of the training; those that equal the one before are one line."""
    before: Mapping[str, Any] = {}
    for entry in entries:
        about = {
            key: value for key, value in entry.items() if key not in ("step", "command", "date") and value
        }
        title = f"From step {entry.get('step')}, {str(entry.get('date'))[:16].replace('T', ' ')}"
        if about == before:
            yield tag("p", f"{title}: the same")
            continue
        before = about
        yield tag("h3", title)
        yield table(
            [], [[tag("span", key.replace("_", " "), class_="muted"), _text(about[key])] for key in about]
        )


def data(folder: RunFolder) -> Markup | None:
    """The section on the data, by which a resumed run recognises them."""
    facts_read = _json(folder.data)
    if not isinstance(facts_read, dict) or not isinstance(facts_read.get("sources", {}), dict):
        return None
    rows = []
    for key, contents in facts_read.get("sources", {}).items():
        pairs = contents.items() if isinstance(contents, dict) else [("", contents)]
        rows += [[key, str(name), tag("code", _text(content))] for name, content in pairs]
    rows += [
        [name, "", tag("code", _text(facts_read[name]))]
        for name in ("tokenizer", "labels")
        if name in facts_read
    ]
    return table(["of", "part", "content"], rows)


def commands(facts: Facts) -> Iterator[Markup]:
    """The section on the starts of the run, its training again, and its uses."""
    started = [str(entry["command"]) for entry in facts.starts if entry.get("command")]
    listed = {
        "Started by": "\n".join(dict.fromkeys(started)),
        "The same run again": facts.again,
        **facts.next,
    }
    for title, command in listed.items():
        if command:
            yield joined(tag("h3", title), tag("pre", command, class_="card"))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, float) and math.isfinite(value):
        return number(value) if abs(value) < 1e4 else f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
