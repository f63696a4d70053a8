import itertools

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.image import imread

from transformer.visualization.attention_maps import HEADS, draw_attention, draw_beside, draw_grid


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("heads", [1, 3, 11])
def test_the_maps_are_the_mean_and_the_first_heads(tmp_path, rng, figures, heads):
    weights = rng.dirichlet(np.ones(5), (heads, 4))
    target, source = ["$a", "b$", " c", "</s>"], ["x", "\n", "y", "long_token", "</s>"]
    path = tmp_path / "attention.png"
    draw_attention(weights, target, source, path)
    (figure,) = figures
    maps = [each for axes in figure.axes[:-1] for each in axes.collections if isinstance(each, QuadMesh)]
    expected = [weights.mean(0), *(weights[:HEADS] if heads > 1 else [])]
    assert len(maps) == len(expected)
    for drawn, wanted in zip(maps, expected, strict=True):
        np.testing.assert_allclose(drawn.get_array().reshape(4, 5), wanted, atol=1e-6)
        assert drawn.get_clim() == (0, pytest.approx(np.max(expected)))
    main = figure.axes[0]
    assert [label.get_text() for label in main.get_yticklabels()] == ["$a", "b$", "␣c", "</s>"]
    assert [label.get_text() for label in main.get_xticklabels()] == ["x", "⏎", "y", "long_token", "</s>"]
    assert main.yaxis_inverted()  # the first target token is at the top
    picture = imread(path)
    assert min(picture.shape[:2]) > 200 and picture[..., :3].std() > 0.01


def test_weights_that_do_not_fit_the_tokens_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="2 target and 3 source"):
        draw_attention(np.ones((1, 3, 2)), ["a", "b"], ["c", "d", "e"], tmp_path / "attention.png")


@pytest.mark.parametrize(("tokens", "every"), [(50, 1), (300, 3)])
def test_labels_of_many_tokens_stay_apart(tmp_path, figures, tokens, every):
    target, source = [f"token{i}" for i in range(tokens)], [f"token{i}" for i in range(9)]
    draw_attention(np.ones((1, tokens, 9)) / 9, target, source, tmp_path / "attention.png")
    labels, renderer = figures[0].axes[0].get_yticklabels(), figures[0].canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in labels]
    assert all(upper.y0 >= lower.y1 for upper, lower in itertools.pairwise(boxes))
    assert [label.get_text() for label in labels] == target[::every]
    assert [label.get_position()[1] for label in labels] == [i + 0.5 for i in range(0, tokens, every)]


@pytest.mark.filterwarnings("error")
def test_long_labels_leave_the_maps_their_size(tmp_path, figures):
    for label in ("ab", "a" * 150):
        draw_attention(np.full((2, 3, 6), 1 / 6), [label, "b", "c"], [label, *"bcdef"], tmp_path / "a.png")
        draw_beside({"one": (np.full((2, 3, 6), 1 / 6), [label] * 3, [label] * 6)}, tmp_path / "b.png")
    sizes = [[axes.get_window_extent().size for axes in figure.axes[:-1]] for figure in figures]
    for short, long in ((0, 2), (1, 3)):
        assert (np.array(sizes[long]) > 0.6 * np.array(sizes[short])).all()


def test_maps_of_several_models_are_the_means_of_their_heads_on_one_scale(tmp_path, rng, figures):
    source = list("march 3")
    found = {
        "Transformer": (rng.dirichlet(np.ones(7), (9, 2)), ["2", "end"], source),
        "recurrent": (rng.dirichlet(np.ones(7), (1, 3)), ["1", "$", "end"], source),
    }
    draw_beside(found, tmp_path / "maps.png")
    (figure,) = figures
    panels = figure.axes[:-1]
    assert [axes.get_title(loc="left") for axes in panels] == ["Transformer", "recurrent"]
    means = [weights.mean(0) for weights, _, _ in found.values()]
    for axes, mean, (_, target, _) in zip(panels, means, found.values(), strict=True):
        (drawn,) = (each for each in axes.collections if isinstance(each, QuadMesh))
        np.testing.assert_allclose(drawn.get_array().reshape(mean.shape), mean, atol=1e-6)
        assert drawn.get_clim() == (0, pytest.approx(max(each.max() for each in means)))
        assert [label.get_text() for label in axes.get_yticklabels()] == target
        assert axes.yaxis_inverted()
    renderer = figure.canvas.get_renderer()
    upper, lower = (axes.get_tightbbox(renderer) for axes in panels)
    assert upper.y0 >= lower.y1  # no overlap
    assert imread(tmp_path / "maps.png")[..., :3].std() > 0.01


def test_numbers_of_both_signs_share_a_scale_around_zero(tmp_path, figures):
    draw_grid(np.array([[1.0, -3.0], [0.0, 2.0]]), ["a$", "b"], ["c", "d e"], tmp_path / "grid.png", "sums")
    draw_grid(np.array([[1.0, 0.5]]), ["a"], ["c", "d"], tmp_path / "grid.png", texts=[[" x", "$y"]])
    signed, plain = (next(iter(figure.axes[0].collections)) for figure in figures)
    assert (signed.get_clim(), plain.get_clim()) == ((-3, 3), (0, 1))
    np.testing.assert_array_equal(np.ravel(signed.get_array()), [1, -3, 0, 2])
    assert [text.get_text() for text in figures[1].axes[0].texts] == ["␣x", "$y"]
    assert figures[0].axes[0].get_title(loc="left") == "sums"
