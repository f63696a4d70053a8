"""Attention layers in float64 NumPy, as the papers write them: one sequence, one head at a time.

Of the library it knows only the names of parameters and of config keys `c`, so that it can be wrong only by
itself.
"""

import math
from typing import Any

import numpy as np


def attention(c: Any, p: Any, x_td, sources, at_t, at_s, allowed_ts, causal: bool = True) -> np.ndarray:
    """The queries x at the positions `at_t` attend to the keys at `at_s`: (t, d) -> (t, d). Keys are made of
    `sources`, pairs of the parameters and the vectors (s_i, d), one after another."""
    attend = {"multi_head": multi_head, "latent": latent, "plain": plain}[c.mixer]
    return attend(c, p, x_td, sources, Scores(c, p, at_t, at_s, allowed_ts, causal))


def multi_head(c: Any, p: Any, x_td, sources, scores: "Scores") -> np.ndarray:
    """sum_h softmax(Q_h K_g^T / sqrt(k)) V_g W_h, g = floor(h G / H) (Vaswani et al. 2017, 3.2.2; Ainslie et
    al. 2023), with RMSNorm of queries and keys if `qk_norm` (Dehghani et al. 2023)."""
    groups, out = c.num_heads // (c.num_kv_heads or c.num_heads), 0.0
    if c.qk_norm and c.qk_norm_joint:
        return of_joint_heads(c, p, x_td, sources, scores)
    for h in range(c.num_heads):
        g, q = h // groups, linear(p["query"], x_td, h)
        keys = [(own, linear(own["key"], y_sd, g)) for own, y_sd in sources]
        if c.qk_norm:
            q, keys = rms_norm(p["query_norm"], q), [(own, rms_norm(own["key_norm"], k)) for own, k in keys]
        v = np.concatenate([linear(own["value"], y_sd, g) + added(own, g) for own, y_sd in sources])
        q, k = scores.rotated(q, np.concatenate([k for _, k in keys]))
        scale = c.attention_scale or q.shape[1] ** -0.5  # Raffel et al. 2020 have 1
        out = out + scores.attend(h, q, k, v, scale) @ p["output"]["kernel"][h]
    return out + p["output"].get("bias", 0.0)


def of_joint_heads(c: Any, p: Any, x_td, sources, scores: "Scores") -> np.ndarray:
    """With RMSNorm of all heads at once: Q / rms(Q) with Q (t, h k), and K the same (OLMo Team 2025)."""

    def heads(own, name, y_td):
        y_tm = np.concatenate([linear(own[name], y_td, h) for h in range(own[name]["kernel"].shape[1])], 1)
        normal_tm = rms_norm(own[f"{name}_norm"], y_tm)
        return np.split(normal_tm, own[name]["kernel"].shape[1], axis=1)

    (own, y_sd), out = sources[-1], 0.0
    queries, keys = heads(p, "query", x_td), heads(own, "key", y_sd)
    for h, q in enumerate(queries):
        g = h * len(keys) // len(queries)
        q, k = scores.rotated(q, keys[g])
        v = linear(own["value"], y_sd, g)
        out = out + scores.attend(h, q, k, v, q.shape[1] ** -0.5) @ p["output"]["kernel"][h]
    return out + p["output"].get("bias", 0.0)


def added(p: Any, g: int) -> Any:
    """What a value embedding adds to the values of a head."""
    return p["added"][:, g] if "added" in p else 0.0


def latent(c: Any, p: Any, x_td, sources, scores: "Scores") -> np.ndarray:
    """c = RMSNorm(W^D y), k_h = [W_h^UK c; rotate(W^R y)], v_h = W_h^UV c, q_h = [W_h^Q x; rotate(W_h^QR x)],
    scores q . k / sqrt(width of k): DeepSeek-AI 2024 (DeepSeek-V2), equations 9 to 19, nothing absorbed."""
    latents = np.concatenate([rms_norm(own["latent_norm"], linear(own["latent"], y)) for own, y in sources])
    rotary_key = np.concatenate([linear(own["rotary_key"], y_sd) for own, y_sd in sources])
    out = 0.0
    for h in range(c.num_heads):
        content = linear(p["query"], x_td, h), latents @ p["key_up"]["kernel"][:, h]
        rotary = scores.rotated(linear(p["rotary_query"], x_td, h), rotary_key)
        q, k = (np.concatenate(parts, axis=1) for parts in zip(content, rotary, strict=True))
        v = latents @ p["value_up"]["kernel"][:, h]
        out = out + scores.attend(h, q, k, v, q.shape[1] ** -0.5) @ p["output"]["kernel"][h]
    return out + p["output"].get("bias", 0.0)


def plain(c: Any, p: Any, x_td, sources, scores: "Scores") -> np.ndarray:
    """softmax(X Y^T / sqrt(d)) Y, without parameters."""
    y_sd = np.concatenate([y_sd for _, y_sd in sources])
    q, k = scores.rotated(x_td, y_sd)
    return scores.attend(0, q, k, y_sd, x_td.shape[1] ** -0.5)


