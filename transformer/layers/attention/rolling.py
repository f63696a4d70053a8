"""Rolling caches: of n slots, token j is in slot j mod n until token j + n overwrites it."""

import jax
import jax.numpy as jnp

from transformer.errors import UserError


def held(ring: int, filled: jax.Array | int) -> jax.Array:
    """The index of the token in each of `ring` slots, (s,), after `filled` tokens; below 0: none."""
    last = filled - 1
    return last - (last - jnp.arange(ring)) % ring


def held_after(ring: int, start: jax.Array | int, t: int, reach: int | None) -> jax.Array:
    """`held` after writing t tokens from `start` on, whose queries attend to at most the last `reach` keys.

    Raises:
      UserError: the t tokens would overwrite keys that some of them attend to.
    """
    most = ring - (reach or ring) + 1
    if t > most:
        raise UserError(f"{t} tokens at once; a ring of {ring} slots takes {most} of this pattern")
    return held(ring, start + t)


def keep_last(x_bgsk: jax.Array, ring: int, filled: int) -> jax.Array:
    """The last `ring` of `filled` tokens, each in its slot; with empty slots if there are fewer."""
    slots = x_bgsk.shape[2]
    if ring < slots:
        return x_bgsk[:, :, held(ring, filled)]
    return jnp.pad(x_bgsk, ((0, 0), (0, 0), (0, ring - slots), (0, 0)))


def write(old_bgsk: jax.Array, new_bgsk: jax.Array, start: jax.Array | int) -> jax.Array:
    """The array with new tokens in the slots of the tokens from `start` on."""
    (*_, ring, _), (*_, t, _) = old_bgsk.shape, new_bgsk.shape
    new_bgsk = new_bgsk.astype(old_bgsk.dtype)
    if t > 1:
        return old_bgsk.at[:, :, (start + jnp.arange(t)) % ring].set(new_bgsk)
    return jax.lax.dynamic_update_slice_in_dim(old_bgsk, new_bgsk, start % ring, axis=2)
