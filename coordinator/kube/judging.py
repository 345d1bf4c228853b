"""Which form of each object is in force: its own if it is good, else its last good one. Pure.

A change that is wrong, by itself or beside the others, changes nothing of what was in force. What
others' deletion made wrong stays in force, and the finding says so: nobody changed it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from coordinator.kube.fields import Fields
from coordinator.kube.settings import Kubernetes
from coordinator.kube.written import Form, Ident, Written, source_of
from coordinator.rules import Resources
from lineside.findings import Finding
from policies.lint import lint
from policies.load import Located, load
from policies.model import InferenceProvider

Forms = Mapping[Ident, Form]

KEY_NOT_ALLOWED = "key-not-allowed"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of a set of objects."""

    in_force: Forms
    located: tuple[Located, ...]
    """Of the forms in force, in the order of their names."""
    findings: Mapping[Ident, tuple[Finding, ...]]
    """Of each object that has any: of its own form where that is refused, else of the one in
    force."""
    refused: frozenset[Ident]
    """Objects whose own form is not in force."""

    @property
    def wrong(self) -> frozenset[Ident]:
        """Objects with an error: those that are refused, and those that a deletion made wrong."""
        found = (
            ident
            for ident, findings in self.findings.items()
            if any(each.severity == "error" for each in findings)
        )
        return self.refused | frozenset(found)

    @property
    def resources(self) -> Resources:
        """The set to put into force."""
        return Resources.of([each.resource for each in self.located])

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Every finding, by object."""
        return tuple(found for ident in sorted(self.findings) for found in self.findings[ident])


NOTHING = Judgement({}, (), {}, frozenset())


def judge(before: Forms, objects: Sequence[Written], keys: Kubernetes) -> Judgement:
    """Judge all objects of one moment. `before` is what was in force; `keys` says which may be
    named.
    """
    return _Court(before, objects, keys).sit()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found in a set of forms."""

    located: tuple[Located, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.severity == "error")


