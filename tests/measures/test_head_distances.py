"""The Jensen-Shannon divergence between heads, against closed forms and plain loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnviz.measures.head_distances import MOST_QUERIES, HeadDistanceTally
from attnviz.measures.measure import LayerRows
from attnviz.measures.tallies import counting
from tests.support.tolerances import SUMS_32, SUMS_64


def batch_of(*lengths):
    """Texts of these lengths: all that a tally looks at."""
    n = max(lengths)
    return SimpleNamespace(valid=torch.arange(n) < torch.tensor(lengths)[:, None])


def random_patterns(n_layers, n_heads, lengths, seed=0):
    """[n_layers, batch, n_heads, n, n], nothing on padding keys, rubbish in the rows of padding queries."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    raw = torch.rand(n_layers, len(lengths), n_heads, n, n, generator=generator, dtype=torch.float64) ** 4
    raw = raw * (torch.arange(n) < torch.tensor(lengths)[:, None])[None, :, None, None, :]
    return raw / raw.sum(-1, keepdim=True)


def tally_of(n_layers, n_heads):
    architecture = SimpleNamespace(learned_sinks=False)
    return HeadDistanceTally(SimpleNamespace(n_layers=n_layers, n_heads=n_heads, architecture=architecture))  # type: ignore[arg-type]


def counted(patterns, lengths, tally=None):
    tally = tally or tally_of(len(patterns), patterns.shape[2])
    batch = batch_of(*lengths)
    with counting([tally], batch, torch.ones(1, len(lengths))) as add:
        for layer, pattern in enumerate(patterns):
            add(layer, pattern)
    return tally


def divergence(p, q):
    """Half of Kullback and Leibler from p to the middle, half from q: a plain loop, smoothed as Clark et al. do."""
    total = 0.0
    smooth = [[0.999 * float(weight) + 0.001 / len(p) for weight in row] for row in (p, q)]
    for a, b in zip(*smooth, strict=True):
        middle = (a + b) / 2
        total += a * math.log(a / middle) / 2 + b * math.log(b / middle) / 2
    return total


def expected(patterns, lengths):
    heads = patterns.transpose(1, 2).flatten(0, 1).numpy()  # [n_all_heads, batch, n, n]
    places = [(text, query, length) for text, length in enumerate(lengths) for query in range(length)]

    def between(one, other):
        rows = ((each[text, query, :length] for each in (one, other)) for text, query, length in places)
        return sum(divergence(*pair) for pair in rows) / len(places)

    return np.array([[between(one, other) for other in heads] for one in heads])


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, SUMS_64), (torch.bfloat16, SUMS_32)])
def test_it_is_the_mean_over_queries_of_a_plain_loop(dtype, limit):
    """Of patterns of fewer digits in single precision."""
    lengths = (5, 2, 7)
    patterns = random_patterns(2, 3, lengths).to(dtype)
    found = counted(patterns, lengths)
    assert (found.n_queries, found.results().dtype) == (14, torch.float64)
    np.testing.assert_allclose(found.results(), expected(patterns.double(), lengths), atol=limit)


def test_of_many_queries_a_few_evenly_spread_are_compared():
    n, texts = 60, 20
    lengths = (n,) * texts
    patterns = torch.zeros(1, texts, 2, n, n)
    patterns[..., 0] = 1.0  # alike, but in the second half of the texts' second heads
    patterns[:, texts // 2 :, 1, :, 0] = 0.0
    patterns[:, texts // 2 :, 1, :, 1] = 1.0
    found = counted(patterns, lengths)
    assert found.n_queries == MOST_QUERIES < n * texts
    assert float(found.results()[0, 1]) == pytest.approx(math.log(2) / 2, abs=0.01)


def test_states_of_two_tallies_add_up_to_that_of_one():
    first, second = random_patterns(2, 2, (4, 3), seed=1), random_patterns(2, 2, (6,), seed=2)
    both = counted(second, (6,), counted(first, (4, 3)))
    merged = counted(first, (4, 3))
    merged.merge(counted(second, (6,)).state())
    assert merged.n_queries == both.n_queries == 13
    assert torch.equal(merged.results(), both.results())
    assert not torch.allclose(merged.results(), counted(first, (4, 3)).results())


def test_a_batch_that_broke_off_is_forgotten():
    patterns = random_patterns(2, 2, (5,))
    tally = tally_of(2, 2)
    tally.begin(batch_of(3), torch.ones(1, 1))
    tally.update(LayerRows(0, random_patterns(1, 2, (3,))[0]))
    counted(patterns, (5,), tally)
    assert tally.n_queries == 5
    assert torch.equal(tally.results(), counted(patterns, (5,)).results())


def test_layers_come_in_order():
    tally = tally_of(3, 2)
    tally.begin(batch_of(5), torch.ones(1, 1))
    with pytest.raises(ValueError, match="layer 0"):
        tally.update(LayerRows(1, random_patterns(1, 2, (5,))[0]))
