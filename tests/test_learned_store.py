"""What was learned outlives a restart, and a store that is away harms nothing."""

from coordinator.predict import Learned
from coordinator.state.learned_store import KEY, LearnedStore
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
    await store.compare_and_set(KEY, None, b"not json")
    kept = LearnedStore(learner, store)
    await kept.load()
    await kept.save()
    revision = await store.revision()
    await kept.save()
    assert await store.revision() == revision
    await store.close()


class Away:
    """A store that cannot be reached."""

    async def get(self, key: str) -> Stored | None:
        raise StoreUnavailable("gone")


async def test_a_store_that_is_away_is_no_fault() -> None:
    kept = LearnedStore(learned(5), Away())  # type: ignore[arg-type]
    await kept.load()
    await kept.save()
