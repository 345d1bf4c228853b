"""`lineside certs`: certificates for agents and coordinators, where nobody else makes them."""

import argparse
import base64
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cli.authority import Authority, Holder, Pair, Unfit
from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.parsing import Parser
from cli.shown import console, print_json, table, text
from lineside import certificates
from lineside.certificates import Certificate, described, nodes_of

DAYS = 365

HERE = ("localhost", "127.0.0.1", "::1")

NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([-A-Za-z0-9_.]{0,250}[A-Za-z0-9])?\.?")
"""Of a machine, as certificates have it."""

NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")

DESCRIPTION = """\
Make certificates for TLS between agents and coordinators, and look at some.
Where cert-manager or another authority makes them, only `show` is of use."""

INIT = """\
Make an authority in a folder, a certificate for coordinators and one for each
node. What is there already stays: run it again to add nodes. Give each machine
the folder of its own, and nobody the folder `ca`.

  lineside certs init --dir certs --coordinator-name 10.0.0.4 --node gpu-1
  lineside certs init --dir certs --format kubernetes | kubectl apply -f -"""

RENEW = """\
Sign everything in a folder anew, with new keys, by the same authority. Copy the
files to where they were: processes read them again, without a restart."""


@dataclass(frozen=True, slots=True)
class _Done:
    """What there is in a folder now, and whether it was `made`, `renewed` or `kept`."""

    folder: Path
    did: str
    pair: Pair


def add_to(commands: Subcommands) -> None:
    """Add the command and what it does."""
    certs = commands.add_parser(
        "certs", help="make certificates for agents and coordinators", description=DESCRIPTION
    )
    does = certs.add_subparsers(title="commands", dest="does", metavar="COMMAND", required=True)
    init = does.add_parser("init", help="an authority, and what it signs", description=INIT)
    _add_common(init)
    init.add_argument(
        "--coordinator-name",
        action="append",
        type=_name,
        metavar="NAME",
        help="name or address that agents connect to; again for each one (default:"
        " this machine, or the chart's Service)",
    )
    init.add_argument(
        "--node",
        action="append",
        type=_node,
        default=[],
        metavar="NODE",
        help="a node whose agent gets one; again for each",
    )
    init.set_defaults(run=lambda arguments: _told(_init, arguments))
    renew = does.add_parser("renew", help="sign all of a folder anew", description=RENEW)
    _add_common(renew)
    renew.set_defaults(run=lambda arguments: _told(_renew, arguments))
    show = does.add_parser(
        "show",
        help="who a certificate is for, and until when",
        description="Say what the certificates of a file are. Exit code 1: one does not hold now.",
    )
    show.add_argument("file", type=Path, metavar="FILE", help="certificates in PEM")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.set_defaults(run=lambda arguments: _told(_show, arguments))


def _add_common(command: Parser) -> None:
    command.add_argument("--dir", required=True, type=Path, metavar="DIR", help="the folder")
    command.add_argument(
        "--days",
        type=_days,
        default=DAYS,
        metavar="N",
        help=f"for how long they hold (default {DAYS})",
    )
    command.add_argument(
        "--format",
        choices=("files", "kubernetes"),
        default="files",
        metavar="FORM",
        help="files, or kubernetes: also print the coordinators' Secret",
    )
    command.add_argument("--namespace", default="lineside", metavar="NAME", help="of that Secret")
    command.add_argument("--secret", default="lineside-agents-tls", metavar="NAME", help="its name")
    command.add_argument(
        "--json", action="store_true", help="print JSON: what there is, or that Secret"
    )


def _name(said: str) -> str:
    with suppress(ValueError):
        return str(ip_address(said))
    with suppress(UnicodeError):
        if NAME.fullmatch(said.encode("idna").decode()):
            return said
    help = "a name or an address as agents connect to it, without a port"
    raise argparse.ArgumentTypeError(f"`{said}` is no name of a machine: {help}")


def _node(said: str) -> str:
    if not NODE.fullmatch(said):
        raise argparse.ArgumentTypeError(f"`{said}` is no name of a node")
    return said


def _days(said: str) -> float:
    try:
        days = float(said)
    except ValueError:
        days = 0.0
    if not 0 < days <= 3650:
        raise argparse.ArgumentTypeError(f"`{said}` is no number of days up to 3650")
    return days


def _told(does: Any, arguments: argparse.Namespace) -> int:
    try:
        code: int = does(arguments)
    except Unfit as error:
        raise CouldNotRun(str(error)) from None
    except OSError as error:
        why = (error.strerror or "no reason given").lower()
        raise CouldNotRun(f"`{error.filename}`: {why}" if error.filename else why) from None
    return code


