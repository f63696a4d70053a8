"""Every key, with its default and its meaning; a run's own file says only what differs.

A key is changed for one run on the command line, `--config.model.num_layers=4`. Lengths are in tokens,
`batch_size` in sequences over all devices, and 0 or "" switches an optional part off.
"""

from ml_collections import ConfigDict


def run(experiment: str) -> ConfigDict:
    """The keys that every run has."""
    config = ConfigDict()
    config.experiment = experiment  # which objective: a key of experiments.EXPERIMENTS
    config.seed = 0  # of the initial parameters, of dropout, of the order of the data and what is drawn of it
    config.initialize_from = ""  # the folder of a run to begin with, its parameters and tokenizer; "": none
    config.initialize_strict = True  # whether nothing but heads may be missing there
    config.optimizer = optimizer()
    config.train = train()
    config.parallel = parallel()
    return config


def language_modeling() -> ConfigDict:
    """All keys of a causal language model."""
    config = run("language_modeling")
    config.model = decoder()
    config.data = text()
    config.loss = loss()
    config.sample = sample()
    return config


def sequence_to_sequence() -> ConfigDict:
    """All keys of an encoder-decoder, for translation, summarisation and other pairs of texts."""
    config = run("sequence_to_sequence")
    config.model = encoder_decoder()
    config.data = pairs()
    config.loss = loss()
    config.generate = generate()
    return config


def recurrent_sequence_to_sequence() -> ConfigDict:
    """All keys of a recurrent encoder-decoder: only the model differs from a Transformer's."""
    config = sequence_to_sequence()
    config.experiment = "recurrent_sequence_to_sequence"  # which objective: a key of experiments.EXPERIMENTS
    config.model = recurrent()
    return config


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


def text_to_text() -> ConfigDict:
    """All keys of a decoder that reads a source and goes on with its target."""
    config = sequence_to_sequence()
    config.experiment = "text_to_text"  # which objective: a key of experiments.EXPERIMENTS
    config.model = decoder()
    config.data.loss_on = "target"  # which tokens count: those of the target, or all, the source's too
    return config


def masked_lm() -> ConfigDict:
    """All keys of an encoder's pre-training."""
    config = run("masked_lm")
    config.model = encoder()
    config.data = masked()
    config.loss = loss()
    return config


def masked() -> ConfigDict:
    """Documents of text in rows, with tokens to guess."""
    data = text()
    data.sequence_length = 128  # tokens a row
    data.next_sentence = True  # rows of two texts each, half of them neighbours, to be told from the others
    data.masking = "token"  # what is masked at once: a token, a whole word, or a span of up to ten words
    data.masked_share = 0.15  # of all tokens, how many are to be guessed
    return data


def classification() -> ConfigDict:
    """All keys of a classifier of texts."""
    config = run("classification")
    config.model = classifier()
    config.data = labelled()
    config.loss = label_loss()
    return config


def encoder() -> ConfigDict:
    """An encoder of text: the keys of a decoder, and what is only an encoder's."""
    model = decoder()
    model.num_token_types = 2  # embeddings that tell the first text of a pair from the second; 1: none
    model.embedding_norm = False  # normalise the sum of embeddings before the first block, as BERT does
    return model


def classifier() -> ConfigDict:
    """An encoder with a projection to classes."""
    model = encoder()
    model.pooling = "mean"  # what of a text is classified: mean or max of its tokens, or cls, its first one
    model.head_dropout = 0.0  # of the vector that is classified
    return model


def labelled() -> ConfigDict:
    """Texts with labels, several of them packed into each row."""
    data = ConfigDict()
    data.source = "snippets"  # or csv:GLOB, tsv:GLOB, jsonl:GLOB, tfds:NAME
    data.text_field = "text"  # which column or field is read
    data.second_field = ""  # for pairs of texts the second one's
    data.label_field = "label"  # which one holds the label, a name or a number
    data.validation_source = ""  # "": a part of `source`
    data.tokenizer = "bpe"  # bytes, characters, bpe (trained on the training text), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them
    data.sequence_length = 256  # tokens a row
    data.too_long = "cut"  # what is done with a text longer than a row: cut, skip (both counted) or refuse
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def span_extraction() -> ConfigDict:
    """All keys of an encoder that answers questions by a piece of a text."""
    config = run("span_extraction")
    config.model = encoder()
    config.data = questions()
    config.answer = answer()
    return config


