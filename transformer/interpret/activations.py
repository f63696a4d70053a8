"""The values that a model computes, by path: their names, and their arrays."""

import contextlib
import contextvars
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.errors import UserError, suggest
from transformer.layers.block import Block
from transformer.layers.mixers import Attention
from transformer.models.decoder import Decoder
from transformer.models.decoder_config import StackConfig

OVER_KEYS = ("scores", "weights")
"""Values of attention for each pair of a query and a key, (b, h, t, s)."""


class Visitor(Protocol):
    """Reads or replaces values."""

    def wants(self, path: str) -> bool:
        """Whether to visit the value of a path."""
        ...

    def visit(self, path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array:
        """The value that the model continues with; `positions_bt` are those of its tokens, None outside of
        blocks."""
        ...


class _Place(NamedTuple):
    """The module that was applied last, the path of that, the path of the module whose method runs (None:
    it belongs to no model), and the positions of the tokens of a block."""

    root: Any
    prefix: str
    path: str | None
    positions_bt: Any = None


class Sites:
    """A flax method interceptor that shows the values of a model to visitors, one after another.

    The output of a module has the module's path, and its input that path and `/input`; layers are numbered:

        blocks/3/input                        the residual stream before block 3, (b, t, d)
        blocks/3/after_attention              the residual stream after a sublayer; also after_feed_forward
        blocks/3/attention/query, key, value  before norms and rotations, (b, t, h, k)
        blocks/3/attention/scores, weights    (b, h, t, s); -inf: a key that the query may not read
        blocks/3/attention/output/input       the outputs of the heads, (b, t, h, k)
        blocks/3/feed_forward/down/input      the hidden units, (b, t, f)
        blocks/3/feed_forward/router          the logits of experts, (b, t, e)

    `blocks` is `encoder` and `decoder` in an encoder-decoder, and has the path of the encoder before it in
    models with one. The output of the model is `output`. Scores and weights are computed by the reference
    kernel, in place of the chosen one, where a visitor wants them.
    """

    def __init__(self, visitors: tuple[Visitor, ...]) -> None:
        self.visitors = visitors
        self._place = _Place(None, "", None)

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls `function`, a method of a module, and shows what it reads and returns."""
        module, outside = context.module, self._place
        if module.scope is None or module.is_initializing():
            return function(*args, **kwargs)
        self._place = self._entered(module, outside, kwargs)
        try:
            if (path := self._place.path) is None:
                return function(*args, **kwargs)
            return self._call(function, args, kwargs, module, context.method_name, path)
        finally:
            self._place = outside

    def _entered(self, module: nn.Module, outside: _Place, kwargs: Any) -> _Place:
        if module.path or module is outside.root:
            known = outside.path is not None
            path = "/".join(filter(None, (outside.prefix, *module.path))) if known else None
            return outside._replace(path=path)
        if not isinstance(module, Block):  # the model itself, or a module applied alone within it
            return _Place(module, "", "" if outside.root is None else None)
        # The step form names no stack, and makes the keys of a source before it counts layers.
        default = "blocks" if module.cross_attention is None else "decoder"
        name = (module.name or "").partition("/")[0] or default
        layer = kwargs["mask"].layer if "mask" in kwargs else "?"
        if isinstance(layer, jax.core.Tracer):
            raise UserError(
                "the layers of a scanned or rematerialised stack have no paths; expected `unrolled(model)`, "
                "or a run with model.scan_layers=False and model.remat=none"
            )
        prefix = "/".join(filter(None, (outside.path, name, str(layer))))
        return _Place(module, prefix, prefix, kwargs.get("positions_bt"))

    def _call(
        self, function: Callable, args: Any, kwargs: Any, module: nn.Module, method: str, path: str
    ) -> Any:
        is_attention = isinstance(module, Attention)
        if is_attention and method == "run_kernel" and self._want_weights(path):
            options = {name: value for name, value in kwargs.items() if name != "place"}
            return module._attend_and_sow(*args, **options)
        if is_attention and method == "weights":
            scores_bhts, allowed, *rest = args
            masked_bhts = jnp.where(allowed, scores_bhts, -jnp.inf)
            scores_bhts = self._shown(f"{path}/scores", masked_bhts)
            return self._shown(f"{path}/weights", function(scores_bhts, allowed, *rest, **kwargs))
        if isinstance(module, Block) and method == "_after":
            return self._shown(f"{path}/after_{args[0]}", function(*args, **kwargs))
        if method != "__call__":
            return function(*args, **kwargs)
        if args and path:
            args = self._shown(f"{path}/input", args[0]), *args[1:]
        result = function(*args, **kwargs)
        if isinstance(result, tuple):
            return self._shown(path or "output", result[0]), *result[1:]
        return self._shown(path or "output", result)

    def _want_weights(self, path: str) -> bool:
        return any([visitor.wants(f"{path}/{name}") for visitor in self.visitors for name in OVER_KEYS])

    def _shown(self, path: str, x: Any) -> Any:
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating):
            for visitor in self.visitors:
                if visitor.wants(path):
                    x = visitor.visit(path, x, self._place.positions_bt)
        return x


_active: contextvars.ContextVar[Sites | None] = contextvars.ContextVar("sites", default=None)
_compiled_for = jax.make_user_context(())


@contextlib.contextmanager
def visiting(visitor: Visitor) -> Iterator[None]:
    """Shows the values of models to a visitor, after those that are active; programs are compiled for these
    visitors, and never taken from those that were compiled for others or for none."""
    sites = _active.get()
    if sites is None:
        token = _active.set(sites := Sites(()))
        try:
            with nn.intercept_methods(sites), visiting(visitor):
                yield
        finally:
            _active.reset(token)
        return
    before, sites.visitors = sites.visitors, (*sites.visitors, visitor)
    try:
        with _compiled_for(sites.visitors):
            yield
    finally:
        sites.visitors = before


def unrolled(model: Any) -> Any:
    """The model with its layers one by one in the program, so that paths name them; it computes the same from
    the same parameters."""
    if not isinstance(model.config, StackConfig):
        return model
    return model.clone(config=dataclasses.replace(model.config, scan_layers=False, remat="none"))


def matches(pattern: str, path: str) -> bool:
    """Whether a path fits a pattern, in which `*` is any part of a name, and `**` any names."""
    regex = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return re.fullmatch(regex, path) is not None


def check_matched(patterns: Iterable[str], seen: Iterable[str]) -> None:
    """Raises `UserError` for a pattern that fits none of the paths."""
    seen = list(seen)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in seen):
            raise UserError(f"{pattern!r} is the path of no value of the model; {suggest(pattern, seen)}")


@dataclasses.dataclass(eq=False)
class Recorder:
    """A visitor that keeps values. A module that is called again has `#2` behind its path."""

    patterns: Sequence[str]
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    def wants(self, path: str) -> bool:
        """Whether a pattern fits."""
        return any(matches(pattern, path) for pattern in self.patterns)

    def visit(self, path: str, x: jax.Array, positions_bt: jax.Array | None) -> jax.Array:
        """Keeps the value, and does not change it."""
        calls = sum(name.partition("#")[0] == path for name in self.values)
        self.values[f"{path}#{calls + 1}" if calls else path] = x
        return x


def record(
    model: Any, params: Any, inputs: Any, *patterns: str, method: str | None = None, **options: Any
) -> dict[str, jax.Array]:
    """{path: array} of the values whose paths, listed in `Sites`, fit one of the patterns, in the order of
    computation.

        record(model, params, tokens_bt, "blocks/*/attention/weights")["blocks/3/attention/weights"]

    `inputs` is what the model is called with, a tuple if there are several arrays, and `options` further
    arguments; `method`: by default that of the call. Edits that are active are seen.

    Raises:
      UserError: a pattern fits no path.
    """
    program: Any = {"patterns": patterns, "model": unrolled(model), "method": method}
    values = _record(params, _tuple(inputs), options, **program).by_path
    if not all(any(matches(pattern, path) for path in values) for pattern in patterns):
        check_matched(patterns, paths(model, params, inputs, method=method, **options))
    return values


def paths(model: Any, params: Any, inputs: Any, method: str | None = None, **options: Any) -> dict[str, Any]:
    """{path: shape and type} of all that `record` can read, without computing it."""
    program: Any = {"patterns": ("**",), "model": unrolled(model), "method": method}
    return jax.eval_shape(functools.partial(_record, **program), params, _tuple(inputs), options).by_path


def recording(function: Callable, *patterns: str) -> Callable:
    """`function`, compiled, which returns its result and {path: array} of the values that models compute in
    it, as `record` returns them. It raises `UserError` if a pattern fits no path."""

    @functools.partial(jax.jit, static_argnames="patterns")
    def run(arguments: tuple, patterns: tuple[str, ...]) -> tuple[Any, _Values]:
        with visiting(recorder := Recorder(patterns)):
            result = function(*arguments)
        return result, _Values(tuple(recorder.values), tuple(recorder.values.values()))

    def checked(*arguments: Any) -> tuple[Any, dict[str, jax.Array]]:
        result, values = run(arguments, patterns=patterns)
        if not all(any(matches(pattern, path) for path in values.by_path) for pattern in patterns):
            check_matched(
                patterns, jax.eval_shape(functools.partial(run, patterns=("**",)), arguments)[1].paths
            )
        return result, values.by_path

    return checked


def apply(model: Any, params: Any, inputs: Any, method: str | None = None, **options: Any) -> Any:
    """The output of the model under the visitors that are active; arguments as for `record`. The logits of a
    decoder are without the padding of its vocabulary."""
    output = _apply(params, _tuple(inputs), options, model=unrolled(model), method=method)
    return output[..., : model.vocab_size] if isinstance(model, Decoder) and method is None else output


@functools.partial(jax.jit, static_argnames=("model", "method"))
def _apply(params: Any, inputs: tuple, options: Any, *, model: Any, method: str | None) -> Any:
    return model.apply({"params": params}, *inputs, method=method, **options)


@struct.dataclass
class _Values:
    """Arrays by path, in order: those of a dictionary would be sorted."""

    paths: tuple[str, ...] = struct.field(pytree_node=False)
    arrays: tuple[Any, ...]

    @property
    def by_path(self) -> dict[str, Any]:
        return dict(zip(self.paths, self.arrays, strict=True))


@functools.partial(jax.jit, static_argnames=("patterns", "model", "method"))
def _record(
    params: Any, inputs: tuple, options: Any, *, patterns: tuple[str, ...], model: Any, method: str | None
) -> _Values:
    with visiting(recorder := Recorder(patterns)):
        model.apply({"params": params}, *inputs, method=method, **options)
    return _Values(tuple(recorder.values), tuple(recorder.values.values()))


def _tuple(inputs: Any) -> tuple:
    return inputs if isinstance(inputs, tuple) else (inputs,)
