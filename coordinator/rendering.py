"""Messages to prompt text, as the engine would render them: a model's chat template in a sandbox.

The engine renders with `transformers`; this is the same language with the same settings, without
that import. A template is trusted about as far as the model it came with: no access to Python, a
bound on output and time. Never renders a template that a client sent. Only `from_directory` reads
files.
"""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from coordinator.canonical import Canonical
from coordinator.conversation import CUT, ContentFormat, as_tool, conversation

MAX_TEXT_CHARS = 4_000_000
"""A longer prompt is not tokenized here; no engine's context holds it."""

MAX_RENDER_S = 1.0
"""A template that runs longer is stopped at its next output. The caller's own budget is shorter."""

_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_RESERVED_VARIABLES = frozenset(
    {
        "chat_template",
        "tokenize",
        "messages",
        "conversation",
        "tools",
        "return_assistant_tokens_mask",
    }
)
"""Names in `chat_template_kwargs` over which the engine stumbles."""


class Reason(Enum):
    """Why a request was not rendered here."""

    NO_TEMPLATE = "no template"
    CLIENT_TEMPLATE = "client template"
    REFUSED = "refused"
    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    MEDIA_LOST = "media lost"


class NotRendered(Exception):
    """The template did not give a prompt for this request. Says why, and nothing of the content."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class ChatTemplate:
    """The templates of one model: a default, perhaps one for tools. Immutable, safe in threads."""

    def __init__(self, named: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Compile. Raises `jinja2.TemplateError` when a template is broken."""
        self._named = {name: _Compiled(source) for name, source in named.items()}
        self._special_tokens = dict(special_tokens)

    @classmethod
    def from_directory(cls, directory: Path) -> "ChatTemplate":
        """Read a model's templates, in the engine's order of preference.

        Raises `OSError`, `LookupError`, `TypeError`, `ValueError` or `jinja2.TemplateError` when a
        file is unreadable or broken.
        """
        config = _read_json(directory / "tokenizer_config.json")
        return cls(_named_templates(directory, config), _special_tokens(directory, config))

    @property
    def content_format(self) -> ContentFormat | None:
        """Return what the default template takes; `None` without one."""
        default = self._named.get("default")
        return default.content_format if default else None

    def render(self, canonical: Canonical) -> str:
        """Return the prompt of a chat, cut before its first media part. Raises `NotRendered`."""
        body = canonical.body
        if body.get("chat_template") is not None:
            raise NotRendered(Reason.CLIENT_TEMPLATE)
        template = self._choose(canonical.tools)
        try:
            messages = conversation(
                canonical.messages, template.content_format, template.knows_developers
            )
            variables = self._special_tokens | _variables(body, template.variables)
            tools = None if canonical.tools is None else [as_tool(t) for t in canonical.tools]
            if body.get("continue_final_message"):
                text = _render_open_ended(template, messages, tools, variables)
            else:
                text = template.render(messages=messages, tools=tools, **variables)
        except _TEMPLATE_ERRORS as error:
            raise NotRendered(Reason.REFUSED) from error
        text, cut, _ = text.partition(CUT)
        if canonical.has_media and not cut:
            raise NotRendered(Reason.MEDIA_LOST)
        return text

    def _choose(self, tools: object) -> "_Compiled":
        names = ["default"]
        if tools is not None:
            names.insert(0, "tool_use")
        elif "processor" in self._named:
            names.insert(0, "processor")
        template = next((self._named[name] for name in names if name in self._named), None)
        if template is None:
            raise NotRendered(Reason.NO_TEMPLATE)
        return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"`{path.name}` must be a JSON object")
    return content


def _named_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    own = config.get("chat_template")
    named: dict[str, str] = {}
    if isinstance(own, str):
        named["default"] = own
    elif isinstance(own, list):
        named.update((entry["name"], entry["template"]) for entry in own)
    files = {path.stem: path for path in directory.glob("additional_chat_templates/*.jinja")}
    if (main := directory / "chat_template.jinja").exists():
        files["default"] = main
    if files:  # they replace what the configuration says
        named = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    processor = _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(processor, str) and "default" not in files:
        # A multimodal model's processor has a template of its own, used for chats without tools.
        named["processor"] = processor
    return named


def _special_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    known = dict(config)
    if "added_tokens_decoder" not in config:  # an older model keeps them in a file of their own
        known |= _read_json(directory / "special_tokens_map.json")
    found = {}
    for name in (f"{kind}_token" for kind in _SPECIAL_TOKENS):
        token = known.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks an assistant's text for training; in a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inner"), [], [], body).set_lineno(line)

    def _inner(self, caller: Any) -> Any:
        return caller()


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


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