def questions() -> ConfigDict:
    """Questions with texts to answer them from, read in windows, several of them packed into each row."""
    data = ConfigDict()
    data.source = "function_questions"  # or squad:GLOB (SQuAD's own files), jsonl:GLOB, tfds:squad
    data.question_field = "question"  # which field is the question
    data.context_field = "context"  # which one is the text that has the answer
    data.answers_field = "answers"  # which one has {"text": [...], "answer_start": [...]}, in characters
    data.validation_source = ""  # "": a part of `source`
    data.tokenizer = "bpe"  # bytes, characters, bpe (trained on the training text), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them
    data.sequence_length = 256  # tokens a row, and most of a window with its question
    data.question_length = 48  # tokens of a question; what is longer is cut, and counted
    data.stride = 128  # a text that is longer than a window is read in several, this many tokens apart
    data.misplaced = "refuse"  # an answer that is not at its answer_start: refuse, or skip (and count) it
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def answer() -> ConfigDict:
    """How an answer is chosen, and how many are measured."""
    config = ConfigDict()
    config.max_tokens = 30  # longest answer
    config.n_best = 1  # how many answers predict writes to each question, the best ones
    config.allow_none = False  # whether an answer may be empty, where all windows say that they have none
    config.examples = 500  # validation questions that are answered for exact match and F1; 0: all
    return config


def vision() -> ConfigDict:
    """All keys of a classifier of images."""
    config = run("vision")
    config.model = vision_transformer()
    config.data = images()
    config.loss = label_loss()
    return config


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


def images() -> ConfigDict:
    """Images with labels."""
    data = ConfigDict()
    data.source = "digits"  # or folder:PATH (each sub-folder a class of PNG and JPEG files), tfds:NAME
    data.validation_source = ""  # "": a part of `source`
    data.image_field = "image"  # where the image is, in tfds
    data.label_field = "label"  # where its class is, in tfds
    data.image_size = 8  # pixels of a side: of each image the middle square is scaled to it
    data.channels = 1  # 1: grey; 3: red, green and blue
    data.shift = 0  # training images are moved at random by up to so many pixels either way
    data.flip = False  # mirror every other training image left to right
    data.evaluate_on = "validation"  # which split is measured; test: once, when all is decided
    data.cache_dir = ""  # prepared images; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def label_loss() -> ConfigDict:
    """Cross-entropy over labels."""
    config = ConfigDict()
    config.label_smoothing = 0.0  # share of the label's mass that is spread over all labels
    config.balance = False  # weigh examples so that every label counts the same, however often it occurs
    return config


def encoder_decoder() -> ConfigDict:
    """An encoder-decoder Transformer: the keys of a decoder, for both stacks, and how they differ."""
    model = decoder()
    model.num_encoder_layers = 0  # blocks of the encoder; 0: as many as num_layers, which are the decoder's
    model.share_embeddings = True  # one matrix embeds the source and the target
    return model


def decoder() -> ConfigDict:
    """A decoder-only Transformer: the keys of a stack, and those of its embeddings."""
    model = stack()
    model.tie_embeddings = True  # one matrix for the embedding and the output
    model.scale_embeddings = False  # multiply embeddings by sqrt(d_model), as the original does
    model.vocab_multiple = 128  # the vocabulary is padded to a multiple, for the hardware and the mesh
    return model


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
    model.position = "rope"  # none, sinusoidal, learned or rope (POSITIONS in transformer/layers/positions)
    model.position_base = 10000.0  # longest wavelength / 2 pi, of sinusoidal and rope
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
    model.remat = "none"  # recompute in the backward pass to save memory: none, full, dots (all but products)
    return model


