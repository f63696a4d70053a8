"""Looks into a language model: logit lens, what layers and heads add to an answer, patching, kinds of heads.

python launch.py --workdir=runs/lm --mode=inspect --prompt="def f(x):" --instrument=lens
python launch.py --workdir=runs/lm --mode=inspect --prompt="a = 1" --against="a = 2" --instrument=patching
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from commands import add_step, place, text
from transformer.errors import UserError, printable
from workdir.outputs import PICTURES, check_picture

if TYPE_CHECKING:
    import numpy as np

    from transformer.training.experiment import Params
    from workdir.opening import Overrides

COMPARING = ("patching", "attribution")
SITES = ("input", "attention", "feed_forward")
SHOWN = 24
"""The most tokens that a lens shows, the last ones."""

ROWS, PERIOD = 16, 32
"""The random tokens that heads are scored on without --prompt."""


class Table(NamedTuple):
    """Numbers, or a text for each of them, with the names of rows and columns; and what they are."""

    title: str
    values_rc: "np.ndarray"
    rows: Sequence[str]
    columns: Sequence[str]
    texts: Sequence[Sequence[str]] | None = None

    def lines(self) -> Iterator[str]:
        """The table with its title."""
        cells = self.texts or [[f"{value:.3f}" for value in row] for row in self.values_rc]
        lines = [["", *self.columns], *([name, *row] for name, row in zip(self.rows, cells, strict=True))]
        visible = [[cell if cell == cell.strip() else repr(cell) for cell in line] for line in lines]
        widths = [max(map(len, column)) for column in zip(*visible, strict=True)]
        yield f"{self.title}:"
        for line in visible:
            yield "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(alone=True)
    add = parser.add_argument
    meaning = (
        "the next token by each layer; what layers and heads add to its logit; how much of it comes back "
    )
    meaning += "with one value of the run of --prompt in that of --against; induction heads"
    add("--instrument", choices=[*INSTRUMENTS], default="lens", help=meaning)
    add("--prompt", type=text, help="the text (of heads: random tokens that are repeated)")
    meaning = "a text of as many tokens with another next token (of attribution: the second one of --prompt)"
    add("--against", type=text, help=meaning)
    add(
        "--site",
        choices=SITES,
        help="what is patched: what a layer reads, or what a sublayer returns (input)",
    )
    kinds = ", ".join(PICTURES)
    add("--picture", type=place, help=f"a file, {kinds} (inspect_INSTRUMENT.png in the folder of the run)")
    add_step(parser)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints a table, and draws it."""
    check(flags)
    from transformer.visualization.attention_maps import draw_grid
    from workdir.opening import load, named

    run, params = load(flags.workdir, overrides, flags.step)
    with run.placed():
        table = inspect(run.experiment, params, flags)
    picture = flags.picture or named(flags.workdir).path / f"inspect_{flags.instrument}.png"
    draw_grid(table.values_rc, table.rows, table.columns, Path(picture), table.title, table.texts)
    print("\n".join(map(printable, table.lines())), f"{picture} shows them", sep="\n")
    return 0


def check(flags: argparse.Namespace) -> None:
    """Checks the flags before a model is loaded."""
    kind = f"--instrument={flags.instrument}"
    if flags.prompt is None and flags.instrument != "heads":
        raise UserError(f"--prompt: {kind} needs a text, such as --prompt='def f(x):'")
    if flags.against is None and flags.instrument == "patching":
        raise UserError(f"--against: {kind} needs a second text, of as many tokens as --prompt")
    if flags.against is not None and flags.instrument not in COMPARING:
        raise UserError(f"--against: {kind} compares no texts; expected one of {', '.join(COMPARING)}")
    if flags.site is not None and flags.instrument != "patching":
        raise UserError(f"--site: {kind} replaces nothing; expected --instrument=patching")
    check_picture("--picture", flags.picture)


def inspect(experiment: Any, params: "Params", flags: argparse.Namespace) -> Table:
    """The table of the instrument.

    Raises:
      UserError: a model that is not a decoder, a text that it does not read, or texts that do not differ.
    """
    from transformer.models.decoder import Decoder
    from transformer.models.encoder_decoder import EncoderDecoder

    if not isinstance(experiment.model, Decoder) or isinstance(experiment.model, EncoderDecoder):
        name = experiment.config.experiment
        raise UserError(f"--mode=inspect: {name}; expected a run whose decoder continues a text")
    return INSTRUMENTS[flags.instrument](experiment, params, flags)


def _lens(experiment: Any, params: "Params", flags: argparse.Namespace) -> Table:
    import jax
    import numpy as np

    from transformer.interpret.instruments import lens

    tokens_1t = _tokens(experiment, "--prompt", flags.prompt)
    logits_ntv = lens(experiment.model, params, tokens_1t)[:, 0, -SHOWN:]
    probabilities_tnv = np.asarray(jax.nn.softmax(logits_ntv)).swapaxes(0, 1)
    texts = [_names(experiment, row_n) for row_n in probabilities_tnv.argmax(-1)]
    columns = ["embedding", *(f"layer_{i}" for i in range(len(texts[0]) - 1))]
    rows, title = _names(experiment, tokens_1t[0])[-SHOWN:], "the most probable next token"
    return Table(title, probabilities_tnv.max(-1), rows, columns, texts)


