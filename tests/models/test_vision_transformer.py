import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.models.classifier import POOLINGS
from transformer.models.vision import VisionConfig, VisionTransformer, patches, resized_positions

CLASSES = 3


def make(rng, shape=(8, 8, 2), **changes):
    keys = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "max_length": 17, "use_bias": True}
    model = VisionTransformer(VisionConfig(**keys | changes), CLASSES)
    images = jnp.asarray(rng.integers(0, 256, (5, *shape)), jnp.uint8)
    return model, random_params(rng, model, images), images


def permuted(images, size, order):
    """The images with their patches in another order, cut and put together by loops."""
    result = np.zeros_like(images)
    columns = images.shape[2] // size
    for to, of in enumerate(order):
        (i, j), (y, x) = np.array(divmod(to, columns)) * size, np.array(divmod(of, columns)) * size
        result[:, i : i + size, j : j + size] = images[:, y : y + size, x : x + size]
    return jnp.asarray(result)


@pytest.mark.parametrize(("h", "w", "c", "size"), [(6, 4, 3, 2), (4, 4, 1, 4), (3, 5, 2, 1), (6, 9, 1, 3)])
def test_patches_are_squares_row_by_row(rng, h, w, c, size):
    x = rng.normal(size=(2, h, w, c)).astype(np.float32)
    found = np.asarray(patches(jnp.asarray(x), size))
    expected = [
        [image[i : i + size, j : j + size].ravel() for i in range(0, h, size) for j in range(0, w, size)]
        for image in x
    ]
    assert np.array_equal(found, np.array(expected))


def test_a_linear_map_of_patches_is_a_strided_convolution(rng):
    size, c, d = 2, 3, 7
    x = jnp.asarray(rng.normal(size=(2, 6, 4, c)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(size * size * c, d)), jnp.float32)
    convolved = jax.lax.conv_general_dilated(
        x,
        kernel.reshape(size, size, c, d),
        window_strides=(size, size),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest",
    )
    found = jnp.matmul(patches(x, size), kernel, precision="highest")
    np.testing.assert_allclose(found, convolved.reshape(2, -1, d), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_without_positions_the_order_of_patches_is_nothing(rng, pooling):
    model, params, images = make(rng, position="none", pooling=pooling)
    apply = jax.jit(lambda images: model.apply({"params": params}, images))
    shuffled = permuted(np.asarray(images), 2, rng.permutation(16))
    assert not np.array_equal(shuffled, images)
    np.testing.assert_allclose(apply(shuffled), apply(images), rtol=1e-4, atol=1e-5)
    within = images[:, :, ::-1]  # mirrored: the pixels of each patch change places too
    assert np.abs(apply(within) - apply(images)).max() > 1e-3


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "none"])
def test_with_positions_it_is_not(rng, position):
    model, params, images = make(rng, position=position)
    apply = jax.jit(lambda images: model.apply({"params": params}, images))
    shuffled = permuted(np.asarray(images), 2, rng.permutation(16))
    assert np.abs(apply(shuffled) - apply(images)).max() > 1e-3


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_image_is_classified_by_all_its_pixels_and_by_no_others(rng, pooling):
    model, params, images = make(rng, pooling=pooling)
    apply = jax.jit(lambda images: model.apply({"params": params}, images))
    logits = apply(images)
    assert logits.shape == (5, CLASSES) and logits.dtype == jnp.float32
    for _ in range(4):
        n, y, x, c = (int(rng.integers(size)) for size in images.shape)
        other = apply(images.at[n, y, x, c].add(100))
        changed = np.abs(np.asarray(other - logits)).max(axis=1) > 1e-7
        assert changed.tolist() == [number == n for number in range(5)]


