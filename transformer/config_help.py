"""The keys of config classes with their meanings, which are comments in the source, for people to read."""

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
import typing
from typing import Any

from transformer.conditions import Condition, FieldOf
from transformer.config import bounds_of, default_of, describe_type, marks_of, to_values


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a config class: "model.d_model", "int", 256, "width of the residual stream", "at least 1".

    The default is as in JSON, or None if there is none; bound and condition are "" if there are none.
    """

    name: str
    type: str
    default: Any
    meaning: str
    bound: str = ""
    condition: str = ""


def describe_keys(cls: Any) -> tuple[Key, ...]:
    """All keys of a config class in order, with the paths of groups, defaults and meanings.

    A subclass that changes the default of a field inherits its meaning.
    """
    hints, bounds, keys = typing.get_type_hints(cls), bounds_of(cls), []
    conditions = marks_of(cls, (Condition, FieldOf))
    meanings = {}
    for base in reversed(cls.__mro__[:-1]):  # but `object`
        meanings.update(_comments(base))
    for field in dataclasses.fields(cls):
        hint, default = hints[field.name], default_of(field)
        if dataclasses.is_dataclass(hint):
            group: Any = hint
            keys += [
                dataclasses.replace(key, name=f"{field.name}.{key.name}") for key in describe_keys(group)
            ]
        else:
            default = None if default is dataclasses.MISSING else to_values(default)
            bound = bounds[field.name].expected if field.name in bounds else ""
            condition = "; ".join(mark.expected for name, mark in conditions if name == field.name)
            texts = meanings.get(field.name, ""), bound, condition
            keys.append(Key(field.name, describe_type(hint), default, *texts))
    return tuple(keys)


@functools.cache
def _comments(cls: type) -> dict[str, str]:
    """The comment on each field in the source of a class, at the end of its line or on the line above."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comment_at = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    lines, comments = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = comment_at.get(node.end_lineno or node.lineno, "")
            above = node.lineno - 1
            if not comment and lines[above - 1].strip() == comment_at.get(above):
                comment = comment_at[above]
            if comment:
                comments[node.target.id] = comment.lstrip("# ")
    return comments
