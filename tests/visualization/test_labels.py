"""Labels that are not plain words: formulas that are none, and characters that the default font lacks."""

import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from tests.runs import SAVE
from transformer.visualization import label_texts, run_curves
from transformer.visualization.classifier_plots import draw_classification
from transformer.visualization.embedding_map import draw_map
from transformer.visualization.report import describe

ODD = r"$\foo$ a_1"
"""No formula: Matplotlib knows no such symbol."""

ELSEWHERE = "\u20ec"
"""A character that DejaVu Sans lacks, and fonts that come with Matplotlib have."""

CURVE = (np.array([1, 2]), np.array([3.0, 2.0]))

DRAWN = {
    "classification": lambda text, path: draw_classification(np.eye(2), np.ones((3, 5)), [text, "b"], path),
    "curves": lambda text, path: run_curves.draw_curves([(text, [CURVE])], text, path),
    "over_key": lambda text, path: run_curves.draw_over_key(
        [(text, [1, 2], [[3.0], [2.0]])], "x", text, path
    ),
    "differences": lambda text, path: run_curves.draw_differences([(text, 1.0, (0.0, 2.0))], text, path),
    "map": lambda text, path: draw_map(np.eye(3), [text, "b", "c"], path),
}


@pytest.mark.parametrize("picture", DRAWN)
def test_a_label_is_drawn_as_it_is(monkeypatch, tmp_path, picture):
    shown = []

    def save(figure, path, **options):
        shown.extend(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))
        SAVE(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", save)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DRAWN[picture](ODD + ELSEWHERE, tmp_path / "a.png")
    assert ODD + ELSEWHERE in shown


def test_a_long_label_keeps_its_beginning_and_its_end():
    assert (
        label_texts.shortened("a" * label_texts.MAX_LABEL_CHARACTERS)
        == "a" * label_texts.MAX_LABEL_CHARACTERS
    )
    assert label_texts.shortened("https://example.org/page-17") == "https://example…/page-17"
    assert len(label_texts.shortened("a" * 500)) == label_texts.MAX_LABEL_CHARACTERS


def test_fonts_are_added_for_what_the_default_one_lacks(capsys):
    default, *none = label_texts.fonts_of("plain ü")
    assert not none
    first, other = label_texts.fonts_of("plain" + ELSEWHERE)
    assert first == default
    files = [findfont(FontProperties(family=[name])) for name in (first, other)]
    assert [ord(ELSEWHERE) in FT2Font(file).get_charmap() for file in files] == [False, True]
    assert capsys.readouterr().err == ""


def test_what_no_font_has_is_said_once(capsys):
    label_texts._note.cache_clear()
    with warnings.catch_warnings():
        assert (
            len(label_texts.fonts_of("\U000131ff")) == len(label_texts.fonts_of("\U000131fe\n")) == 1
        )  # hieroglyphs
    said = capsys.readouterr().err
    assert said == "boxes in pictures are characters that no font here has: install one that does\n"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("learning_rate=0.005,d_model=64", "learning_rate=0.005,d_model=64"),
        ("a|b #1 <i> `c` *d*", r"a\|b \#1 \<i\> \`c\` \*d\*"),
        ("_a_ [b](c) $d$ &lt; ~~e~~ \\f\ng", r"\_a\_ \[b\](c) \$d\$ \&lt; \~\~e\~\~ \\f g"),
    ],
)
def test_a_text_of_the_user_is_shown_as_it_is_in_markdown(text, written):
    assert label_texts.in_markdown(text) == written
    assert describe({text: (np.array([1]), np.array([2.0]))}, text).startswith(f"# {written}\n\n!")
    assert f"\n| {written} | 2 | 1 |" in describe({text: (np.array([1]), np.array([2.0]))}, text)
