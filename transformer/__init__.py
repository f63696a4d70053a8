"""Transformers in JAX and Flax Linen: layers, models, data, training, decoding, evaluation.

Arrays carry their axes as a suffix, wherever the shape changes, and einsums use the same letters:

=====  ==========================  =====  =================================
b      batch                       h      query heads (num_heads)
t      query time                  g      key/value heads (num_kv_heads)
s      key time                    k      width of one head (head_dim)
d      model width (d_model)       f      hidden width of feed-forward (d_ff)
v      vocabulary                  n      layers (num_layers)
e      experts (num_experts)       c      slots of an expert (capacity)
=====  ==========================  =====  =================================
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of `launch.py`, the packages and the config files."""
