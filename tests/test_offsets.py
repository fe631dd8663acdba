"""Shares of offsets: against plain loops, and one fixed distance against all others."""

import numpy as np
import pytest
import torch

from attnviz.attention.capture import capture_layers
from attnviz.commands.profile.tallies import OFFSETS, OffsetTally, StatisticsTally
from attnviz.corpora.batches import Text, batches
from attnviz.corpora.bootstrap import text_weights
from attnviz.model.checkpoint import Checkpoint, from_loaded
from tests import independent
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.test_meanings import TEXTS

MODELS = {"bert": (sharp_bert, bert_tokenizer), "gpt2": (sharp_gpt2, gpt2_tokenizer)}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    make, tokenizer = MODELS[request.param]
    return from_loaded(make(), tokenizer())


def counted(
    checkpoint: Checkpoint,
    numbers: list[int],
    batch_size: int = 1,
    kind: type[OffsetTally] | type[StatisticsTally] = OffsetTally,
) -> OffsetTally | StatisticsTally:
    tally = kind(3, 4, checkpoint.architecture.causal, replicates=3)
    texts = [Text(TEXTS[number], number=number) for number in numbers]
    for batch in batches(checkpoint, texts, batch_size):
        tally.begin(batch, text_weights(0, [item.source.number for item in batch.items], 3))
        capture_layers(
            checkpoint,
            batch.inputs,
            lambda record, batch=batch: tally.add(record.layer, record.pattern.double(), batch),
        )
    return tally


@pytest.mark.parametrize("batch_size", [1, 3])
def test_shares_and_baselines_are_those_of_plain_loops(checkpoint: Checkpoint, batch_size: int):
    causal = checkpoint.architecture.causal
    tally = counted(checkpoint, [0, 1, 2, 3], batch_size)
    shares, _, baselines = tally.results()
    at = np.zeros((3, 4, len(OFFSETS)))
    total, uniform, queries = np.zeros((3, 4)), np.zeros(len(OFFSETS)), 0
    for text in TEXTS:
        sink = independent.sink_flags(checkpoint.model, checkpoint.tokenizer, text, None)
        patterns = independent.attentions(checkpoint.model, checkpoint.tokenizer, text, None)
        content = [i for i, is_sink in enumerate(sink) if not is_sink]
        queries += len(content)
        for q in content:
            keys = [k for k in content if k <= q or not causal]
            for k in keys:
                place = k - q + 8 if abs(k - q) <= 8 else None
                total += patterns[:, :, q, k]
                if place is not None:
                    uniform[place] += 1 / len(keys)
                    at[:, :, place] += patterns[:, :, q, k]
    measurable = [place for place, offset in enumerate(OFFSETS) if offset <= 0 or not causal]
    np.testing.assert_allclose(shares[..., measurable], (at / total[..., None])[..., measurable], atol=1e-6)
    np.testing.assert_allclose(baselines[measurable], uniform[measurable] / queries, atol=1e-12)
    np.testing.assert_allclose(tally.on_content(), total / queries, atol=1e-6)
    assert shares.isnan().any().item() is causal
    assert baselines.isnan().sum() == (8 if causal else 0)
    assert (tally.n_texts, tally.n_content) == (4, queries)


def test_offsets_agree_with_the_shares_that_have_names(checkpoint: Checkpoint):
    shares, errors, baselines = counted(checkpoint, [0, 1, 2, 3], 2).results()
    named = counted(checkpoint, [0, 1, 2, 3], 2, StatisticsTally)
    found, spreads = named.results()
    for name, offset in {"previous": -1, "current": 0, "next": 1}.items():
        place = OFFSETS.index(offset)
        assert torch.allclose(shares[..., place], found[name], atol=1e-7, equal_nan=True)
        assert torch.allclose(errors[..., place], spreads[name], atol=1e-7, equal_nan=True)
        expected = named.baselines()[name]
        assert float(baselines[place]) == pytest.approx(float("nan") if expected is None else expected, nan_ok=True)


@pytest.mark.parametrize("offset", [-8, -3, 4])
def test_attention_at_one_distance_is_all_at_its_offset(offset: int):
    tally = OffsetTally(1, 1, False, replicates=2)
    (batch,) = batches(from_loaded(sharp_bert(), bert_tokenizer()), [Text(TEXTS[3])], 1)
    n = batch.valid.shape[1]
    tally.begin(batch, torch.ones(3, 1, dtype=torch.float64))
    tally.add(0, torch.diag(torch.ones(n - abs(offset)), offset)[None, None], batch)
    shares, _, _ = tally.results()
    assert shares[0, 0].tolist() == [float(other == offset) for other in OFFSETS]
