"""Chat templates are programs that come with a checkpoint: they run for a limited time, and make no large values.

They run in jinja's sandbox, as in transformers. Time is looked at with every line of Python that a template runs; what
one call into C could repeat or pad without end is looked at before, and every value after it was made.
"""

import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from importlib.util import find_spec, module_from_spec
from types import FrameType
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from attnviz.errors import TextError

SECONDS, LARGEST = 10.0, 10_000_000
"""The longest time that a template may take, and most characters of a text, or of what else a value holds."""

_FORMATS = {"format", "format_map", "%"}
_PADDING = {"center", "expandtabs", "indent", "ljust", "rjust", "to_bytes", "tojson", "zfill"}
_REPEATING = {"*", "batch", "join", "replace", "slice", "translate", "wordwrap"}
_GROWING = _FORMATS | _PADDING | _REPEATING
"""Operators, methods and filters whose result may be many times what they are given."""

_TOO_LARGE = f"makes a value larger than {LARGEST:,} characters"

_ITEM = 8  # bytes of a reference to an item

_MOST_GROWTH = 10 * LARGEST  # an estimate: replacing in a long text counts as the text times what it is replaced by


class _TooMuchError(BaseException):
    """A limit was passed; no Exception, which jinja would take for one of a constant."""


def render(template: str, messages: Sequence[Mapping[str, Any]], waits: bool, special: Mapping[str, Any]) -> str:
    """The text that a template makes of messages; ``waits``: for an answer; ``special``: tokens by their names.

    Raises:
        TextError: it takes longer than :data:`SECONDS`, or makes a value larger than :data:`LARGEST`.
    """
    renderer = _renderer()
    end, before = time.monotonic() + SECONDS, sys.gettrace()

    def look(frame: FrameType, *_: Any) -> Any:
        if time.monotonic() > end:
            raise _TooMuchError(f"takes longer than {SECONDS:g} seconds")
        return None if frame.f_code.co_filename == __file__ else look

    sys.settrace(look)  # of this thread alone
    try:
        [text], _ = renderer.render_jinja_template(
            [list(messages)], chat_template=template, add_generation_prompt=waits, **special
        )
        _check_size(text)
    except _TooMuchError as error:
        raise TextError(
            f"the tokenizer's chat template {error}; expected one that ends and makes at most {LARGEST:,} characters: "
            "mend it, or render the chat yourself and give its text."
        ) from None
    finally:
        sys.settrace(before)
    return str(text)


@cache
def _renderer() -> Any:
    """A copy of transformers' module of chat templates, which compiles them for a sandbox with limits."""
    spec: Any = find_spec("transformers.utils.chat_template_utils")
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ImmutableSandboxedEnvironment = _LimitedEnvironment
    return module


class _LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with limits on all values that a template makes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def from_string(self, *args: Any, **kwargs: Any) -> Any:
        """As in jinja, with all filters limited."""
        self.filters = {name: _limited(name, function) for name, function in self.filters.items()}
        self.filters["limited"] = _limited("limited", lambda value: value)
        return super().from_string(*args, **kwargs)

    def _parse(self, *args: Any) -> nodes.Template:
        tree: nodes.Template = _Limits().visit(super()._parse(*args))
        return tree

    @staticmethod
    def concat(texts: Any) -> str:
        """As in jinja, of the texts of a template, macro or block."""
        size, kept = 0, list[str]()
        for text in texts:
            kept.append(text)
            size += len(text)
            if size > LARGEST:
                raise _TooMuchError(_TOO_LARGE)
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002 - jinja's
        """As in jinja."""
        return _limited(operator, self.binop_table[operator])(left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As in jinja."""
        method = getattr(function, "__wrapped__", function)  # jinja wraps str.format
        name, owner = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        args = _counted(name, args)
        _check_growth(name, [owner, *args, *kwargs.values()])
        made = super().call(context, function, *args, **kwargs)
        _check_size(made)
        return made


class _Limits(NodeTransformer):
    """Lets lists, dicts and joined texts pass a limit: a list that holds itself twice is soon larger than memory."""

    def visit_List(self, node: nodes.Expr) -> nodes.Expr:  # noqa: N802 - jinja's
        """A list, with its parts."""
        made = self.generic_visit(node)
        return nodes.Filter(made, "limited", [], [], None, None, lineno=node.lineno, environment=node.environment)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802 - jinja's
        """A tuple of values; one of names is assigned to."""
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802 - jinja's
        """``a ~ b`` joins its parts."""
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno, environment=node.environment)


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        args = _counted(name, args)
        _check_growth(name, [*args, *kwargs.values()])
        made = function(*args, **kwargs)
        _check_size(made)
        return made

    return limited


def _counted(name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of what may grow, with a list in the place of each iterator, so that they can be counted."""
    return tuple(list(each) if name in _GROWING and isinstance(each, Iterator) else each for each in given)


def _check_growth(name: str, given: Sequence[Any]) -> None:
    """Raise unless what this makes of its arguments is about as small as it should be."""
    numbers = all(isinstance(each, int | float) for each in given)
    if name == "**" and numbers:
        growth = given[0].bit_length() * abs(given[1]) if isinstance(given[0], int) else 0
    elif name not in _GROWING or (numbers and name in ("*", "%")):
        return
    elif name in _FORMATS and isinstance(given[0], str):
        widths = [int(digits) for digits in re.findall(r"[0-9]{1,18}", given[0])]
        if re.search(r"%[^a-z]*\*|:[^}]*\{", given[0]):  # widths that are given
            values = [each for value in given for each in (value if isinstance(value, tuple) else [value])]
            widths += [abs(each) for each in values if isinstance(each, int)]
        growth = (given[0].count("%") + given[0].count("{")) * max([_size(given), *widths])
    else:
        sizes = [abs(each) if isinstance(each, int) else _size(each) for each in given]
        growth = math.prod(sorted(sizes)[-2:])
    if growth > _MOST_GROWTH:
        raise _TooMuchError(_TOO_LARGE)


def _check_size(value: Any) -> None:
    if _size(value) > LARGEST:
        raise _TooMuchError(_TOO_LARGE)


def _size(value: Any) -> int:
    """Characters, bits and bytes of items of a value, counted until they are too many."""
    total, left = 0, [value]
    while left and total <= LARGEST:
        part = left.pop()
        total += _ITEM
        if isinstance(part, list | tuple):
            left += part
        elif isinstance(part, dict):
            left += [*part.keys(), *part.values()]
        elif isinstance(part, str | bytes | range):
            total += len(part)
        elif isinstance(part, int):
            total += part.bit_length()
    return total