class Scores:
    """What positions, the mask, the cap and the sinks do to the scores of each head of a layer."""

    def __init__(self, c: Any, p: Any, at_t, at_s, allowed_ts, causal: bool) -> None:
        self.c, self.p, self.at_t, self.at_s, self.causal = c, p.get("position", {}), at_t, at_s, causal
        self.allowed_ts, self.sinks_h = allowed_ts, p.get("sinks")
        self.heads = 1 if c.mixer == "plain" else c.num_heads
        self.distance_ts = at_t[:, None] - at_s

    def rotated(self, q_tk, k_sk) -> tuple[np.ndarray, np.ndarray]:
        """Queries and keys as complex numbers, half a head apart, times e^(i position frequency) (Su et al.
        2021, section 3.2)."""
        if self.c.position != "rope":
            return q_tk, k_sk
        half = round(q_tk.shape[1] * self.c.position_fraction) // 2  # of a head's first dimensions
        frequency = self.c.position_base ** (-np.arange(half) / half)

        def turned(x, at):
            z = (x[:, :half] + 1j * x[:, half : 2 * half]) * np.exp(1j * at[:, None] * frequency)
            return np.concatenate([z.real, z.imag, x[:, 2 * half :]], axis=1)

        return turned(q_tk, self.at_t), turned(k_sk, self.at_s)

    def attend(self, h: int, q_tk, k_sk, v_sk, scale: float) -> np.ndarray:
        """softmax(cap(score)) V, with exp(sink) among the terms of the softmax's sum (Xiao et al. 2024)."""
        scores_ts, cap = self.of_head(h, q_tk, k_sk, scale), self.c.soft_cap
        scores_ts = cap * np.tanh(scores_ts / cap) if cap else scores_ts
        e_ts = np.exp(np.where(self.allowed_ts, scores_ts, -np.inf))
        total_t1 = e_ts.sum(axis=1, keepdims=True)
        total_t1 = total_t1 if self.sinks_h is None else total_t1 + np.exp(self.sinks_h[h])
        weights_ts = e_ts / np.where(total_t1 == 0, 1, total_t1)
        if self.c.position == "shaw":
            return np.einsum("ts,tsk->tk", weights_ts, v_sk[None] + self.p["value"][self.clipped_ts])
        return weights_ts @ v_sk

    def of_head(self, h: int, q_tk, k_sk, scale: float) -> np.ndarray:
        """The scores before the cap, by the formula of each encoding."""
        name, p = self.c.position, self.p
        if name == "alibi":  # Press et al. 2022, section 3, for a power of two heads
            return scale * q_tk @ k_sk.T - 2 ** (-8 * (h + 1) / self.heads) * abs(self.distance_ts)
        if name in ("t5", "learned_t5"):  # Raffel et al. 2020, section 2.1
            return scale * q_tk @ k_sk.T + p["table"][self.bucket_ts(len(p["table"])), h]
        if name == "shaw":  # Shaw et al. 2018, equation 4
            return scale * np.einsum("tk,tsk->ts", q_tk, k_sk[None] + p["key"][self.clipped_ts])
        if name == "transformer_xl":  # Dai et al. 2019, section 3.3
            width = len(p["kernel"])
            r_tsf = sinusoid(self.distance_ts, width, self.c.position_base) @ p["kernel"][:, h]
            by_distance = np.einsum("tk,tsk->ts", q_tk + p["position_bias"][h], r_tsf)
            return scale * ((q_tk + p["content_bias"][h]) @ k_sk.T + by_distance)
        return scale * q_tk @ k_sk.T

    @property
    def clipped_ts(self) -> np.ndarray:
        """The row of Shaw et al.'s tables for each query and key: clip(s - t, -r, r) + r."""
        r = len(self.p["key"]) // 2
        return np.clip(-self.distance_ts, -r, r) + r

    def bucket_ts(self, buckets: int) -> np.ndarray:
        """T5's bucket of each distance, as its authors' code has it."""
        side = buckets if self.causal else buckets // 2
        distance_ts = np.maximum(self.distance_ts, 0) if self.causal else abs(self.distance_ts)
        exact, longest = side // 2, self.c.position_distance or 128
        far = np.log(np.maximum(distance_ts, 1) / exact) / math.log(longest / exact) * (side - exact)
        far = np.minimum(exact + np.floor(far + 1e-9).astype(int), side - 1)
        later = 0 if self.causal else np.where(self.distance_ts < 0, side, 0)
        return np.where(distance_ts < exact, distance_ts, far) + later


def linear(p: Any, x_td, head: int | None = None) -> np.ndarray:
    """x W + b, of one head if the kernel is (d, h, k)."""
    kernel, bias = p["kernel"], p.get("bias", np.zeros(p["kernel"].shape[1:]))
    return x_td @ kernel + bias if head is None else x_td @ kernel[:, head] + bias[head]


def rms_norm(p: Any, x_td, epsilon: float = 1e-6) -> np.ndarray:
    """scale x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""
    return p["scale"] * x_td / np.sqrt(np.mean(x_td**2, axis=-1, keepdims=True) + epsilon)


def layer_norm(p: Any, x_td, epsilon: float = 1e-6) -> np.ndarray:
    """scale (x - mean) / sqrt(variance + epsilon) + bias (Ba et al. 2016)."""
    centred = x_td - x_td.mean(axis=-1, keepdims=True)
    spread = np.sqrt(x_td.var(axis=-1, keepdims=True) + epsilon)
    return p["scale"] * centred / spread + p.get("bias", 0.0)


def sinusoid(at, width: int, base: float) -> np.ndarray:
    """sin and cos of at / base^(2 i / width), in turn (Vaswani et al. 2017, section 3.5)."""
    angle = np.asarray(at)[..., None] / base ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(*np.shape(at), -1)[..., :width]
