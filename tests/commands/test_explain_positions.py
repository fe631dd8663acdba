"""Content and position in the scores of the first layer: known truth, invariance, closed forms."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.commands.explain import position_share
from attnviz.commands.explain.position_share import (
    GROUPS,
    TERMS,
    PositionShares,
    position_shares,
    score_parts,
    score_terms,
)
from attnviz.commands.explain.reference import embedded
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.trace.residual_parts import recording_parts
from tests.conftest import SENTENCE
from tests.support.explained import BOTH, DTYPES, bert, gpt2, steps_of
from tests.support.models import (
    LOOKS_AT,
    bert_tokenizer,
    gpt2_tokenizer,
    hand_built_bert,
    hand_built_gpt2,
    sharp_bert,
)


def recorded(checkpoint: Checkpoint, text: str = SENTENCE, pair: str | None = None) -> Any:
    with recording_parts(checkpoint, checkpoint.tokenize(text, pair), 0) as written:
        (stages,) = steps_of(checkpoint, [0], text, pair)
    return stages, written


def shares_of(checkpoint: Checkpoint, text: str = SENTENCE, pair: str | None = None) -> PositionShares:
    return position_shares(checkpoint, checkpoint.tokenize(text, pair), *recorded(checkpoint, text, pair))


def groups_of(found: PositionShares) -> list[dict[str, float | None]]:
    return [share.groups for share in (*found.heads, found.layer)]


@BOTH
@DTYPES
def test_shares_of_every_head_sum_to_one(build: Any, dtype: torch.dtype) -> None:
    checkpoint = build()
    checkpoint.model.to(dtype)
    found = shares_of(checkpoint)
    assert len(found.heads) == 4
    assert found.error <= found.tolerance
    for share in (*found.heads, found.layer):
        for parts in (share.terms, share.groups):
            assert sum(value or 0.0 for value in parts.values()) == pytest.approx(1, abs=1e-5)
        assert share.spread > 0


@pytest.mark.parametrize(("build", "pair"), [(bert, None), (bert, "the dog"), (gpt2, None)])
def test_the_parts_add_up_to_the_queries(build: Any, pair: str | None) -> None:
    checkpoint = build()
    stages, written = recorded(checkpoint, pair=pair)
    heads = checkpoint.architecture.parameters(checkpoint.model, 0)
    with torch.no_grad():
        parts = score_parts(written, heads.query, 1)
    assert torch.allclose(torch.stack(list(parts.values())).sum(0), stages["split"].tensor[0, 1], atol=1e-5)
    assert (parts["segment"].abs().max() > 1e-5) == (pair is not None)
    assert torch.allclose(embedded(checkpoint, checkpoint.tokenize(SENTENCE, pair)), stages["input"].tensor)


def test_without_positions_everything_is_content() -> None:
    model = sharp_bert()
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    for groups in groups_of(shares_of(from_loaded(model, bert_tokenizer()))):
        assert groups["position"] == groups["both"] == 0
        assert groups["content"] == pytest.approx(1 - (groups["constant"] or 0), abs=1e-5)


@pytest.mark.parametrize(("build", "tokenizer"), [(hand_built_bert, bert_tokenizer), (hand_built_gpt2, gpt2_tokenizer)])
def test_heads_built_to_look_at_positions_are_found_out(build: Any, tokenizer: Any) -> None:
    model = build([[LOOKS_AT["previous-token"], LOOKS_AT["current-token"]]])
    for groups in groups_of(shares_of(from_loaded(model, tokenizer()), "one two three four five")):
        assert groups["position"] == pytest.approx(1, abs=0.02)


def test_heads_built_to_look_at_words_are_found_out() -> None:
    """W_Q = W_K read only the dimensions that words have, and positions have none of."""
    model = sharp_bert()
    with torch.no_grad():
        model.embeddings.position_embeddings.weight[:, :16] = 0
        model.embeddings.word_embeddings.weight[:, 16:] = 0
        model.embeddings.token_type_embeddings.weight.zero_()
        for part in (model.encoder.layer[0].attention.self.query, model.encoder.layer[0].attention.self.key):
            part.weight[:, 16:] = 0
    for groups in groups_of(shares_of(from_loaded(model, bert_tokenizer()))):
        assert abs(groups["position"] or 0) + abs(groups["both"] or 0) < 0.15
        assert (groups["content"] or 0) > 0.8


@BOTH
def test_a_vector_that_moves_from_words_to_positions_changes_nothing(build: Any) -> None:
    """It leaves the model as it is, so it must leave the shares as they are."""
    before, after = build(), build()
    tables = after.architecture.embeddings(after.model)
    shift = torch.randn(32) * 0.05
    with torch.no_grad():
        tables.words.add_(shift)
        tables.positions.sub_(shift)
    for one, other in zip(groups_of(shares_of(before)), groups_of(shares_of(after)), strict=True):
        assert [one[name] or 0.0 for name in GROUPS] == pytest.approx([other[name] or 0.0 for name in GROUPS], abs=1e-3)


def test_a_share_is_the_shapley_value_of_the_variance() -> None:
    """By brute force: the mean increase of the variance over all orders in which the terms can come."""
    checkpoint = bert()
    checkpoint.model.double()
    found = shares_of(checkpoint, "the cat ran", "a dog")
    _, written = recorded(checkpoint, "the cat ran", "a dog")
    heads = checkpoint.architecture.parameters(checkpoint.model, 0)
    with torch.no_grad():
        sides = (score_parts(written, side, 1) for side in (heads.query, heads.key))
        terms = dict(score_terms(*sides, heads.scale))
    centred = {name: (term - term.mean(-1, keepdim=True)).flatten().numpy() for name, term in terms.items()}

    def variance(names: tuple[str, ...]) -> float:
        return float(np.square(sum((centred[name] for name in names), start=np.zeros(1))).sum()) if names else 0.0

    whole = variance(TERMS)
    for name in TERMS:
        others = [term for term in TERMS if term != name]
        value = sum(
            (variance((*some, name)) - variance(some)) / (len(TERMS) * math.comb(len(others), size))
            for size in range(len(TERMS))
            for some in itertools.combinations(others, size)
        )
        assert found.heads[1].terms[name] == pytest.approx(value / whole, abs=1e-9)


def test_where_no_score_differs_there_is_nothing_to_tell_apart() -> None:
    one = shares_of(gpt2(), "the")
    assert set(one.layer.terms.values()) == set(one.layer.groups.values()) == {None}
    assert one.layer.spread == 0
    checkpoint = gpt2()
    with torch.no_grad():
        checkpoint.model.h[0].attn.c_attn.weight.zero_()  # type: ignore[union-attr,index]
        checkpoint.model.h[0].attn.c_attn.bias.zero_()  # type: ignore[union-attr,index]
    assert set(shares_of(checkpoint).heads[0].groups.values()) == {None}


@pytest.mark.parametrize("lost", ["content", "position", "constant"])
def test_parts_that_do_not_add_up_are_an_error(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = position_share.score_parts
    monkeypatch.setattr(
        position_share,
        "score_parts",
        lambda *given: {name: part * (name != lost) for name, part in right(*given).items()},
    )
    with pytest.raises(VerificationError):
        shares_of(bert())