_ENVIRONMENT = _environment()
_TEMPLATE_ERRORS = (
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


class _Compiled:
    def __init__(self, source: str) -> None:
        self._template = _ENVIRONMENT.from_string(source)
        tree = _ENVIRONMENT.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self.content_format = _content_format(tree)
        self.knows_developers = '"developer"' in source or "'developer'" in source

    def render(self, **variables: Any) -> str:
        deadline = time.monotonic() + MAX_RENDER_S
        size, chunks = 0, []
        for chunk in self._template.generate(**variables):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_TEXT_CHARS:
                raise NotRendered(Reason.TOO_LARGE)
            if not len(chunks) % 256 and time.monotonic() > deadline:
                raise NotRendered(Reason.TOO_SLOW)
        return "".join(chunks)


def _variables(body: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the template's variables that a request sets, by the engine's precedence."""
    asked = body.get("chat_template_kwargs") or {}
    if not isinstance(asked, dict) or not _RESERVED_VARIABLES.isdisjoint(asked):
        raise ValueError("unusable `chat_template_kwargs`")
    variables = {name: value for name, value in asked.items() if name in known}
    effort = body.get("reasoning_effort")
    if effort is not None:
        variables["reasoning_effort"] = effort
        variables.setdefault("enable_thinking", effort != "none")
    documents = body.get("documents")
    variables["documents"] = asked.get("documents") if documents is None else documents
    generate = body.get("add_generation_prompt")
    variables["add_generation_prompt"] = True if generate is None else generate
    return variables


_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG "


def _render_open_ended(
    template: _Compiled, messages: list[dict[str, Any]], tools: Any, variables: dict[str, Any]
) -> str:
    """Render so that the final message is left open: put a mark at its end, and cut there."""
    if variables["add_generation_prompt"]:
        raise ValueError("`continue_final_message` and `add_generation_prompt` exclude each other")
    final = messages[-1]
    content = final["content"]
    if isinstance(content, list):
        last_text = next((part for part in reversed(content) if "text" in part), None)
        if last_text is None:
            raise ValueError("the final message has no text to continue")
        last_text["text"] += _OPEN_END
    else:
        final["content"] = content + _OPEN_END
    text = template.render(messages=messages, tools=tools, **variables)
    end = text.rindex(_OPEN_END.strip())
    kept_its_space = text.startswith(_OPEN_END, end)
    return text[:end] if kept_its_space else text[:end].rstrip()


class _NoPlainName(Exception):
    """A loop or assignment binds something else than one name; the engine's detection gives up."""


def _content_format(tree: nodes.Template) -> ContentFormat:
    """Return whether a template walks a content's parts, told from its tree as the engine does."""
    try:
        return ContentFormat.PARTS if _walks_content(tree) else ContentFormat.STRING
    except _NoPlainName:
        return ContentFormat.STRING


def _walks_content(tree: nodes.Template) -> bool:
    messages = _aliases(tree, "messages")
    each = {_bound(loop.target) for loop in tree.find_all(nodes.For) if _reads(loop.iter, messages)}
    macros = list(tree.find_all(nodes.Macro))
    in_macros = {
        id(loop): _content_parameters(tree, macro, each)
        for macro in macros
        for loop in macro.find_all(nodes.For)
    }
    for loop in tree.find_all(nodes.For):
        parameters = in_macros.get(id(loop), {"content"})
        if _reads(loop.iter, each, "content") or (
            isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters
        ):
            return bool(_bound(loop.target))
    return False


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """Return the names that an assignment makes mean `name`, or a slice or filter of it."""
    found = {name}
    while True:
        more = {_bound(a.target) for a in tree.find_all(nodes.Assign) if _reads(a.node, found)}
        if more <= found:
            return found
        found |= more


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, each: set[str]) -> set[str]:
    """Return the macro's parameters that some call fills with a message's content."""
    names = [argument.name for argument in macro.args]
    found = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            positional = zip(names, call.args, strict=False)
            by_name = ((kw.key, kw.value) for kw in call.kwargs if kw.key in names)
            found |= {n for n, v in (*positional, *by_name) if _reads(v, each, "content")}
    return found


def _bound(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NoPlainName
    return target.name


def _reads(node: nodes.Node | None, names: set[str], key: str | None = None) -> bool:
    """Whether an expression is one of `names`, or its `key`, under filters, tests and slices."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        elif key is None:
            return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names
        elif isinstance(node, nodes.Getitem):
            is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
            return is_key and _reads_name(node.node, names)
        else:
            return (
                isinstance(node, nodes.Getattr)
                and node.attr == key
                and _reads_name(node.node, names)
            )


def _reads_name(node: nodes.Node, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names