def test_pixels_are_normalised_once(rng):
    """(pixel - mean) / scale: another mean and scale of pixels that fit them give the same."""
    model, params, images = make(rng, pixel_mean=127.5, pixel_scale=127.5)
    config = dataclasses.replace(model.config, pixel_mean=0.0, pixel_scale=2.0)
    scaled = (np.asarray(images, np.float32) - 127.5) / 127.5 * 2
    expected = VisionTransformer(config, CLASSES).apply({"params": params}, jnp.asarray(scaled))
    found = model.apply({"params": params}, images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_of_training_alone(rng):
    model, params, images = make(rng, dropout=0.5, head_dropout=0.5)
    run = jax.jit(
        lambda seed, train: model.apply(
            {"params": params}, images, train, rngs={"dropout": jax.random.key(seed)}
        ),
        static_argnums=1,
    )
    assert np.array_equal(run(0, False), run(1, False))
    assert not np.array_equal(run(0, True), run(1, True))


@pytest.mark.parametrize(
    ("keys", "size", "expected"),
    [
        ({"patch_size": 3}, 8, "patch_size: 3 does not divide data.image_size 8"),
        ({"patch_size": 16}, 8, "patch_size: 16 does not divide data.image_size 8"),
        ({"patch_size": 2, "max_length": 15}, 8, "max_length: 15; an image has 16 patches"),
        ({"patch_size": 2, "max_length": 16, "pooling": "cls"}, 8, "max_length: 16; an image has 17 patches"),
        ({"patch_size": 0}, 8, "patch_size: 0; expected at least 1"),
        ({"head_dropout": 1.0}, 8, "head_dropout: 1.0; expected a rate"),
        ({"pixel_scale": 0.0}, 8, "pixel_scale: 0.0; expected more than 0"),
        ({"d_model": 0}, 8, "d_model: 0; expected at least 1"),
    ],
)
def test_impossible_shapes(keys, size, expected):
    with pytest.raises(UserError, match="^" + expected):
        VisionConfig(**keys).length(size)


def test_places_are_counted():
    assert VisionConfig(patch_size=2).length(8) == 16
    assert VisionConfig(patch_size=4, pooling="cls").length(32) == 65


def between(image_hwd: np.ndarray, side: int) -> np.ndarray:
    """The bilinear interpolation of a square at the centres of side x side squares, by loops."""
    before, found = len(image_hwd), np.zeros((side, side, image_hwd.shape[2]))
    for i, j in np.ndindex(side, side):
        y, x = (np.clip((k + 0.5) * before / side - 0.5, 0, before - 1) for k in (i, j))
        top, left = int(y), int(x)
        below, right = min(top + 1, before - 1), min(left + 1, before - 1)
        rows = [(1 - x + left) * image_hwd[k, left] + (x - left) * image_hwd[k, right] for k in (top, below)]
        found[i, j] = (1 - y + top) * rows[0] + (y - top) * rows[1]
    return found


@pytest.mark.parametrize(("first", "new_first"), [(0, 0), (1, 1), (1, 0), (0, 1), (3, 2)])
@pytest.mark.parametrize("side", [4, 6, 8])
def test_positions_are_those_of_the_same_places_in_the_image(rng, first, new_first, side):
    table, rows = rng.normal(size=(first + 16 + 2, 5)).astype(np.float32), new_first + side * side + 3
    found = np.asarray(resized_positions(jnp.asarray(table), (first, 4), (new_first, side), rows))
    patches_hwd = found[new_first : new_first + side * side].reshape(side, side, 5)
    expected = between(table[first : first + 16].reshape(4, 4, 5), side)
    np.testing.assert_allclose(patches_hwd, expected, rtol=1e-5, atol=1e-6)
    kept = min(first, new_first)
    np.testing.assert_array_equal(found[new_first - kept : new_first], table[first - kept : first])
    assert found.shape == (rows, 5) and not found[: new_first - kept].any() and not found[-3:].any()
    if side == 4:
        np.testing.assert_array_equal(patches_hwd, table[first : first + 16].reshape(4, 4, 5))