def text() -> ConfigDict:
    """Documents of text, packed into rows of `sequence_length` tokens."""
    data = ConfigDict()
    data.source = "stdlib"  # stdlib (Python's own source text), text:GLOB, jsonl:GLOB or tfds:NAME
    data.text_field = "text"  # where the text is, in jsonl and tfds
    data.document = "file"  # what one document of text: is: file, paragraph or line
    data.validation_source = ""  # "": a part of `source`
    data.tokenizer = "bpe"  # bytes, characters, bpe or words (of the training text), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them, or most words
    data.sequence_length = 256  # tokens a row
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def pairs() -> ConfigDict:
    """Pairs of texts, several of them packed into each row."""
    data = ConfigDict()
    data.source = "written_forms"  # or tsv:GLOB, aligned:SOURCE,TARGET (two files), jsonl:GLOB, tfds:NAME
    data.source_field = "source"  # which column, field or language is read; several: question,context
    data.target_field = "target"  # which one is to be written
    data.validation_source = ""  # "": a part of `source`
    data.tokenizer = "bpe"  # of both sides: bytes, characters, bpe (trained on both), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them
    data.source_length = 128  # tokens of sources a row
    data.target_length = 128  # tokens of targets a row
    data.too_long = "cut"  # what is done with a pair longer than a row: cut, skip (both counted) or refuse
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def word_embedding() -> ConfigDict:
    """All keys of word vectors by skip-grams with negative sampling."""
    config = run("word_embedding")
    config.model = skip_gram()
    config.data = skip_grams()
    config.loss = negative_sampling()
    return config


def skip_gram() -> ConfigDict:
    """Two tables: one vector of a word for itself, and one for when it stands around others."""
    model = ConfigDict()
    model.d_model = 128  # width of a vector
    model.dtype = "float32"  # of the computation: float32 or bfloat16; parameters are float32 always
    model.vocab_multiple = 128  # the vocabulary is padded to a multiple, for the hardware and the mesh
    return model


def skip_grams() -> ConfigDict:
    """Documents of text, cut into rows of `sequence_length` words, and noise."""
    data = text()
    data.tokenizer = "words"  # words in lower case, or any other of bytes, characters, bpe, a tokenizer.json
    data.window = 5  # farthest neighbour of a word that is paired with it; each time 1, 2, ... or this far
    data.subsample = 1e-4  # words of higher frequency f stay with probability sqrt(this / f); 0: all stay
    data.noise = 64  # words drawn from count^0.75 for each row, and shared by all words of the row
    return data


def negative_sampling() -> ConfigDict:
    """Neighbours against noise."""
    config = ConfigDict()
    config.negatives = 5.0  # how many words of noise a neighbour is told from
    return config


def loss() -> ConfigDict:
    """Cross-entropy over the vocabulary."""
    config = ConfigDict()
    config.label_smoothing = 0.0  # share of the target's mass that is spread over the vocabulary
    config.z_loss = 0.0  # coefficient of (log Z)^2, which keeps logits from drifting; 0: off
    config.chunk_size = 0  # positions whose logits are held at once, to save memory; 0: all
    return config


def optimizer() -> ConfigDict:
    """An optimizer of optax with its learning rate."""
    config = ConfigDict()
    config.name = "adamw"  # any optimizer of optax, by optax's name: adam, sgd, lion, contrib.muon ...
    config.learning_rate = 1e-3  # the schedule's peak
    config.schedule = "cosine"  # constant, cosine, inverse_sqrt (the original), wsd (warm-up, stable, decay)
    config.warmup_steps = 100  # linear warm-up
    config.decay_steps = 0  # length of the decay of cosine (0: up to the last step) and wsd
    config.final_fraction = 0.1  # the learning rate that cosine and wsd end at, as a part of the peak
    config.weight_decay = 0.1  # decoupled, of matrices only
    config.clip_norm = 1.0  # longest gradient, in global norm; 0: off
    config.ema_decay = 0.0  # of a moving average of the parameters, to evaluate and predict with; 0: off
    config.layer_decay = 1.0  # of the learning rate, by every block further from the output
    config.frozen_layers = 0  # how many of the lowest blocks are not trained, nor what lies below them
    config.train_only = ""  # names of the only parameters to train: head,pooler or lora,head; "": all
    config.arguments = ConfigDict()  # of the optimizer, further ones: --config.optimizer.arguments.b2=0.95
    return config