def _attribution(experiment: Any, params: "Params", flags: argparse.Namespace) -> Table:
    import numpy as np

    from transformer.interpret.instruments import attribution

    tokens_1t, answer, rival = _prompt_and_answers(experiment, params, flags)
    pair = np.array([answer]), np.array([rival])
    parts = attribution(experiment.model, params, tokens_1t, *pair)
    amounts = {name: float(amount_b[0]) for name, amount_b in parts.items()}
    split = [name.rpartition("/") if "attention/" in name else (name, "", "whole") for name in amounts]
    rows, columns = (list(dict.fromkeys(names)) for names in list(zip(*split, strict=True))[::2])
    values_rc = np.zeros((len(rows), len(columns)))
    for (row, _, column), amount in zip(split, amounts.values(), strict=True):
        values_rc[rows.index(row), columns.index(column)] = amount
    values_rc[:, columns.index("whole")] = values_rc.sum(axis=1)  # of attention, the sum of its heads
    ours, theirs = _names(experiment, [answer, rival])
    title = f"what adds up to {sum(amounts.values()):.3f}, the logit of {ours!r} less that of {theirs!r}"
    return Table(title, values_rc, rows, columns)


def _patching(experiment: Any, params: "Params", flags: argparse.Namespace) -> Table:
    import numpy as np

    from transformer.interpret.instruments import check_same_length, patching

    against_1t, site = _tokens(experiment, "--against", flags.against), flags.site or SITES[0]
    check_same_length(_tokens(experiment, "--prompt", flags.prompt), against_1t)
    tokens_1t, answer, rival = _prompt_and_answers(experiment, params, flags)
    grid_nt = np.asarray(patching(experiment.model, params, tokens_1t, against_1t, answer, rival, site))
    ours, theirs = _names(experiment, [answer, rival])
    title = f"the share of {ours!r} against {theirs!r} that comes back with the {site} of a layer at a token"
    columns = [f"layer_{i}" for i in range(len(grid_nt))]
    return Table(title, grid_nt.T, _names(experiment, tokens_1t[0]), columns)


def _heads(experiment: Any, params: "Params", flags: argparse.Namespace) -> Table:
    import numpy as np

    from transformer.interpret.instruments import head_scores, repeated_tokens

    if flags.prompt is None:
        period = min(PERIOD, experiment.config.model.max_length // 2)
        tokens_bt = repeated_tokens(experiment.model.vocab_size, ROWS, period)
    else:
        tokens_bt = _tokens(experiment, "--prompt", flags.prompt)
    scores = {
        f"layer_{path.split('/')[1]}/{kind}": np.asarray(scores_h)
        for kind, by_layer in head_scores(experiment.model, params, tokens_bt).items()
        for path, scores_h in by_layer.items()
    }
    most = max(map(len, scores.values()))
    values_rc = np.stack([np.pad(scores_h, (0, most - len(scores_h))) for scores_h in scores.values()])
    return Table("the attention of heads", values_rc, [*scores], [f"head_{h}" for h in range(most)])


INSTRUMENTS = {"lens": _lens, "attribution": _attribution, "patching": _patching, "heads": _heads}
"""Value of --instrument -> its function."""


def _tokens(experiment: Any, flag: str, prompt: str) -> "np.ndarray":
    """The tokens (1, t) of a text, after the start token if there is one."""
    import numpy as np

    if (tokenizer := _tokenizer(experiment)) is None:
        if problem := experiment.problem(prompt):
            raise UserError(f"{flag}: {problem}")
        return np.array([[int(word) for word in prompt.split()]], np.int32)
    tokens = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    if len(tokens) > (most := experiment.config.model.max_length):
        raise UserError(f"{flag}: {len(tokens):,} tokens; the model reads {most:,} (model.max_length)")
    return np.array([tokens], np.int32)


def _names(experiment: Any, tokens: Any) -> list[str]:
    from transformer.evaluation.attention_weights import token_names

    ids = [int(token) for token in tokens]
    if (tokenizer := _tokenizer(experiment)) is None:
        return [*map(str, ids)]
    return token_names(tokenizer, ids, {tokenizer.bos_id: "start"})


def _tokenizer(experiment: Any) -> Any:
    """The tokenizer of a run; None: its tokens are integers."""
    return vars(experiment.data).get("tokenizer")


def _prompt_and_answers(
    experiment: Any, params: "Params", flags: argparse.Namespace
) -> tuple["np.ndarray", int, int]:
    """The tokens of --prompt, its most probable next token, and that of --against or else the second one."""
    import numpy as np

    from transformer.interpret.interventions import logits

    def ranked(tokens_1t: "np.ndarray") -> "np.ndarray":
        return np.argsort(-np.asarray(logits(experiment.model, params, tokens_1t)[0, -1]))

    tokens_1t = _tokens(experiment, "--prompt", flags.prompt)
    answer, rival = ranked(tokens_1t)[:2]
    if flags.against is not None:
        rival = ranked(_tokens(experiment, "--against", flags.against))[0]
    if answer == rival:
        name = _names(experiment, [answer])[0]
        raise UserError(f"--against: the model continues both texts with {name!r}; expected another token")
    return tokens_1t, int(answer), int(rival)
