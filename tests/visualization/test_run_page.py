"""The report of a run as HTML: what it says, that nothing of the user's is markup, and how it looks."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from transformer.run_folder import RunFolder
from transformer.visualization import svg
from transformer.visualization.html import escaped, joined, tag
from transformer.visualization.run_page import SAMPLES, Facts, write_page
from transformer.visualization.table_page import Compared
from transformer.visualization.table_page import write_page as write_table

HOSTILE = (
    "<script>alert('x')</script> & \"<img src=http://evil.example/x onerror=alert(1)>\" "
    "\x00\x1b[31m \u202eabc"
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Reader(HTMLParser):
    """The elements of a page, (name, attributes), and its text by element."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in ("meta", "img"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name, "elements are closed in the order in which they were opened"

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, name):
        return ["".join(text) for of, text in self.text if of == name]


@pytest.fixture
def folder(tmp_path):
    """The folder of a run in which everything that a user may write is hostile."""
    found = RunFolder(tmp_path / "run")
    found.samples.mkdir(parents=True)
    found.attention.mkdir()
    steps = range(1, 61)
    rows = [{"step": s, "train/loss": 4 / s, "train/tokens_per_second": 1e4 + s} for s in steps]
    rows += [{"step": s, "eval/loss": 5 / s, f"eval/{HOSTILE}": s, "eval/accuracy": None} for s in (30, 60)]
    found.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step in range(10, 130, 10):
        (found.samples / f"{step:08d}.txt").write_text(f"{HOSTILE} of {step}", encoding="utf-8")
        Image.new("RGB", (60, 60), (step, 0, 0)).save(found.attention / f"{step:08d}.png")
    Image.new("RGB", (8, 8)).save(found.samples / "<b>7.png")
    found.data.write_text(json.dumps({"sources": {HOSTILE: {"a": HOSTILE}}, "tokenizer": HOSTILE}))
    evaluation = {"steps": [60], "split": "test", "source": HOSTILE, "date": HOSTILE, "keys": {"k": HOSTILE}}
    evaluation |= {
        "results": {"eval/loss": 0.125, "eval/x": None},
        "about": {"eval/loss": HOSTILE, "m": HOSTILE},
    }
    found.evaluation.write_text(json.dumps([evaluation]))
    return found


FACTS = Facts(
    name=HOSTILE,
    lead=HOSTILE,
    changed=[("data.source", HOSTILE, {"a": 0.25}, HOSTILE)],
    lines=[HOSTILE],
    starts=[
        {"step": 0, "command": HOSTILE, "date": "2026-01-01", "devices": HOSTILE, "versions": {"jax": "1"}},
        {"step": 5, "command": HOSTILE, "date": "2026-01-02", "devices": HOSTILE, "versions": {"jax": "1"}},
        {
            "step": 9,
            "command": "again",
            "date": "2026-01-03",
            "devices": "8 x H100",
            "versions": {"jax": "2"},
        },
    ],
    again=HOSTILE,
    next={HOSTILE: HOSTILE},
)


def check_closed(page: str) -> Reader:
    """A page without scripts, event handlers or anything from elsewhere."""
    read = Reader(page)
    assert not read.open[1:] and not {"script", "link", "iframe", "object", "base"} & {
        n for n, _ in read.elements
    }
    for name, attributes in read.elements:
        assert not [key for key in attributes if key.startswith("on")], name
        assert (attributes.get("src") or "data:image/png;base64,").startswith("data:image/png;base64,")
        assert not re.match(r"\w+:|//", attributes.get("href") or "") and not attributes.get("srcset")
    assert "url(" not in page and "@import" not in page
    return read


def test_nothing_that_a_user_wrote_is_markup(folder):
    page = write_page(folder, FACTS, folder.page).read_text(encoding="utf-8")
    assert page.count("<!DOCTYPE html>") == 1 and "default-src 'none'" in page
    read = check_closed(page)
    shown = HOSTILE.replace("\x00", "␀").replace("\x1b", "␛")
    assert read.all("h1") == [shown] and read.all("title")[0] == shown
    # Lead, result line, evaluation (source, about twice), keys (value, meaning), starts, data, commands ...
    assert "".join(text for _, text in read.text).count(shown) >= 16
    assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]", page)


def test_the_page_shows_what_the_folder_has(folder):
    read = Reader(write_page(folder, FACTS, folder.page).read_text(encoding="utf-8"))
    headings = ["Curves", "Evaluation", "Samples", "Attention", "Hardware and versions", "Data", "Commands"]
    assert [each for each in read.all("h2") if "keys" not in each] == headings
    # The first and the last sample, and others between; the last one is unfolded. So are pictures.
    steps = [int(each.split()[1].replace(",", "")) for each in read.all("summary") if each.startswith("Step")]
    assert len(steps) == SAMPLES and steps[0] == 10 and steps[-1] == 120 and steps == sorted(set(steps))
    assert sum("open" in attributes for name, attributes in read.elements if name == "details") == 1
    images = [attributes["alt"] for name, attributes in read.elements if name == "img"]
    assert images == ["<b>7", "step 120", "step 10"]
    # The value of the last evaluation, and the median of the speed.
    assert {"0.0833", "10,030"} <= {*read.all("b")}
    assert "0.125" in read.all("td") and "none" in read.all("td")
    assert (
        sum(name == "svg" for name, _ in read.elements) == 3
    )  # loss, speed, the metric with the hostile name
    # Where two starts have the same surroundings they are said once; another machine is shown again.
    assert [each for each in read.all("h3") if each.startswith("From")] == [
        "From step 0, 2026-01-01",
        "From step 9, 2026-01-03",
    ]
    assert "From step 5, 2026-01-02: the same" in read.all("p")