def train() -> ConfigDict:
    """How long, and what happens on the way."""
    config = ConfigDict()
    config.steps = 1000  # updates in all
    config.batch_size = 16  # sequences a step, over all devices and microbatches
    config.evaluate_every = 0  # steps between evaluations; 0: only at the end
    config.evaluate_batches = 0  # batches of validation data; 0: all
    config.checkpoint_every = 0  # steps between checkpoints; 0: only at the end, and when stopped
    config.keep_last = 1  # how many checkpoints to keep, the newest ones
    config.average_last = 1  # evaluate and predict with the mean of so many last checkpoints' parameters
    config.keep_best = ""  # keep also the best by this metric, smaller is better ("-name": larger); "": none
    config.log_every = 10  # steps between lines of metrics.jsonl
    config.sample_every = 0  # steps between samples; 0: only at the end
    config.max_skipped = 20  # steps in a row with a gradient that is not finite, before giving up; 0: never
    config.profile_from = 10  # the step after which the profiler starts
    config.profile_steps = 0  # how many steps it records; 0: off
    return config


def parallel() -> ConfigDict:
    """How the run is spread over devices."""
    config = ConfigDict()
    config.mesh = ConfigDict()
    config.mesh.data = -1  # devices with whole copies of the parameters; -1: all that are left
    config.mesh.fsdp = 1  # devices over which parameters and batch are cut
    config.mesh.tensor = 1  # devices over which heads, hidden units and vocabulary are cut
    config.microbatches = 1  # parts of a batch, one after the other, with gradients added: saves memory
    config.rules = "default"  # logical axis -> mesh axis: a key of RULES in transformer/training/parallel.py
    return config


def sample() -> ConfigDict:
    """How text is completed; the flags of --mode=predict override these keys."""
    config = ConfigDict()
    config.prompt = "def "  # what the samples during and after training begin with
    config.max_new_tokens = 64  # longest completion
    config.temperature = 0.8  # 0: always the likeliest token
    config.top_k = 0  # sample from the k likeliest tokens; 0: from all
    config.top_p = 0.95  # sample from the likeliest tokens that hold this much of the mass; 1: from all
    config.num_samples = 1  # completions of each prompt
    return config


def generate() -> ConfigDict:
    """How a target is written: by beam search, and what is measured of it."""
    config = ConfigDict()
    config.beam_size = 4  # hypotheses kept while searching; 1: greedy
    config.length_penalty = 0.6  # power of ((5 + length) / 6) by which log-likelihoods are divided; 0: none
    config.max_new_tokens = 128  # longest target
    config.n_best = 1  # how many targets are written for each source, the best ones
    config.with_scores = False  # write each target's score and a tab before it
    config.metric = "bleu"  # measured of targets in evaluation: bleu, rouge or none
    config.examples = 200  # validation pairs that are written for it; 0: all
    return config


def choose(config: ConfigDict, preset: str, presets: dict[str, dict]) -> ConfigDict:
    """`config` with the differences of the preset that was named after the colon of `--config=file:preset`.

    Raises:
      ValueError: there is no such preset.
    """
    if preset and preset not in presets:
        raise ValueError(f"{preset!r} is no preset of it; it has {', '.join(presets)}")
    config.update(presets[preset] if preset else {})
    return config


TINY_PAIRS = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_length": 96},
    "data": {
        "source": "written_forms",
        "source_field": "source",
        "target_field": "target",
        "validation_source": "",
        "tokenizer": "bytes",
        "source_length": 48,
        "target_length": 48,
    },
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
    "generate": {"max_new_tokens": 8, "examples": 5},
}
"""What makes any encoder-decoder's run take seconds and learn nothing."""
