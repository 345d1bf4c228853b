"""A cluster of which nothing is known: any backend may exist, under any name and label. Pure.

The subject is free in all that policies can ask of it. Nothing else needs to exist, so that rules
which go on where nothing is left always may. An answer of the search is built as a small cluster:
texts for the globs that must fit, none of those that must not. Where no text can be so, the answer
is none; where a cluster cannot be built for another reason, the evaluator will not confirm it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from lineside.ids import ModelName
from policies.facts import Inventory, Model, Target
from policies.formula import (
    FALSE,
    TRUE,
    Atom,
    Formula,
    Masks,
    OutOfSteps,
    Variable,
    atom,
    every,
    first,
    some,
)
from policies.globs import any_of, compile_glob
from policies.mentions import Mentions
from policies.model import BackendSelector, BackendType, Labels, ModelSelector, PoolState
from policies.regions import witnesses
from policies.worlds import Held, PoolStates, Scene

MAX_REQUESTS = 2000
"""Requests tried for one answer. Beyond, the search counts as cut short."""

_TYPES = (BackendType.PROVIDER, BackendType.LOCAL)
_FITS = ("no", "all", "some")
"""How many of the models that a request means a glob fits."""
_POOLS = (None, False, True)
"""Whether the pools of the models that a request means are saturated."""


@dataclass(frozen=True, slots=True)
class Fits:
    """Globs that fit none of the models that a request means, all of them, or some."""

    no: set[str]
    all: set[str]
    some: set[str]


_FREE = Fits(set(), set(), set())


class Texts:
    """Globs of one kind of name, and a text for each way to fit some of them."""

    def __init__(self, globs: Iterable[str], likely: Sequence[str]) -> None:
        self.globs = tuple(dict.fromkeys(globs))
        self.values = witnesses(self.globs, likely=likely)
        tests = [(glob, compile_glob(glob)) for glob in self.globs]
        self._fitting = {text: {glob for glob, fits in tests if fits(text)} for text in self.values}

    def find(self, fits: Iterable[str], avoids: set[str], rather: set[str] | None = None) -> str:
        """Return a text that fits some globs and none of others; empty where there is none."""
        wanted = set(fits)
        good = [t for t, hit in self._fitting.items() if wanted <= hit and not hit & avoids]
        better = [text for text in good if not self._fitting[text] & (rather or set())]
        return next(iter(better or good), "")

    def fitting(self, text: str) -> set[str]:
        """Return the globs that one of the values fits."""
        return self._fitting[text]


class Flags:
    """For each glob of one kind, whether one of the subject's names fits it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._variables: dict[str, Variable[bool]] = {}

    def of(self, glob: str) -> Formula:
        """Say when one of the names fits."""
        flag = self._variables.setdefault(glob, Variable((self._kind, glob), (False, True)))
        return Atom(flag, 0b10)

    def settled(self, masks: Masks) -> tuple[set[str], set[str]]:
        """Return the globs that must fit and those that must not, in an answer."""
        known = {glob: masks.get(flag, 0b11) for glob, flag in self._variables.items()}
        return {g for g, m in known.items() if m == 0b10}, {g for g, m in known.items() if m == 1}


class Choices:
    """For each label that is asked for, its value."""

    def __init__(self, kind: str, values: dict[str, tuple[str, ...]]) -> None:
        self._variables: dict[str, Variable[str | None]] = {
            key: Variable((kind, key), (None, *those)) for key, those in values.items()
        }

    def of(self, labels: Labels | None) -> Formula:
        """Say when all the pairs are there."""
        pairs = [(self._variables[key], value) for key, value in (labels or {}).items()]
        return every(atom(label, 1 << label.values.index(value)) for label, value in pairs)

    def read(self, masks: Masks) -> dict[str, str]:
        """Return the labels of an answer."""
        values = {key: first(label, masks) for key, label in self._variables.items()}
        return {key: value for key, value in values.items() if value is not None}


