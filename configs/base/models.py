"""Every key of a `model` group, with its default and its meaning."""

from ml_collections import ConfigDict


def stack() -> ConfigDict:
    """A stack of Transformer blocks, whatever goes into it."""
    model = ConfigDict()
    model.d_model = 256  # width of the residual stream
    model.num_layers = 4  # blocks of attention and feed-forward
    model.num_heads = 4  # query heads of each attention
    model.num_kv_heads = 0  # key/value heads, shared by groups of query heads; 0: as many as num_heads
    model.head_dim = 0  # width of a head; 0: d_model / num_heads
    model.d_ff = 1024  # hidden width of the feed-forward
    model.feed_forward = "gelu"  # relu, gelu, swiglu or geglu (the last two have a third matrix)
    model.norm = "layer"  # layer (mean and variance) or rms (root mean square alone)
    model.norm_placement = "pre"  # pre, post (the original) or sandwich (both)
    model.norm_epsilon = 1e-6  # added to the variance
    model.attention = "multi_head"  # multi_head, latent (a short cache), or plain (without parameters)
    model.latent_dim = 0  # what latent attention keeps of a token, with half a head; 0: two heads' width
    model.qk_norm = False  # divide queries and keys by their root mean square
    model.soft_cap = 0.0  # bound of attention scores, which are c tanh(score / c); 0: none
    model.sinks = False  # a learned score in each head for seeing nothing
    model.pattern = "full"  # who sees whom: full, window, strided, fixed, global (and a window) or blocks
    model.pattern_size = 256  # nearest keys of window and global, the stride, or keys of a block
    model.pattern_extra = 1  # dilation of a window, keys that sum up a block, global tokens, or drawn blocks
    model.full_every = 0  # every so many layers one sees everything, whatever the pattern; 0: none does
    model.position = "rope"  # a key of POSITIONS in transformer/layers/positions; none is one
    model.position_base = 10000.0  # longest wavelength / 2 pi, of sinusoidal and rope
    model.position_scaling = "none"  # rope for longer texts than were trained on: none, linear, ntk, yarn
    model.position_factor = 1.0  # how much longer; 1 without scaling
    model.position_distance = 0  # distance from which on all are one, of t5 and shaw; 0: 128 and 16
    model.full_position = ""  # the position encoding of the layers that see everything; "": the same
    model.max_length = 2048  # longest sequence, prompt and completion together
    model.use_bias = False  # biases in projections, feed-forward and norms
    model.attention_bias = True  # with use_bias also in attention's projections (the original has none there)
    model.embedding_dropout = 0.0  # of the sum of embeddings and positions
    model.attention_dropout = 0.0  # of the attention weights
    model.dropout = 0.0  # of each sublayer's output
    model.dtype = "float32"  # of the computation: float32 or bfloat16; parameters are float32 always
    model.kernel = "auto"  # how attention is computed: a key of KERNELS, or auto: the fastest for the shape
    model.scan_layers = False  # compile one block and loop over it: compiles sooner, runs slower on CPU
    model.lora_rank = 0  # of a correction of queries and values, to tune instead of them; 0: none
    model.lora_alpha = 16.0  # what that correction is multiplied by, over its rank
    model.remat = "none"  # what is computed anew to save memory: a key of REMAT, transformer/layers/stack.py
    return model


def decoder() -> ConfigDict:
    """A decoder-only Transformer: the keys of a stack, and those of its embeddings."""
    model = stack()
    model.tie_embeddings = True  # one matrix for the embedding and the output
    model.scale_embeddings = False  # multiply embeddings by sqrt(d_model), as the original does
    model.embedding_rms = 0.0  # root mean square of embeddings and positions at first; 0: as they are drawn
    model.position_rms = 0.0  # the same of learned and sinusoidal positions alone; 0: that of embeddings
    model.vocab_multiple = 128  # the vocabulary is padded to a multiple, for the hardware and the mesh
    return model


def encoder() -> ConfigDict:
    """An encoder of text: the keys of a stack, and those of its embeddings."""
    model = stack()
    model.scale_embeddings = False  # multiply embeddings by sqrt(d_model), as the original does
    model.embedding_rms = 0.0  # root mean square of embeddings and positions at first; 0: as they are drawn
    model.position_rms = 0.0  # the same of learned and sinusoidal positions alone; 0: that of embeddings
    model.vocab_multiple = 128  # the vocabulary is padded to a multiple, for the hardware and the mesh
    model.num_token_types = 2  # embeddings that tell the first text of a pair from the second; 1: none
    model.embedding_norm = False  # normalise the sum of embeddings before the first block, as BERT does
    return model


def classifier() -> ConfigDict:
    """An encoder with a projection to classes."""
    model = encoder()
    model.pooling = "mean"  # what of a text is classified: mean or max of its tokens, or cls, its first one
    model.head_dropout = 0.0  # of the vector that is classified
    return model


def transformer_xl() -> ConfigDict:
    """A decoder that remembers the segments before."""
    model = decoder()
    model.position = "transformer_xl"  # or rope, alibi, t5, shaw, none: one that counts from no beginning
    model.memory_length = 256  # tokens of the segments before that are remembered
    model.evaluation_memory = 0  # the same in evaluation; 0: as many
    return model


def encoder_decoder() -> ConfigDict:
    """An encoder-decoder Transformer: the keys of a decoder, for both stacks, and how they differ."""
    model = decoder()
    model.num_encoder_layers = 0  # blocks of the encoder; 0: as many as num_layers, which are the decoder's
    model.share_embeddings = True  # one matrix embeds the source and the target
    return model


def recurrent() -> ConfigDict:
    """A recurrent encoder-decoder with or without attention."""
    model = ConfigDict()
    model.d_model = 256  # width of embeddings and states; each of an encoder's two directions has half
    model.num_layers = 2  # layers of the decoder
    model.num_encoder_layers = 0  # layers of the encoder; 0: as many
    model.cell = "gru"  # gru or lstm
    model.bidirectional = True  # whether the encoder reads from both ends
    model.attention = "additive"  # none (all is in one vector), dot, or additive: v^T tanh(W s + U h)
    model.dropout = 0.0  # of embeddings and of each layer's output
    model.tie_embeddings = True  # one matrix for the target's embedding and the output
    model.share_embeddings = True  # one matrix embeds the source and the target
    model.dtype = "float32"  # of the computation: float32 or bfloat16; parameters are float32 always
    model.vocab_multiple = 128  # the vocabulary is padded to a multiple, for the hardware and the mesh
    return model


def vision_transformer() -> ConfigDict:
    """A stack over the patches of an image, with a projection to classes."""
    model = stack()
    model.position = "learned"  # none, sinusoidal, learned or rope, of the patches row by row
    model.max_length = 256  # most patches of an image, [CLS] among them
    model.patch_size = 2  # pixels of a patch's side
    model.pooling = "mean"  # what of an image is classified: mean or max of its patches, or a cls before them
    model.head_dropout = 0.0  # of the vector that is classified
    model.pixel_mean = 127.5  # subtracted from every pixel (0 to 255)
    model.pixel_scale = 127.5  # what pixels are divided by after that
    return model


def skip_gram() -> ConfigDict:
    """Two tables: one vector of a word for itself, and one for when it stands around others."""
    model = ConfigDict()
    model.d_model = 128  # width of a vector
    model.dtype = "float32"  # of the computation: float32 or bfloat16; parameters are float32 always
    model.vocab_multiple = 128  # the vocabulary is padded to a multiple, for the hardware and the mesh
    return model
