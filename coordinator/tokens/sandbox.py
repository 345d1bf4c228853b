"""The language of chat templates, as the engine runs it, in a sandbox with bounds.

The engine's library compiles templates with these settings, filters and names. A template is
trusted about as far as the model it came with: it has no access to Python, its loops end at a
deadline, and neither its output nor what it multiplies grows beyond a bound.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.utils import Namespace

MAX_TEXT_CHARS = 4_000_000
"""A longer prompt is not tokenized here; no engine's context holds it."""

MAX_POWER = 64
"""Largest exponent; a template has no use for more, and one could fill the memory."""

LOOK_EVERY = 64
"""Passes of a loop, or pieces of output, between two looks at the clock."""


class TooSlow(Exception):
    """The template ran into its deadline."""


class TooLarge(Exception):
    """The template's output, or a text inside it, is beyond the bound."""


class Template:
    """One compiled template. Immutable, safe in threads."""

    def __init__(self, source: str) -> None:
        """Compile. Raises `jinja2.TemplateError` when the template is broken."""
        self.tree = _ENVIRONMENT.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(self.tree))
        self._compiled = _ENVIRONMENT.from_string(_with_watched_loops(source))
        self._names = dict(self._compiled.globals)  # jinja's chain of maps takes 6 us to go through

    def render(self, seconds: float, **variables: Any) -> str:
        """Return the output, produced within some seconds.

        Raises `TooSlow`, `TooLarge`, or one of `ERRORS`.
        """
        deadline = time.monotonic() + seconds
        size, chunks = 0, []
        known = {**self._names, **variables, _DEADLINE: deadline}
        context = self._compiled.new_context(known, shared=True)
        for chunk in self._compiled.root_render_func(context):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_TEXT_CHARS:
                raise TooLarge
            if not len(chunks) % LOOK_EVERY and time.monotonic() > deadline:
                raise TooSlow
        return "".join(chunks)


ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a template can raise on a request that it was not written for."""

_DEADLINE = "lineside deadline"
_WATCHED = "lineside watched"
"""With a space, so that no template can name them."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks an assistant's text for training; in a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inner"), [], [], body).set_lineno(line)

    def _inner(self, caller: Any) -> Any:
        return caller()


_DICT_NAMES = frozenset(dir(dict))
_HARMLESS: Mapping[type, frozenset[str]] = {
    str: frozenset(n for n in dir(str) if n[0] != "_") - {"format", "format_map"},
    LoopContext: frozenset(
        {"index", "index0", "revindex", "revindex0", "first", "last", "length"}
        | {"previtem", "nextitem", "depth", "depth0", "cycle", "changed"}
    ),
}
"""What the sandbox allows after a dozen checks, and formats in no way of its own."""

_PLAIN = frozenset({bool, int, str})
"""What a template keeps in a namespace while it loops, and nothing can be called on its way out."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up as the base class does, which takes half of all rendering over it."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in _HARMLESS.get(kind, ()):
            return getattr(obj, attribute)
        if kind is Namespace and attribute[0] != "_":
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int) and right > MAX_POWER:
            raise TooLarge
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    _check_size(len(many) * times)
        return super().call_binop(context, operator, left, right)


def _check_size(size: int) -> None:
    if size > MAX_TEXT_CHARS:
        raise TooLarge


class _Watched:
    """What a loop runs over, with a look at the clock now and then.

    Loops without output would end in no other way: a template may run over the messages once for
    each of them, and a client says how many there are.
    """

    def __init__(self, items: Iterable[Any], deadline: float) -> None:
        self._items = items
        self._deadline = deadline

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self._items):
            if not number % LOOK_EVERY and time.monotonic() > self._deadline:
                raise TooSlow
            yield item

    def __len__(self) -> int:
        if isinstance(self._items, Sized):
            return len(self._items)
        raise TypeError("a loop over what has no length")  # jinja then counts it itself


@jinja2.pass_context
def _watched(context: Context, items: Any) -> Any:
    if isinstance(items, jinja2.Undefined):
        return items  # as jinja would treat it: no items, or an error in a strict environment
    deadline: Any = context.resolve(_DEADLINE)
    return _Watched(items, deadline)


def _with_watched_loops(source: str) -> nodes.Template:
    tree = _ENVIRONMENT.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, _WATCHED, [], [], None, None).set_lineno(loop.lineno)
    tree.set_environment(_ENVIRONMENT)
    return tree


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in the engine


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Print JSON; jinja's own filter would escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters[_WATCHED] = _watched
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


_ENVIRONMENT = _environment()
