"""The simulated block pool: order of eviction, copies, what is never evicted."""

from simulate.blocks import BlockId, BlockPool
from simulate.content import (
    PLAIN,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Chain,
    Lora,
    Scope,
)

SIZE = 4


def chain(tokens: list[int], scope: Scope = PLAIN) -> Chain:
    made = Chain(scope, SIZE)
    made.extend(tokens)
    return made


def store(pool: BlockPool, tokens: list[int]) -> list[BlockId]:
    hashes = chain(tokens).hashes
    blocks = pool.allocate(len(hashes))
    pool.store(blocks, BlockStored(hashes, None, tokens, SIZE, None, [None] * len(hashes), None))
    return blocks


def test_block_zero_is_never_given_out() -> None:
    pool = BlockPool(4, SIZE)
    assert pool.allocate(pool.free) == [1, 2, 3]
    assert pool.census() == (3, 0, 0)


def test_a_hash_depends_on_everything_before_it_and_on_the_scope() -> None:
    tokens = list(range(8))
    salted = Scope(cache_salt="a")
    tuned = Scope(lora=Lora(1, "sql"))
    hashes = {
        scope: tuple(chain(tokens, scope).hashes)
        for scope in (PLAIN, salted, Scope(cache_salt="b"), tuned, Scope(Lora(1, "sql"), "a"))
    }
    assert len({found for pair in hashes.values() for found in pair}) == 10
    assert chain([9, *tokens[1:]]).hashes[1] != hashes[PLAIN][1]
    assert tuple(chain(tokens, Scope(lora=Lora(2, "sql"))).hashes) == hashes[tuned]


def test_a_chain_that_grows_equals_one_made_at_once() -> None:
    grown = Chain(Scope(cache_salt="a"), SIZE)
    for end in range(14):
        grown.extend(list(range(end)))
    assert grown.hashes == chain(list(range(13)), Scope(cache_salt="a")).hashes


def test_extra_keys_name_the_adapter_on_every_block_and_the_salt_on_the_first() -> None:
    scope = Scope(Lora(1, "sql"), "tenant-b")
    assert [scope.extra_keys(0), scope.extra_keys(1)] == [["sql", "tenant-b"], ["sql"]]
    assert [PLAIN.extra_keys(0), Scope(cache_salt="s").extra_keys(1)] == [None, None]


def test_the_tail_of_the_prefix_released_first_is_evicted_first() -> None:
    pool = BlockPool(6, SIZE)
    old, young = list(range(8)), list(range(50, 58))
    for tokens in (old, young):
        pool.release(store(pool, tokens))
    pool.take_events()
    pool.allocate(4)  # one blank block is left
    first, second = chain(old).hashes, chain(young).hashes
    expected = [BlockRemoved(h) for h in (first[1], first[0], second[1])]
    assert pool.take_events() == expected


def test_a_hit_saves_a_block_from_eviction() -> None:
    pool = BlockPool(3, SIZE)
    tokens = list(range(8))
    pool.release(store(pool, tokens))
    pool.take_events()
    found = pool.find(chain(tokens).hashes)
    assert pool.idle(found) == 2
    pool.hold(found[:1])
    assert (pool.free, pool.allocate(1)) == (1, [found[1]])
    assert pool.take_events() == [BlockRemoved(chain(tokens).hashes[1])]


def test_each_copy_of_a_hash_is_stored_and_removed_by_its_own_event() -> None:
    pool = BlockPool(3, SIZE)
    tokens = [1, 2, 3, 4]
    (only,) = chain(tokens).hashes
    copies = [*store(pool, tokens), *store(pool, tokens)]
    assert pool.content() == {only: 2}
    assert pool.find([only]) == copies[:1]
    pool.release(copies)
    pool.take_events()
    pool.allocate(1)
    assert (pool.content(), pool.take_events()) == ({only: 1}, [BlockRemoved(only)])
    pool.allocate(1)
    assert (pool.content(), pool.take_events()) == ({}, [BlockRemoved(only)])


def test_reset_is_refused_while_a_block_is_in_use() -> None:
    pool = BlockPool(4, SIZE)
    blocks = store(pool, [1, 2, 3, 4])
    pool.take_events()
    assert (pool.reset(), pool.take_events()) == (False, [])
    pool.release(blocks)
    assert (pool.reset(), pool.take_events()) == (True, [AllBlocksCleared()])
    assert (pool.content(), pool.census()) == ({}, (0, 0, 3))