class _Court:
    def __init__(self, before: Forms, objects: Sequence[Written], keys: Kubernetes) -> None:
        self._keys = keys
        self._objects = {each.ident: each for each in objects}
        self._idents = {each.source: each.ident for each in objects}
        self._ages = {each.source: each.created for each in objects}
        good = {i: f for each in objects for i, f in _good(each, before)}
        self._good = _usable(good, before, keys)
        self._refused: dict[Ident, list[Finding]] = {}

    def sit(self) -> Judgement:
        now = {ident: each.form for ident, each in self._objects.items()}
        forms = self._usable(now)
        seen = self._look(forms)
        if seen.errors:
            forms = self._without(forms, seen.errors)
            seen = self._look(forms)
        if seen.errors and (changed := self._changed(self._usable(now))):
            self._refused = {i: f for i, f in self._refused.items() if i not in changed}
            forms, seen = self._in_parts(self._usable(now), changed)
        refused = frozenset(i for i, each in self._objects.items() if forms.get(i) != each.form)
        said = {**self._by_object(seen.findings), **self._refused}
        fields = {
            source_of(i): Fields(each.form.document if i in refused else forms[i].document)
            for i, each in self._objects.items()
        }
        findings = {
            ident: tuple(fields[each.place.source].located(each) for each in found)
            for ident, found in said.items()
        }
        return Judgement(forms, seen.located, findings, refused)

    def _usable(self, forms: Forms) -> dict[Ident, Form]:
        """Return the forms with those taken back that cannot be read, or name a forbidden key."""
        wrong = self._by_object(_faults(forms, self._keys))
        for ident, found in wrong.items():
            self._refused[ident] = found
        kept = {i: self._good[i] for i in wrong if i in self._good}
        return {**{i: form for i, form in forms.items() if i not in wrong}, **kept}

    def _without(self, forms: Forms, errors: Iterable[Finding]) -> dict[Ident, Form]:
        """Take back the changes that errors are about."""
        left = dict(forms)
        for ident, found in self._by_object(errors).items():
            if forms.get(ident) == self._good.get(ident):
                continue  # nobody changed it
            self._refused[ident] = found
            if ident in self._good:
                left[ident] = self._good[ident]
            else:
                left.pop(ident)
        return left

    def _changed(self, forms: Forms) -> list[Ident]:
        """Return those that are not in force yet; who was in force comes first, then the older."""
        changed = [i for i, form in forms.items() if self._good.get(i) != form]
        return sorted(changed, key=lambda i: (i not in self._good, self._objects[i].created, i))

    def _in_parts(self, forms: Forms, changed: Sequence[Ident]) -> tuple[dict[Ident, Form], _Seen]:
        """Let changes in that bring no new error; for when the errors are about others.

        They are tried in parts, halved where one brings an error: a look at all takes a while.
        """
        there = {i: form for i, form in forms.items() if i not in changed}
        there |= {i: self._good[i] for i in changed if i in self._good}
        seen = self._look(there)
        left = [changed]  # the parts that are still to be tried, the next one last
        while left:
            part = left.pop()
            tried = {**there, **{ident: forms[ident] for ident in part}}
            then = self._look(tried)
            if not (new := _beyond(seen.errors, then.errors)):
                there, seen = tried, then
            elif len(part) == 1:
                self._refused[part[0]] = new
            else:
                left += part[len(part) // 2 :], part[: len(part) // 2]
        return there, seen

    def _look(self, forms: Forms) -> _Seen:
        read = _read(forms)
        # Of two that cannot both be, lint finds fault with the one that comes later.
        by_age = sorted(read.located, key=lambda each: self._ages.get(each.source, ""))
        return _Seen(read.located, (*read.findings, *lint(by_age)))

    def _by_object(self, findings: Iterable[Finding]) -> dict[Ident, list[Finding]]:
        found: dict[Ident, list[Finding]] = {}
        for each in findings:
            found.setdefault(self._idents[each.place.source], []).append(each)
        return found


def _good(each: Written, before: Forms) -> Iterator[tuple[Ident, Form]]:
    """Yield the form that was in force, of this very object; a start has the status's word."""
    form = before.get(each.ident)
    if form is None or form.uid != each.form.uid:
        form = each.kept or (each.form if each.is_accepted else None)
    if form is not None:
        yield each.ident, form


def _usable(good: Forms, before: Forms, keys: Kubernetes) -> Forms:
    """Leave out what is only said to have been good, and cannot be (any more)."""
    told = {ident: form for ident, form in good.items() if before.get(ident) != form}
    wrong = {each.place.source for each in _faults(told, keys)}
    return {ident: form for ident, form in good.items() if source_of(ident) not in wrong}


def _faults(forms: Forms, keys: Kubernetes) -> list[Finding]:
    """Return why forms cannot be used, whatever was in force and whatever stands beside them."""
    read = _read(forms)
    return [*read.findings, *_of_keys(read.located, keys)]


def _beyond(standing: Iterable[Finding], errors: Iterable[Finding]) -> list[Finding]:
    """Return the errors that are not there yet. What a message gives as an example may change."""
    known = {(each.place, each.code) for each in standing}
    return [each for each in errors if (each.place, each.code) not in known]


def _read(forms: Forms) -> _Seen:
    documents = [(source_of(ident), forms[ident].document) for ident in sorted(forms)]
    loaded = load(documents)
    return _Seen(loaded.resources, loaded.findings)


def _of_keys(located: Iterable[Located], keys: Kubernetes) -> Iterable[Finding]:
    """Find providers that name a key which resources may not name."""
    for each in located:
        if not isinstance(each.resource, InferenceProvider):
            continue
        said = each.resource.spec.credentials
        if said is None:
            continue
        access = said.access_key
        file = said.file if access is None else access.file
        path = ("spec", "credentials", *(("accessKey",) if access is not None else ()))
        if file is not None and not _is_below(file, keys.key_dir):
            help = f"only files below `{keys.key_dir}` may be named (`kubernetes.key_dir`)"
            message = "a custom resource may not name this file"
            yield Finding(each.place((*path, "file")), KEY_NOT_ALLOWED, message, help)
        variables = _AWS if access is not None and file is None else (said.variable,)
        for name in (name for name in variables if name and name not in keys.key_variables):
            message = f"a custom resource may not name the variable `{name}`"
            help = "list it in `kubernetes.key_variables`"
            yield Finding(each.place((*path, "variable")), KEY_NOT_ALLOWED, message, help)
            break


_AWS = ("AWS_ACCESS_KEY_ID",)
"""What an access key without a file is read from."""


def _is_below(file: str, folder: str) -> bool:
    path = PurePosixPath(file)
    return ".." not in path.parts and path.is_relative_to(folder)
