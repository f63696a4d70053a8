import numpy as np
import pytest

from tests.interpret.subjects import make, subject_of
from tests.models import numpy_decoder
from transformer.errors import UserError
from transformer.interpret.activations import record
from transformer.interpret.instruments.path_patching import path_patching, table
from transformer.interpret.interventions import Interventions, logits, patch

PAIR = (3, 7)


def heads(layer, x_td):
    """The outputs (t, h, k) of the heads of a layer without positions, of a residual stream."""
    own = layer["attention"]
    norm_td = (
        x_td / np.sqrt(np.mean(x_td**2, axis=-1, keepdims=True) + 1e-6) * layer["attention_norm"]["scale"]
    )
    q, k, v = (np.einsum("td,dhk->htk", norm_td, own[name]["kernel"]) for name in ("query", "key", "value"))
    scores_hts = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    weights_hts = np.exp(np.where(np.tri(len(x_td)), scores_hts, -np.inf))
    return np.einsum("hts,hsk->thk", weights_hts / weights_hts.sum(-1, keepdims=True), v)


def test_two_layers_of_attention_by_numpy(rng):
    model, params, tokens_bt = make(rng, feed_forward="none", scan_layers=True, position="sinusoidal")
    exact, c = numpy_decoder.exact(params), model.config
    layers = [own for _, own in numpy_decoder.layers(c, exact["blocks"])]
    x0c_td, x0_td = (numpy_decoder.embed(exact, c, np.asarray(row_t), np.arange(8)) for row_t in tokens_bt)

    def out(layer, z_thk):
        return np.einsum("thk,hkd->thd", z_thk, layer["attention"]["output"]["kernel"])

    def difference(x_td):
        v = numpy_decoder.logits(exact, c, numpy_decoder.last_norm(exact, c, "final_norm", x_td))[-1]
        return v[PAIR[0]] - v[PAIR[1]]

    first, second = layers
    z0c, z0 = heads(first, x0c_td), heads(first, x0_td)
    x1c_td, x1_td = x0c_td + out(first, z0c).sum(1), x0_td + out(first, z0).sum(1)
    z1c, z1 = heads(second, x1c_td), heads(second, x1_td)
    clean, base = (difference(x + out(second, z).sum(1)) for x, z in ((x1c_td, z1c), (x1_td, z1)))
    grid_nhnh = path_patching(model, params, tokens_bt[:1], tokens_bt[1:], *PAIR)
    assert grid_nhnh.shape == (2, 2, 3, 2)
    expected = np.zeros((2, 2, 3, 2))
    for j in range(2):
        change_td = (out(first, z0c) - out(first, z0))[:, j]
        moved = heads(second, x1_td + change_td)
        for r in range(2):
            z = z1.copy()
            z[:, r] = moved[:, r]
            expected[0, j, 1, r] = difference(x1_td + out(second, z).sum(1)) - base
        x2_td = x1_td + out(second, z1).sum(1)
        expected[0, j, 2, 0] = difference(x2_td + change_td) - base
        expected[1, j, 2, 0] = difference(x2_td + (out(second, z1c) - out(second, z1))[:, j]) - base
    scale = 1e-4 * np.abs(expected / (clean - base)).max()
    np.testing.assert_allclose(grid_nhnh, expected / (clean - base), atol=scale, rtol=1e-3)
    assert np.abs(grid_nhnh[0, :, 1]).min() > 0


@pytest.mark.thorough
def test_all_other_sublayers_are_frozen(rng):
    """The same with the outputs of all sublayers between sender and receiver set to corrupted values."""
    model, params, tokens_bt = make(
        rng, num_layers=3, use_bias=True, position="rope", parallel_sublayers=True
    )
    clean_1t, corrupted_1t = tokens_bt[:1], tokens_bt[1:]
    grid_nhnh = path_patching(model, params, clean_1t, corrupted_1t, *PAIR)
    sites = ("blocks/*/attention/output/input", "blocks/*/feed_forward")
    ours, base = (record(model, params, x, *sites) for x in (clean_1t, corrupted_1t))
    freeze = [patch(path, base) for path in base]
    (z,) = (path for path in base if path == "blocks/0/attention/output/input")

    def difference(*edits):
        v = logits(model, params, corrupted_1t, *edits)[0, -1]
        return float(v[PAIR[0]] - v[PAIR[1]])

    with Interventions(*freeze, patch(z, ours, heads=1)):
        moved = record(model, params, corrupted_1t, "blocks/2/attention/*")
    names = ("query", "key", "value")
    edits = [patch(f"blocks/2/attention/{name}", moved, heads=0) for name in names]
    clean = logits(model, params, clean_1t)[0, -1]
    expected = (difference(*edits) - difference()) / (float(clean[3] - clean[7]) - difference())
    np.testing.assert_allclose(grid_nhnh[0, 1, 2, 0], expected, atol=2e-4, rtol=1e-3)


@pytest.mark.thorough
def test_a_table_has_later_heads_and_the_logits_as_columns(rng):
    subject = subject_of(rng)
    shown = table(subject)
    assert shown.rows == ["0.0", "0.1", "1.0", "1.1"] and shown.columns == ["1.0", "1.1", "logits"]
    assert (shown.values_rc[2:, :2] == 0).all() and (shown.values_rc[:, 2] != 0).all()
    model, params, tokens_bt = make(rng, norm_placement="sandwich")
    with pytest.raises(UserError, match=r"^path_patching: model.norm_placement: 'sandwich'; expected 'pre'"):
        path_patching(model, params, tokens_bt[:1], tokens_bt[1:], *PAIR)
