import itertools

import numpy as np
import pytest
from matplotlib.image import imread

from transformer.visualization.embedding_map import DISTANCES, arrange, draw_map, project
from transformer.visualization.label_texts import MAX_LABEL_CHARACTERS


def test_the_plane_is_that_of_the_two_largest_eigenvectors_of_the_covariance(rng):
    vectors = rng.normal(size=(30, 6)) * np.array([5, 3, 1, 1, 0.5, 0.1])
    places, shares = project(vectors)
    values, axes = np.linalg.eigh(np.cov(vectors.T))
    for k in range(2):
        expected = (vectors - vectors.mean(axis=0)) @ axes[:, -1 - k]
        np.testing.assert_allclose(
            places[:, k], expected * np.sign(expected[np.abs(expected).argmax()]), atol=1e-9
        )
        assert shares[k] == pytest.approx(values[-1 - k] / values.sum())


def test_what_lies_in_a_plane_keeps_its_distances(rng):
    flat = rng.normal(size=(12, 2))
    plane, _ = np.linalg.qr(rng.normal(size=(7, 2)))
    places, shares = project(flat @ plane.T + rng.normal(size=7))
    for i, j in itertools.combinations(range(12), 2):
        assert np.linalg.norm(places[i] - places[j]) == pytest.approx(np.linalg.norm(flat[i] - flat[j]))
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("shape", [(2, 5), (5, 1)])
def test_what_spans_no_plane_is_an_error(shape):
    with pytest.raises(ValueError, match="span no plane"):
        project(np.ones(shape))


def test_labels_cover_neither_points_nor_one_another_where_there_is_room(rng):
    points, sizes = rng.random((80, 2)) * 900, np.stack([rng.integers(20, 90, 80), np.full(80, 14)], axis=1)
    corners, free = arrange(points, sizes)
    assert free.mean() > 0.9
    for i in np.flatnonzero(free):
        low, high = corners[i], corners[i] + sizes[i]
        for point in points:
            assert ((point <= low) | (point >= high)).any()
        for j in range(i):
            assert ((high <= corners[j]) | (low >= corners[j] + sizes[j])).any()
        gap = np.maximum(np.maximum(low - points[i], points[i] - high), 0)
        assert gap.max() <= max(DISTANCES) + 1e-9


def test_labels_at_one_point_spread_until_there_is_no_room():
    corners, free = arrange(np.zeros((60, 2)), np.full((60, 2), 10.0))
    count = int(free.sum())
    assert 12 <= count <= 4 * len(DISTANCES) and free[:count].all()
    assert len({tuple(corner) for corner in corners[:count]}) == count


@pytest.mark.filterwarnings("error")
def test_every_vector_has_its_label_beside_its_point(tmp_path, rng, figures):
    labels = [f"word{i}" for i in range(60)] + ["$a", "b$", "a_b", "$x^2$"]
    vectors = rng.normal(size=(len(labels), 4))
    draw_map(vectors, labels, tmp_path / "map.png")
    (axes,) = figures[0].axes
    places, _ = project(vectors)
    assert {text.get_text() for text in axes.texts} == set(labels)
    for text, place in zip(axes.texts, places, strict=True):
        np.testing.assert_allclose(text.xy, place)
    picture = imread(tmp_path / "map.png")
    assert min(picture.shape[:2]) > 500 and picture[..., :3].std() > 0.01


def test_labels_stay_within_the_bounds_where_there_is_room(rng):
    points, sizes = 100 + rng.random((20, 2)) * 700, np.stack([np.full(20, 90), np.full(20, 14)], axis=1)
    corners, free = arrange(points, sizes, ((90, 90), (810, 810)))
    assert free.all() and (corners >= 90).all() and (corners + sizes <= 810).all()


@pytest.mark.filterwarnings("error")
def test_long_labels_are_drawn_where_they_were_placed(tmp_path, rng, figures):
    labels = ["z" * 150, *(f"https://example.org/a-page-with-a-long-name{i}" for i in range(9))]
    draw_map(rng.normal(size=(10, 4)), labels, tmp_path / "map.png")
    (figure,) = figures
    (axes,) = figure.axes
    assert (axes.get_window_extent().size > 0.7 * figure.bbox.size).all()
    dots = axes.transData.transform(axes.collections[0].get_offsets())
    for text, dot in zip(axes.texts, dots, strict=True):
        assert len(text.get_text()) == MAX_LABEL_CHARACTERS
        box = text.get_window_extent()
        apart = np.maximum(np.maximum([box.x0, box.y0] - dot, dot - [box.x1, box.y1]), 0)
        assert apart.max() <= max(DISTANCES) + 5


def test_equal_vectors_make_a_map(tmp_path):
    draw_map(np.ones((5, 3)), list("abcde"), tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")


def test_labels_that_do_not_fit_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="2 labels for 4 vectors"):
        draw_map(np.ones((4, 3)), ["a", "b"], tmp_path / "map.png")
