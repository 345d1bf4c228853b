"""Messages to prompt text, as the engine would render them: a model's chat template in a sandbox.

The engine renders with `transformers`; this is the same language (`coordinator.tokens.sandbox`)
fed in the same way, without that import. Never renders a template that a client sent. Only
`from_directory` reads files.
"""

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import jinja2

from coordinator.apis import Api
from coordinator.canonical import Canonical
from coordinator.tokens import sandbox
from coordinator.tokens.content_format import ContentFormat, content_format
from coordinator.tokens.conversation import CUT, as_tool, conversation
from coordinator.translate.requests import with_leading_system

RENDER_S = 1.0
"""For one template, where the caller has no shorter budget."""

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
        """Compile. Raises one of `sandbox.ERRORS` when a template is broken."""
        self._named = {name: _Compiled(source) for name, source in named.items()}
        self._special_tokens = dict(special_tokens)
        asked = (self._named.get(name) for name in ("default", "tool_use"))
        self._leads = any(template.leads for template in asked if template is not None)

    @classmethod
    def from_directory(cls, directory: Path) -> "ChatTemplate":
        """Read a model's templates, in the engine's order of preference.

        Raises `OSError` when a file is unreadable, one of `sandbox.ERRORS` when it is broken.
        """
        config = _read_json(directory / "tokenizer_config.json")
        return cls(_named_templates(directory, config), _special_tokens(directory, config))

    @property
    def content_format(self) -> ContentFormat | None:
        """Return what the default template takes; `None` without one."""
        default = self._named.get("default")
        return default.content_format if default else None

    def render(self, canonical: Canonical, seconds: float = RENDER_S) -> str:
        """Return the prompt of a chat, cut before its first media part. Raises `NotRendered`."""
        body = canonical.chat
        if body.get("chat_template") is not None:
            raise NotRendered(Reason.CLIENT_TEMPLATE)
        template = self._choose(canonical.tools)
        try:
            given = canonical.messages
            if self._leads and canonical.api is Api.ANTHROPIC_MESSAGES:
                given = with_leading_system(given)
            messages = conversation(given, template.content_format, template.knows_developers)
            variables = self._special_tokens | _variables(body, template.variables)
            tools = None if canonical.tools is None else [as_tool(t) for t in canonical.tools]
            variables |= {"messages": messages, "tools": tools}
            if body.get("continue_final_message"):
                text = _render_open_ended(template, seconds, variables)
            else:
                text = template.render(seconds, **variables)
        except sandbox.TooSlow:
            raise NotRendered(Reason.TOO_SLOW) from None
        except sandbox.TooLarge:
            raise NotRendered(Reason.TOO_LARGE) from None
        except sandbox.ERRORS as error:
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


class _Compiled:
    def __init__(self, source: str) -> None:
        template = sandbox.Template(source)
        self.render = template.render
        self.variables = template.variables
        self.content_format = content_format(template.tree)
        self.knows_developers = '"developer"' in source or "'developer'" in source
        self.knows_content = "content" in source
        self.leads = "{% generation" in source or _refuses_inline_system(template)
        """The engine puts the system messages of an Anthropic conversation into one in front."""


def _refuses_inline_system(template: sandbox.Template) -> bool:
    """Ask as the engine does: of a conversation that has a system message in its middle.

    It asks without the names that chats are rendered with; a template that calls one fails.
    """
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    nothing = jinja2.Undefined()
    unknown = {"raise_exception": nothing, "strftime_now": nothing}
    try:
        template.render(RENDER_S, messages=turns, add_generation_prompt=False, **unknown)
    except (*sandbox.ERRORS, sandbox.TooSlow, sandbox.TooLarge):
        return True
    return False


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


def _render_open_ended(template: _Compiled, seconds: float, variables: dict[str, Any]) -> str:
    """Render so that the final message is left open: put a mark at its end, and cut there."""
    if variables["add_generation_prompt"] or not template.knows_content:
        raise ValueError("`continue_final_message` goes with neither")
    final = variables["messages"][-1]
    content = final["content"]
    if isinstance(content, list):
        last_text = next((part for part in reversed(content) if "text" in part), None)
        if last_text is None:
            raise ValueError("the final message has no text to continue")
        content = last_text["text"]
        last_text["text"] += _OPEN_END
    else:
        final["content"] = content + _OPEN_END
    text = template.render(seconds, **variables)
    if content.strip() not in text:
        raise ValueError("the template leaves out a part of the final message")
    end = text.rindex(_OPEN_END.strip())
    kept_its_space = text.startswith(_OPEN_END, end)
    return text[:end] if kept_its_space else text[:end].rstrip()