def test_a_run_with_nothing_but_one_metric_has_a_page(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n')
    read = check_closed(
        write_page(RunFolder(tmp_path), Facts("a", "b"), tmp_path / "report.html").read_text()
    )
    assert read.all("h2") == ["Evaluation"] and "All 1 metrics of training" in read.all("summary")


def test_markup_is_escaped_once():
    inner = tag("b", "1 < 2 & 3", title='"<', open=True, data_x=None)
    assert inner == '<b title="&quot;&lt;" open>1 &lt; 2 &amp; 3</b>'
    assert joined(inner, None, [inner, "<"]) == inner + inner + "&lt;"
    assert escaped("a\ud800\r\n\tb") == "a\ufffd\n\tb"


def test_ticks_are_round_numbers_of_the_axis(rng):
    for _ in range(200):
        low = float(rng.normal()) * 10.0 ** rng.integers(-3, 4)
        high = low + 10.0 ** rng.uniform(-3, 6)
        found = svg.ticks(low, high, 5)
        gaps = np.diff(found)
        assert (
            2 <= len(found) <= 6
            and low - 1e-6 * abs(low) <= found[0]
            and found[-1] <= high + 1e-6 * abs(high)
        )
        np.testing.assert_allclose(gaps, gaps[0], rtol=1e-6)
        assert f"{gaps[0]:.1e}"[:3] in ("1.0", "2.0", "5.0")


def test_curves_lie_where_their_values_say(rng):
    steps, values = np.arange(0, 101, 10), rng.uniform(1, 2, 11)
    figure = svg.plot("t", [svg.Curve("a", "train", steps, values, marked=True)])
    (points,) = [a["points"] for name, a in Reader(figure).elements if name == "polyline"]
    xy = np.array([point.split(",") for point in points.split()], float)
    np.testing.assert_allclose(
        xy[:, 0], np.interp(steps, [0, 100], [svg.LEFT, svg.WIDTH - svg.RIGHT]), atol=0.06
    )
    low, high = svg.limits(values, False)
    inside = np.minimum(values, high)
    np.testing.assert_allclose(
        xy[:, 1], np.interp(inside, [low, high], [svg.HEIGHT - svg.BOTTOM, svg.TOP]), atol=0.06
    )


def test_first_losses_do_not_flatten_the_rest_and_long_curves_are_thinned():
    values = np.concatenate([[1000.0, 500.0], np.linspace(3, 2, 998)])
    assert svg.limits(values, False)[1] < 4
    figure = svg.plot("t", [svg.Curve("a", "train", np.arange(1000), values)])
    lines = [a for name, a in Reader(figure).elements if name == "polyline"]
    assert [line["class"] for line in lines] == ["line faint", "line"]
    assert all(len(line["points"].split()) == svg.MAX_DRAWN_POINTS for line in lines)
    assert min(float(point.split(",")[1]) for point in lines[0]["points"].split()) == svg.TOP


def test_a_table_of_runs_links_to_their_reports(folder, tmp_path):
    write_page(folder, FACTS, folder.page)
    series = {"eval/loss": (np.array([1, 2]), np.array([3.0, 2.0]))}
    runs = [Compared(HOSTILE, folder.path, series), Compared("other", tmp_path / "other", series)]
    rows = [(HOSTILE, [series["eval/loss"]] * 2), ("other", [series["eval/loss"]])]
    cells = [["key", "eval/loss"], [HOSTILE, "2"], ["other", "2"]]
    write_table(tmp_path / "table.html", "eval/loss", cells, rows, runs)
    read = check_closed((tmp_path / "table.html").read_text(encoding="utf-8"))
    assert [a["href"] for name, a in read.elements if name == "a"] == ["run/report.html"]
    assert sum(name == "polyline" for name, _ in read.elements) == 3
    assert any("of 120" in text for text in read.all("pre"))


@pytest.mark.thorough
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_browser_shows_it_on_a_screen_and_on_a_phone_light_and_dark(folder, tmp_path, scheme, width):
    page, picture = write_page(folder, FACTS, folder.page), tmp_path / f"{scheme}-{width}.png"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},4000"]
    command += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    subprocess.run(
        [*command, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True, timeout=90
    )
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    assert pixels.shape == (4000, width, 3)
    back = {"light": [0xFF, 0xFF, 0xFF], "dark": [0x14, 0x18, 0x1E]}[scheme]
    assert (pixels[:, :8] == back).all() and (pixels[:, -8:] == back).all(), "nothing reaches the margins"
    used = np.flatnonzero((pixels != back).any(axis=(1, 2)))
    assert used[-1] - used[0] > 1500 and len(used) > 0.3 * (used[-1] - used[0])
