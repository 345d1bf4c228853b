"""Fetches a model's tokenizer files from a hub by name, into a cache that outlives restarts.

The hub's own library does the work, in a process of its own: importing it takes a second of
everyone's interpreter. Blocks its caller's thread; holds no tokenizer. `main` is that process.
"""

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
"""What a tokenizer needs of a model; weights stay where they are."""

FETCH_S = 600.0
"""For all files of a model; some vocabularies have 30 MB."""

NAME_CHARS = 96
"""A longer name is no hub's."""

_WORD = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<name>{_WORD}/{_WORD})(@[\w./-]+)?", re.ASCII)


class Unfetched(Exception):
    """The hub did not give the files. One line, for an operator."""


def is_name(source: str) -> bool:
    """Whether this is ORG/NAME or ORG/NAME@REVISION rather than a directory.

    With what no hub lets into a name it is none: `--`, `..`, an end in `.git`.
    """
    found = _NAME.fullmatch(source)
    if found is None or len(name := found["name"]) > NAME_CHARS:
        return False
    is_odd = "--" in name or ".." in name or name.endswith(".git")
    return not is_odd and not Path(source).is_dir()


@dataclass(slots=True)
class Hub:
    """Where models are fetched from. Safe in threads."""

    fetches: bool = True
    url: str | None = None
    """`None`: the library's own."""
    cache: str | None = None
    """Directory. `None`: the library's own, which engines on the same machine share."""
    token_file: str | None = None
    """`None`: what the library finds by itself."""
    _children: set[subprocess.Popen[bytes]] = field(default_factory=set, repr=False)
    _closed: bool = False

    def fetch(self, name: str) -> str:
        """Return a directory with the model's tokenizer files; may take minutes.

        Raises `Unfetched`.
        """
        if not self.fetches:
            raise Unfetched(f"`{name}` is no directory, and fetching from a hub is switched off")
        asked = {"name": name, "url": self.url, "cache": self.cache, "token": self._token()}
        child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._children.add(child)
        if self._closed:
            child.kill()
        try:
            said, _ = child.communicate(json.dumps(asked).encode(), FETCH_S)
            answer = json.loads(said)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise Unfetched(f"`{name}` did not come within {FETCH_S:.0f} s") from None
        except ValueError:
            raise Unfetched(f"fetching `{name}` was broken off") from None
        finally:
            self._children.discard(child)
        if "directory" not in answer:
            raise Unfetched(answer["error"])
        return str(answer["directory"])

    def close(self) -> None:
        """Break off what is being fetched."""
        self._closed = True
        for child in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    def _token(self) -> str | None:
        if self.token_file is None:
            return None
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise Unfetched(f"cannot read the hub's token from `{self.token_file}`") from None


def main() -> None:
    """Fetch what standard input asks for and say on standard output where it lies."""
    asked = json.loads(sys.stdin.buffer.read())
    with contextlib.redirect_stdout(sys.stderr):
        answer = _fetched(**asked)
    print(json.dumps(answer))  # noqa: T201 - the answer to the parent


def _fetched(name: str, url: str | None, cache: str | None, token: str | None) -> dict[str, Any]:
    import huggingface_hub  # here, since it is slow and this process's alone
    from huggingface_hub import errors

    repository, _, revision = name.partition("@")
    try:
        directory = huggingface_hub.snapshot_download(
            repository,
            revision=revision or None,
            cache_dir=cache,
            endpoint=url,
            token=token,
            allow_patterns=list(FILES),
        )
    except errors.GatedRepoError:
        return {"error": f"the hub gives `{name}` only to those with access to it"}
    except errors.RepositoryNotFoundError:
        return {"error": f"the hub knows no `{name}`, or shows it only with a token"}
    except errors.RevisionNotFoundError:
        return {"error": f"the hub has no such revision: `{name}`"}
    except (OSError, ValueError) as error:
        kind = type(error.__cause__ or error).__name__
        return {"error": f"the hub did not give `{name}`, and the cache lacks it: {kind}"}
    return {"directory": directory}


if __name__ == "__main__":
    main()