def _init(arguments: argparse.Namespace) -> int:
    if arguments.format == "kubernetes" and arguments.node:
        raise CouldNotRun(
            "a DaemonSet's pods all mount the same Secrets: no certificate can be one node's",
            "leave out --node: there agents prove their node by their ServiceAccount's token",
        )
    now = certificates.now()
    authority = Authority.of(arguments.dir, now)
    names = arguments.coordinator_name or _names(arguments)
    holders = [Holder(names), *(Holder(node=node) for node in arguments.node)]
    done: list[_Done] = []
    for holder in holders:
        folder = arguments.dir / holder.folder
        if authority.has(holder):
            pair = authority.pair(holder)
            _unchanged(pair, holder, arguments)
            _say(f"{folder} is there already")
            done.append(_Done(folder, "kept", pair))
        else:
            done.append(_Done(folder, "made", authority.sign(holder, arguments.days, now)))
            _say(f"made {folder}")
    return _finished(authority, done, arguments)


def _unchanged(pair: Pair, holder: Holder, arguments: argparse.Namespace) -> None:
    """Raise `Unfit` where other names are asked for than a certificate has."""
    found = pair.certificate.names
    if holder.node is None and arguments.coordinator_name and set(holder.names) != set(found):
        folder = arguments.dir / holder.folder
        raise Unfit(f"`{folder}` is for {', '.join(found)}: remove it to have another one made")


def _renew(arguments: argparse.Namespace) -> int:
    if not (arguments.dir / "ca" / "ca.key").exists():
        raise CouldNotRun(f"there is no authority in `{arguments.dir}`", "`certs init` makes one")
    now = certificates.now()
    authority = Authority.of(arguments.dir, now)
    done: list[_Done] = []
    for holder in authority.holders():
        folder = arguments.dir / holder.folder
        done.append(_Done(folder, "renewed", authority.sign(holder, arguments.days, now)))
        _say(f"renewed {folder}")
    return _finished(authority, done, arguments)


def _names(arguments: argparse.Namespace) -> Sequence[str]:
    if arguments.format == "files":
        return HERE
    service = f"lineside-agents.{arguments.namespace}.svc"
    return (service, f"{service}.cluster.local")


def _finished(authority: Authority, done: Sequence[_Done], arguments: argparse.Namespace) -> int:
    if arguments.format == "kubernetes":
        made = secret(authority.pair(Holder()), arguments.secret, arguments.namespace)
        if arguments.json:
            print_json(made)
        else:
            sys.stdout.write(_yaml(made))
        return 0
    if arguments.json:
        now = certificates.now()
        shown = [
            {
                "folder": str(each.folder),
                "did": each.did,
                **_to_json(found := each.pair.certificate, found.wrong(now)),
            }
            for each in done
        ]
        print_json({"certificates": shown})
    _say(f"keep {arguments.dir / 'ca'} apart: who has its key can sign as anybody")
    return 0


def secret(pair: Pair, name: str, namespace: str) -> Mapping[str, Any]:
    """Return a Secret as cert-manager writes it."""
    parts = {"ca.crt": pair.authority, "tls.crt": pair.chain, "tls.key": pair.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "data": {key: base64.b64encode(part).decode() for key, part in parts.items()},
    }


def _yaml(made: Mapping[str, Any]) -> str:
    """Write a mapping of words and of mappings of words."""
    lines = []
    for name, said in made.items():
        inner = said if isinstance(said, dict) else {}
        lines.append(f"{name}:" if inner else f"{name}: {said}")
        lines += [f"  {key}: {word}" for key, word in inner.items()]
    return "\n".join([*lines, ""])


def _say(line: str) -> None:
    """Tell people, beside what goes to standard output."""
    sys.stderr.write(f"{line}\n")


def _show(arguments: argparse.Namespace) -> int:
    pem = arguments.file.read_bytes()
    try:
        found = described(pem)
    except ValueError:
        raise CouldNotRun(f"`{arguments.file}` holds no certificate in PEM") from None
    now = certificates.now()
    if arguments.json:
        print_json({"certificates": [_to_json(each, each.wrong(now)) for each in found]})
    else:
        shown = table("holder", "for", "signed by", "from", "until", "holds")
        for each in found:
            shown.add_row(*map(text, _row(each, each.wrong(now))))
        console().print(shown)
    return 1 if any(each.wrong(now) for each in found) else 0


def _row(each: Certificate, wrong: str) -> Iterator[str]:
    yield each.subject
    yield "authority" if each.is_authority else ", ".join(_for(each)) or "nobody"
    yield each.issuer
    yield f"{each.begins:%F %R}"
    yield f"{each.ends:%F %R}"
    if wrong:
        yield f"no: it {wrong}"
    else:
        yield f"{(each.ends - certificates.now()).days} days more"


def _for(each: Certificate) -> Iterator[str]:
    if each.uris:
        yield from (f"node {node}" for node in sorted(nodes_of(each.uris, ())))
    yield from each.names


def _to_json(each: Certificate, wrong: str) -> Mapping[str, Any]:
    return {
        "holder": each.subject,
        "signed_by": each.issuer,
        "is_authority": each.is_authority,
        "names": list(each.names),
        "nodes": sorted(nodes_of(each.uris, ())),
        "from": each.begins.isoformat(),
        "until": each.ends.isoformat(),
        "holds": not wrong,
    }
