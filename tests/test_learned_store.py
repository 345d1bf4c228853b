"""What was learned outlives a restart, and a store that is away harms nothing."""

import msgspec

from coordinator.load.predict import Learned
from coordinator.state.learned_store import AGAIN_S, EVERY_S, KEY, LearnedStore
from coordinator.state.store import Stored, StoreUnavailable
from coordinator.state.stores.sqlite import SqliteStore
from tests.test_predict import A, learned


async def test_a_restart_begins_with_what_was_learned() -> None:
    store, before, after = SqliteStore(":memory:"), learned(50), Learned(20_000.0, 0.008)
    await LearnedStore(before, store).save()
    await LearnedStore(after, store).load()
    assert after.params(A) == before.params(A)
    await store.close()


async def test_nothing_is_written_twice_and_nonsense_is_left() -> None:
    store, learner = SqliteStore(":memory:"), learned(50)
    before = learner.saved()
    await store.compare_and_set(KEY, None, b"not json")
    kept = LearnedStore(learner, store)
    await kept.load()
    assert learner.saved() == before
    await kept.save()
    revision = await store.revision()
    await kept.save()
    assert await store.revision() == revision
    stored = await store.get(KEY)
    assert stored is not None
    assert msgspec.json.decode(stored.value) == before
    await store.close()


class Away:
    """A store that is away for so many calls, then the one that it stands for."""

    def __init__(self, store: SqliteStore, calls: int) -> None:
        self._store = store
        self.left = calls

    async def get(self, key: str) -> Stored | None:
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("gone")
        return await self._store.get(key)

    async def compare_and_set(self, key: str, revision: int | None, value: bytes) -> object:
        return await self._store.compare_and_set(key, revision, value)


async def test_a_store_that_was_away_gives_what_it_has_before_it_is_written() -> None:
    store, other, mine = SqliteStore(":memory:"), learned(50), Learned(20_000.0, 0.008)
    await LearnedStore(other, store).save()
    revision = await store.revision()
    kept = LearnedStore(mine, Away(store, 2))  # type: ignore[arg-type]
    await kept.load()
    assert mine.params(A) != other.params(A)
    await kept.save()  # away still
    assert await store.revision() == revision
    await kept.save()
    assert mine.params(A) == other.params(A)
    await store.close()


async def test_one_that_goes_away_later_is_written_to_when_it_is_back() -> None:
    store, learner = SqliteStore(":memory:"), learned(50)
    away = Away(store, 0)
    kept = LearnedStore(learner, away)  # type: ignore[arg-type]
    await kept.load()
    away.left = 1
    await kept.save()
    assert (kept.away, await store.get(KEY)) == ("gone", None)
    await kept.save()
    assert (kept.away, await store.get(KEY) is not None) == ("", True)
    await store.close()


async def test_a_write_that_failed_is_made_up_for_soon() -> None:
    store = SqliteStore(":memory:")
    away = Away(store, 0)
    kept = LearnedStore(learned(50), away)  # type: ignore[arg-type]
    await kept.load()
    away.left = 1
    await kept.save()
    assert (kept.away, kept.pause_s) == ("gone", AGAIN_S)
    await kept.save()
    assert (kept.away, kept.pause_s) == ("", EVERY_S)
    await store.close()
