"""Every key of a `data` group, with its default and its meaning. Lengths are in tokens."""

from ml_collections import ConfigDict


def text() -> ConfigDict:
    """Documents of text, packed into rows of `sequence_length` tokens."""
    data = ConfigDict()
    data.source = "stdlib"  # stdlib (Python's own source text), text:GLOB, jsonl:GLOB or tfds:NAME
    data.text_field = "text"  # where the text is, in jsonl and tfds
    data.document = "file"  # what one document of text: is: file, paragraph or line
    data.validation_source = ""  # "": a part of `source`
    data.split_by = ""  # fields: records of a file alike in them are in one split; "": what is read
    data.tokenizer = "bpe"  # bytes, characters, bpe or words (of the training text), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them, or most words
    data.sequence_length = 256  # tokens a row
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def masked() -> ConfigDict:
    """Documents of text in rows, with tokens to guess."""
    data = text()
    data.sequence_length = 128  # tokens a row
    data.next_sentence = True  # rows of two texts each, half of them neighbours, to be told from the others
    data.masking = "token"  # what is masked at once: a token, a whole word, or a span of up to ten words
    data.masked_share = 0.15  # of all tokens, how many are to be guessed
    return data


def skip_grams() -> ConfigDict:
    """Documents of text, cut into rows of `sequence_length` words, and noise."""
    data = text()
    data.tokenizer = "words"  # words in lower case, or any other of bytes, characters, bpe, a tokenizer.json
    data.window = 5  # farthest neighbour of a word that is paired with it; each time 1, 2, ... or this far
    data.subsample = 1e-4  # words of higher frequency f stay with probability sqrt(this / f); 0: all stay
    data.noise = 64  # words drawn from count^0.75 for each row, and shared by all words of the row
    return data


def pairs() -> ConfigDict:
    """Pairs of texts, several of them packed into each row."""
    data = ConfigDict()
    data.source = "written_forms"  # or tsv:GLOB, aligned:SOURCE,TARGET (two files), jsonl:GLOB, tfds:NAME
    data.source_field = "source"  # which column, field or language is read; several: question,context
    data.target_field = "target"  # which one is to be written; of a list in jsonl the first is trained on
    data.reference_fields = ""  # further ones that are as good, for the metrics; a list's all count anyway
    data.validation_source = ""  # "": a part of `source`
    data.split_by = ""  # fields: records of a file alike in them are in one split; "": what is read
    data.tokenizer = "bpe"  # of both sides: bytes, characters, bpe (trained on both), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them
    data.source_length = 128  # tokens of sources a row
    data.target_length = 128  # tokens of targets a row
    data.too_long = "cut"  # what is done with a pair longer than a row: cut, skip (both counted) or refuse
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def labelled() -> ConfigDict:
    """Texts with labels, several of them packed into each row."""
    data = ConfigDict()
    data.source = "snippets"  # or csv:GLOB, tsv:GLOB, jsonl:GLOB, tfds:NAME
    data.text_field = "text"  # which column or field is read
    data.second_field = ""  # for pairs of texts the second one's
    data.label_field = "label"  # which one holds the label, a name or a number
    data.validation_source = ""  # "": a part of `source`
    data.split_by = ""  # fields: records of a file alike in them are in one split; "": what is read
    data.tokenizer = "bpe"  # bytes, characters, bpe (trained on the training text), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them
    data.sequence_length = 256  # tokens a row
    data.too_long = "cut"  # what is done with a text longer than a row: cut, skip (both counted) or refuse
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


def questions() -> ConfigDict:
    """Questions with texts to answer them from, read in windows, several of them packed into each row."""
    data = ConfigDict()
    data.source = "function_questions"  # or squad:GLOB (SQuAD's own files), jsonl:GLOB, tfds:squad
    data.question_field = "question"  # which field is the question
    data.context_field = "context"  # which one is the text that has the answer
    data.answers_field = "answers"  # which one has {"text": [...], "answer_start": [...]}, in characters
    data.validation_source = ""  # "": a part of `source`
    data.split_by = ""  # fields: records of a file alike in them are in one split; "": what is read
    data.tokenizer = "bpe"  # bytes, characters, bpe (trained on the training text), or a tokenizer.json
    data.vocab_size = 4096  # tokens that bpe learns, the 256 bytes among them
    data.sequence_length = 256  # tokens a row, and most of a window with its question
    data.question_length = 48  # tokens of a question; what is longer is cut, and counted
    data.stride = 128  # a text that is longer than a window is read in several, this many tokens apart
    data.misplaced = "refuse"  # an answer that is not at its answer_start: refuse, or skip (and count) it
    data.cache_dir = ""  # prepared and tokenised data; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data


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
    data.cache_dir = ""  # prepared images; "": the user's data folder
    data.workers = 1  # threads that make batches ahead of time; 0: they are made when asked for
    return data
