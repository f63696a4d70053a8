"""OLMo 2 (OLMo Team 2025): Llama with norms of what sublayers return, and of all heads at once."""

from transformer.interop.attention_keys import ROPE
from transformer.interop.families import llama
from transformer.interop.family import Key

OLMO2 = llama.decoder(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    keys=(
        *llama.sizes(rms_norm_eps=1e-5),
        *llama.head_keys(llama.same_as_query_heads, llama.default_head_width),
        llama.SWIGLU,
        llama.TIED,
        Key("qk_norm_epsilon", "rms_norm_eps", 1e-5),
    ),
    fixed=llama.FIXED | {"norm_placement": "output", "qk_norm": True, "qk_norm_joint": True},
    assumed={"attention_bias": False},
    read=llama.read,
    write=llama.write,
    further=llama.ROPES,
    written=ROPE,
)
