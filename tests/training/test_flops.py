import jax
import jax.numpy as jnp
import pytest

from transformer.training.flops import matmul_parameters, peak_flops, train_flops_per_token


def test_formula_matches_what_the_compiler_counts(rng):
    """One layer written out, without the softmax: XLA's own count of forward and backward."""
    b, t, d, h, k, f, v = 2, *(int(n) for n in rng.integers(8, 40, size=6))
    shapes = {
        "blocks": {
            "attention": {name: {"kernel": (1, d, h, k)} for name in ("query", "key", "value")}
            | {"output": {"kernel": (1, h, k, d)}},
            "feed_forward": {"up": {"kernel": (1, d, f)}, "down": {"kernel": (1, f, d)}},
        },
        "unembedding": {"kernel": (d, v)},
        "embedding": {"table": (v, d)},
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    params = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=is_shape)

    def output(params, x):
        w = jax.tree.map(lambda p: p[0], params["blocks"])
        q, key, value = (
            jnp.einsum("btd,dhk->bthk", x, w["attention"][n]["kernel"]) for n in ("query", "key", "value")
        )
        mixed = jnp.einsum("bhts,bshk->bthk", jnp.einsum("bthk,bshk->bhts", q, key), value)
        x = jnp.einsum("bthk,hkd->btd", mixed, w["attention"]["output"]["kernel"])
        x = x @ w["feed_forward"]["up"]["kernel"] @ w["feed_forward"]["down"]["kernel"]
        return x @ params["unembedding"]["kernel"]

    def step(params, x, cotangent):
        return jax.vjp(output, params, x)[1](cotangent)

    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    compiled = jax.jit(step).lower(params, struct(b, t, d), struct(b, t, v)).compile()
    counted = compiled.cost_analysis()["flops"] / (b * t)
    # The output itself is not computed here, only its gradients: one product of the unembedding less.
    wanted = train_flops_per_token(matmul_parameters(params), 1, h * k, t) - 2 * d * v
    assert counted == pytest.approx(wanted, rel=0.02)


def test_a_tied_table_counts_and_a_looked_up_one_does_not():
    tied = {"embedding": {"table": jnp.zeros((7, 3))}, "blocks": {"norm": {"scale": jnp.zeros(3)}}}
    assert matmul_parameters(tied) == 21
    assert matmul_parameters({**tied, "unembedding": {"kernel": jnp.zeros((3, 7))}}) == 21
    assert matmul_parameters({**tied, "blocks": {"up": {"kernel": jnp.zeros((2, 3, 4))}}}) == 21 + 24


def test_devices_are_found_by_the_longest_beginning():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-40GB", "float32") == 156e12
    assert peak_flops("TPU v5 lite", "float32") == 197e12
    assert peak_flops("TPU v5", "bfloat16") == 459e12
    assert peak_flops(jax.devices("cpu")[0].device_kind, "float32") is None