class OpenWorld:
    """Whatever cluster there may be."""

    def __init__(self, mentioned: Mentions) -> None:
        plain = [glob for glob in (*mentioned.requested, *mentioned.models) if "*" not in glob]
        globs = (*mentioned.requested, *mentioned.models, *mentioned.classes)
        self.texts = Texts(globs, likely=("some-model", *plain))
        self._requested: Variable[str] = Variable("model", self.texts.values)
        self._fits: dict[str, Variable[str]] = {}
        self._states = PoolStates()
        self._pools: Variable[bool | None] = Variable("pools", _POOLS)
        self.subjects = (OpenSubject(mentioned),)

    def beside(self, subject: "OpenSubject") -> Sequence["OpenSubject"]:
        """Return nothing: the subject's backend need not have another model."""
        return ()

    def requested(self, glob: str) -> Held:
        """Say when a glob fits the request's own word, or names of what it means."""
        texts = enumerate(self.texts.values)
        said = sum(1 << n for n, text in texts if glob in self.texts.fitting(text))
        word = atom(self._requested, said)
        fits = self._fits.setdefault(glob, Variable(("fits", glob), _FITS))
        return Held(some((word, atom(fits, 0b010))), some((word, atom(fits, 0b110))))

    def pool(self, state: PoolState) -> Held:
        """Say when pools are in a state; those of the request are as free as any other."""
        if state.name is not None:
            return self._states.of(state, (state.name,))
        wanted = 1 << _POOLS.index(state.saturated)
        return Held(atom(self._pools, wanted), atom(self._pools, wanted | 1))

    def scene(self, subject: "OpenSubject", masks: Masks) -> Scene | None:
        """Build a cluster around the subject, for the first request of an answer that has one."""
        if subject.model(masks, self.texts, None, _FREE) is None:
            return None
        if subject.target(masks, ModelName("any")) is None:
            return None
        for number, request in enumerate(self._requests(subject, masks)):
            if number >= MAX_REQUESTS:
                raise OutOfSteps
            scene = self._built(subject, {**masks, **request})
            if scene is not None:
                return scene
        return None

    def _requests(self, subject: "OpenSubject", masks: Masks) -> Iterator[Masks]:
        """Yield every way to settle what the request asks for and means, in an answer."""
        open_ = [each for each in self._fits.values() if masks.get(each) in (0b110, 0b101)]
        variables: list[Variable[object]] = [subject.means, self._requested, *open_]
        choices = [list(_bits(masks.get(each, each.all))) for each in variables]
        for chosen in product(*choices):
            yield dict(zip(variables, chosen, strict=True))

    def _built(self, subject: "OpenSubject", masks: Masks) -> Scene | None:
        requested = first(self._requested, masks)
        fits = self._settled(masks, requested)
        meant = first(subject.means, masks)
        model = subject.model(masks, self.texts, requested if meant else None, fits)
        target = subject.target(masks, model.name) if model else None
        if target is None or model is None:
            return None
        state = first(self._pools, masks)
        others = self._others(requested, meant, fits, state is not None)
        if others is None:
            return None
        states = self._states.read(masks)
        targets = [target]
        if state is not None:
            served = (*others, model)[0].name
            targets.append(_helper(served))
            concerned = targets if meant else targets[1:]
            pools = {pool for each in concerned for pool in each.pools}
            states = dict.fromkeys(pools, state) | states
        known = {each.name: each for each in (model, *others)}
        return Scene(Inventory(tuple(targets), known), 0, requested, states)

    def _settled(self, masks: Masks, requested: str) -> Fits:
        """Return how the globs fit the models meant, in an answer."""
        said = self.texts.fitting(requested)  # all that is meant is called this
        may = {g: masks.get(each, each.all) for g, each in self._fits.items() if g not in said}
        return Fits(
            no={glob for glob, mask in may.items() if mask == 0b001},
            all={glob for glob, mask in may.items() if mask == 0b010},
            some={glob for glob, mask in may.items() if mask == 0b100},
        )

    def _others(self, requested: str, meant: bool, fits: Fits, needed: bool) -> list[Model] | None:
        """Return models that the request means as well: globs fit some of them or all.

        `None`: there cannot be such models, since a text that must fit fits another glob as well.
        """
        models: list[Model | None] = []
        if fits.some:
            models.append(self._other(0, requested, fits.all | fits.some, fits.no, fits.some))
            for number, glob in enumerate(sorted(fits.some), start=1):
                avoids = fits.no | {glob}  # a glob that fits some does not fit this one
                models.append(self._other(number, requested, fits.all, avoids, fits.some))
        elif not meant and (fits.all or needed):
            models.append(self._other(0, requested, fits.all, fits.no, set()))
        found = [model for model in models if model is not None]
        return found if len(found) == len(models) else None

    def _other(
        self, number: int, requested: str, globs: set[str], avoids: set[str], rather: set[str]
    ) -> Model | None:
        """Return a model with a name for each glob; `None`: one of them has none."""
        texts = {self.texts.find((glob,), avoids, rather - {glob}) for glob in globs}
        own = f"another-model-{number}"
        if any_of(avoids | rather)((own,)):
            own = self.texts.find((), avoids, rather)
        if not own or "" in texts:
            return None
        return Model(ModelName(own), frozenset({requested, *texts}))


