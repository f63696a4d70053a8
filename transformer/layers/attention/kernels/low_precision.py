"""Products of attention in less than float32, with a backward pass of their own."""

import functools

import jax
import jax.numpy as jnp

from transformer.layers.dot import by_rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def low_product(form, x, y):
    """The einsum of x and y, in float32, with operands of the type of y.

    So are those of both products of the backward pass: autodiff would multiply the float32 gradient.
    """
    return _low_product_forward(form, x, y)[0]


def _low_product_forward(form, x, y):
    low_x = x.astype(y.dtype)
    return _multiply(form, low_x, y), (low_x, y, jnp.zeros(0, x.dtype))


def _low_product_backward(form, residuals, dz):
    x, y, like_x = residuals
    (of_x, of_y), of_z = form.split("->")[0].split(","), form.split("->")[1]
    dz = dz.astype(y.dtype)
    dx = _multiply(f"{of_z},{of_y}->{of_x}", dz, y)
    if of_z.endswith("s"):
        dy = _multiply(f"bgsp,{of_x}->{of_y}", dz.swapaxes(2, 3), x)
    else:
        dy = _multiply(f"bgsp,{of_z}->{of_y}", x.swapaxes(2, 3), dz)
    return dx.astype(like_x.dtype), dy.astype(y.dtype)


def _multiply(form, x, y):
    return jnp.einsum(form, by_rows(x), by_rows(y), preferred_element_type=jnp.float32)


low_product.defvjp(_low_product_forward, _low_product_backward)
