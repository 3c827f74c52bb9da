import pytest
import torch

from curlicue.memory.nothing import Nothing
from learning import moved_on, terms_of

Y = torch.tensor([0, 0, 2, 0])
TERMS = terms_of(torch.zeros(4), Y)


def test_nothing_is_ever_rehearsed_and_no_snapshot_is_taken(make_model, make_batch):
    memory = Nothing(make_model(K=3))
    for t in range(3):
        assert memory.begin(t) == memory.look(TERMS, t) == memory.before_birth(t) == []
        memory.take(make_batch(4), TERMS)
        assert not memory.ready
    with pytest.raises(LookupError, match="keeps nothing of the past"):
        memory.recall(4)


def test_real_samples_are_counted_for_the_components_that_explain_them(make_model, make_batch):
    memory = Nothing(make_model(K=3))
    memory.take(make_batch(4), TERMS)
    memory.born()
    memory.take(make_batch(2), terms_of(torch.zeros(2), torch.tensor([3, 0]), K=4))
    assert memory.counts().tolist() == [4, 0, 1, 1]


def test_the_counts_of_a_long_stream_do_not_get_stuck(make_model, make_batch):
    """In float32 nothing is left of a sample after 2²⁴ others."""
    memory = Nothing(make_model(K=3))
    memory.used += 2**24
    memory.take(make_batch(4), TERMS)
    assert (memory.counts() - 2**24).tolist() == [3, 0, 1]


def test_a_restored_memory_goes_on_counting(make_model, make_batch):
    first = Nothing(make_model(K=3))
    first.take(make_batch(4), TERMS)
    second = moved_on(first, Nothing(make_model(K=3)))
    second.take(make_batch(4), TERMS)
    assert second.counts().tolist() == [6, 0, 2]
    assert first.counts().tolist() == [3, 0, 1]