class OpenSubject:
    """A target that may be anything."""

    def __init__(self, mentioned: Mentions) -> None:
        plain = [glob for glob in mentioned.backends if "*" not in glob]
        globs = (*mentioned.backends, *mentioned.pools)
        self._texts = Texts(globs, likely=("some-backend", *plain))
        self._type: Variable[BackendType] = Variable("type", _TYPES)
        self._provider: Variable[str] = Variable("provider", self._texts.values)
        self.means: Variable[bool] = Variable("means", (True, False))
        self._called, self._in_pools = Flags("called"), Flags("pool")
        self._models, self._classes = Flags("model"), Flags("class")
        self._labels = Choices("label", dict(mentioned.labels))
        self._model_labels = Choices("model label", dict(mentioned.model_labels))

    def part(
        self,
        backend: BackendSelector | None = None,
        models: ModelSelector | None = None,
        pools: tuple[str, ...] | None = None,
    ) -> Formula:
        """Say when all the given selectors take it."""
        parts = []
        if backend is not None:
            parts += [self._of(backend), self._labels.of(backend.labels)]
        if models is not None:
            parts += [self._serves(models), self._model_labels.of(models.labels)]
        if pools is not None:
            parts.append(every((self._is(BackendType.LOCAL), some(map(self._in_pools.of, pools)))))
        return every(parts)

    def share(self, backend: str | None, model: str | None) -> Formula:
        """Say when it is of a backend, or of a model, by exact name."""
        # No name has a star in it, so one that has is nobody's.
        given = [name for name in (backend, model) if name is not None]
        if not given or any("*" in name for name in given):
            return FALSE
        parts = [self._named((backend,))] if backend is not None else []
        return every((*parts, self._models.of(model)) if model is not None else parts)

    def meant(self) -> Formula:
        """Say when it serves a model that the request means."""
        return Atom(self.means, 0b01)

    def target(self, masks: Masks, model: ModelName) -> Target | None:
        """Return the backend of an answer; `None`: no names are as they must be."""
        labels = self._labels.read(masks)
        if first(self._type, masks) is BackendType.PROVIDER:
            name = first(self._provider, masks)
            return Target(name, BackendType.PROVIDER, model, frozenset({name}), labels)
        must, must_not = self._called.settled(masks)
        in_pools, not_in_pools = self._in_pools.settled(masks)
        pools = {self._texts.find((glob,), must_not | not_in_pools) for glob in in_pools}
        names = {self._texts.find((glob,), must_not) for glob in must}
        own = self._texts.find((), must_not)
        if not own or "" in pools | names:
            return None
        called = frozenset({own, *names, *pools})
        return Target(own, BackendType.LOCAL, model, called, labels, frozenset(pools))

    def model(self, masks: Masks, texts: Texts, requested: str | None, fits: Fits) -> Model | None:
        """Return the model of an answer; `requested` is one of its names where it is meant."""
        names, not_names = self._models.settled(masks)
        classes, not_classes = self._classes.settled(masks)
        if requested is not None:
            not_names |= fits.no
            not_classes |= fits.no
        rather: set[str] = set() if requested is None else fits.some
        aliases = {texts.find((glob,), not_names, rather) for glob in names}
        called = {texts.find((glob,), not_classes, rather) for glob in classes}
        own = texts.find((), not_names, rather)
        if requested is not None:
            if not texts.fitting(requested) & not_names:
                own = requested
            elif not texts.fitting(requested) & not_classes:
                called.add(requested)
            else:
                return None
            for glob in fits.all:
                as_class = texts.find((glob,), not_classes, rather)
                as_alias = "" if as_class else texts.find((glob,), not_names, rather)
                called |= {as_class} if as_class else set()
                aliases |= set() if as_class else {as_alias}
        if not own or "" in aliases | called:
            return None
        labels = self._model_labels.read(masks)
        return Model(ModelName(own), frozenset(aliases - {own}), frozenset(called), labels)

    def _is(self, type_: BackendType) -> Formula:
        return atom(self._type, 1 << _TYPES.index(type_))

    def _of(self, selector: BackendSelector) -> Formula:
        named = TRUE if selector.names is None else self._named(selector.names)
        return every((TRUE if selector.type is None else self._is(selector.type), named))

    def _named(self, globs: Sequence[str]) -> Formula:
        """Say when a name of it fits: a provider has one, an engine several."""
        fits = any_of(globs)
        texts = enumerate(self._texts.values)
        provider = atom(self._provider, sum(1 << n for n, text in texts if fits((text,))))
        local = TRUE if "*" in globs else some(map(self._called.of, globs))
        return some(
            (
                every((self._is(BackendType.PROVIDER), provider)),
                every((self._is(BackendType.LOCAL), local)),
            )
        )

    def _serves(self, selector: ModelSelector) -> Formula:
        if selector.names is None and selector.classes is None:
            return TRUE
        names = selector.names or ()
        known = TRUE if "*" in names else some(map(self._models.of, names))
        return some((known, *map(self._classes.of, selector.classes or ())))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _helper(model: ModelName) -> Target:
    """Return an engine whose pool is in the state that an answer needs."""
    pool = "another-pool"
    names = frozenset({pool, "another-engine"})
    return Target("another-engine", BackendType.LOCAL, model, names, {}, frozenset({pool}))
