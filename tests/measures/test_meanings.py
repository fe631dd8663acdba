"""Attention to words alike in meaning: against plain loops."""

import numpy as np
import pytest
import torch

from attnviz.measures.bootstrap import text_weights
from attnviz.measures.tallies import MeaningTally, mean_embedding
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.texts.reading import Text
from tests.support import independent
from tests.support.corpora import count
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.tolerances import SUMS_32

TEXTS = ["the cat saw the dog", "the unbelievable cat ran away", "one two", "he saw the house of the dog that ran away"]


def counted(checkpoint: Checkpoint, places: list[int], batch_size: int = 1) -> MeaningTally:
    """A tally of these of the texts, every replicate weighted by their places."""
    texts = [Text(TEXTS[place], number=10 + place) for place in places]
    tally: MeaningTally = count(MeaningTally(checkpoint, 3), checkpoint, texts, batch_size)
    return tally


def by_hand(checkpoint: Checkpoint, texts: list[str]) -> tuple[np.ndarray, float]:
    """Scores, [n_layers, n_heads], and baseline as defined, pair by pair."""
    tokenizer, causal = checkpoint.tokenizer, checkpoint.architecture.causal
    table = checkpoint.model.get_input_embeddings().weight.detach().double()
    special = tokenizer.all_special_tokens
    ordinary = [i for i in range(len(tokenizer)) if tokenizer.convert_ids_to_tokens(i) not in special]
    table = table - table[ordinary].mean(0)
    weighted, total, means = 0.0, 0.0, []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        sink = independent.sink_flags(checkpoint.model, tokenizer, text, None)
        patterns = independent.attentions(checkpoint.model, tokenizer, text, None)
        for q in range(len(ids)):
            found = []
            for k in range(q + 1 if causal else len(ids)):
                if sink[q] or sink[k] or ids[q] == ids[k]:
                    continue
                found.append(float(torch.cosine_similarity(table[ids[q]], table[ids[k]], dim=0)))
                weighted = weighted + patterns[:, :, q, k] * found[-1]
                total = total + patterns[:, :, q, k]
            means += [sum(found) / len(found)] if found else []
    return weighted / total, sum(means) / len(means)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_and_baseline_are_those_of_plain_loops(checkpoint: Checkpoint, batch_size: int):
    tally = counted(checkpoint, [0, 1, 2, 3], batch_size)
    found = tally.results()
    expected, expected_baseline = by_hand(checkpoint, TEXTS)
    assert expected.shape == (3, 4)
    np.testing.assert_allclose(found.scores[0], expected, atol=SUMS_32)
    np.testing.assert_allclose(found.baseline[0], np.full((3, 4), expected_baseline), atol=SUMS_32)
    assert (found.texts, found.n.unique().tolist()) == (4, [tally.n_queries])


def test_errors_are_those_of_texts_that_count_as_often_as_drawn(checkpoint: Checkpoint):
    weights = text_weights(0, [10, 11, 12, 13], 3)[1:].long()
    assert int(weights.sum(1).min()) > 0
    assert len({tuple(row) for row in weights.tolist()}) == 3
    drawn = [counted(checkpoint, torch.arange(4).repeat_interleave(row).tolist()).results() for row in weights]
    found = counted(checkpoint, [0, 1, 2, 3], 2).results()
    torch.testing.assert_close(found.errors, torch.stack([each.scores for each in drawn]).std(0), atol=SUMS_32, rtol=0)
    above = torch.stack([each.scores - each.baseline for each in drawn]).std(0)
    torch.testing.assert_close(found.differences, above, atol=SUMS_32, rtol=0)
    assert float(found.differences.min()) > 0


def test_a_text_of_one_word_over_and_over_has_no_pairs(checkpoint: Checkpoint):
    found = count(MeaningTally(checkpoint, 2), checkpoint, [Text("cat cat cat")], replicates=2).results()
    assert found.scores.isnan().all()
    assert found.baseline.isnan().all()
    assert not found.n.any()


def test_special_tokens_and_rows_that_no_token_has_are_left_out_of_the_mean():
    model, tokenizer = sharp_bert(vocab_size=len(bert_tokenizer()) + 7), bert_tokenizer()
    table = model.get_input_embeddings().weight
    expected = table[[i for i in range(len(tokenizer)) if i not in range(5)]].mean(0)
    with torch.no_grad():
        table[:5] += 100
        table[len(tokenizer) :] -= 50
    assert torch.allclose(mean_embedding(from_loaded(model, tokenizer)), expected.double(), atol=SUMS_32)
