"""Models of which some layers do not attend: heads keep the numbers of their layers."""

import pytest

import attnviz
from attnviz.errors import UsageError
from attnviz.models.families import ARCHITECTURES
from tests.support.families import TEXT, checkpoint_of
from tests.support.llamas import HYBRID

KINDS = ["conv", "full_attention", "conv", "full_attention", "conv"]


@pytest.fixture(scope="module")
def lfm2():
    return checkpoint_of("lfm2", num_hidden_layers=5, layer_types=KINDS)


def test_heads_are_numbered_as_in_the_model_and_the_other_layers_said(lfm2):
    result = attnviz.analyze(TEXT, lfm2, syntax=False)
    assert [str(head.id) for head in result.heads] == [f"L{layer}H{head}" for layer in (1, 3) for head in range(4)]
    assert str(result.select("L3H2")[0].id) == str(result.head("3.2").id) == "L3H2"
    assert len(result.select("L0-3H1")) == 2
    document = result.document()
    assert (document["model"]["n_layers"], document["model"]["attending_layers"]) == (5, [1, 3])
    assert {head["layer"] for head in document["heads"]} == {1, 3}
    assert [check["layer"] for check in document["verification"]["layers"]] == [1, 3]
    assert result.layer_patterns(3).equal(result.attention()[1])


@pytest.mark.parametrize("selection", ["L0H1", "L2", "L4-4", "L7"])
def test_a_layer_that_does_not_attend_has_no_heads(lfm2, selection):
    result = attnviz.analyze(TEXT, lfm2, syntax=False)
    with pytest.raises(UsageError):
        result.select(selection)
    with pytest.raises(UsageError):
        result.layer_patterns(2)


def test_a_pass_resumed_at_a_layer_runs_the_mixers_after_it_and_parts_of_all_layers_sum(lfm2):
    result = attnviz.ablate(TEXT, lfm2, method="zero", curve=False)  # compares resumed passes with whole ones
    assert {str(head.id)[:2] for head in result.heads} == {"L1", "L3"}
    effects = attnviz.head_outputs(TEXT, lfm2).effects
    assert {str(part.layer) for part in effects.parts if part.name == "mixer"} == {"0", "2", "4"}


@pytest.mark.parametrize("family", HYBRID)
def test_a_layer_taken_for_one_without_attention_fails(family, monkeypatch):
    monkeypatch.setattr(ARCHITECTURES[family], "attending", lambda _: [0], raising=False)
    with pytest.raises(attnviz.errors.AttnvizError):
        attnviz.analyze(TEXT, checkpoint_of(family), syntax=False)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("granitemoehybrid", {"num_local_experts": 0, "num_experts_per_tok": 0}), ("jamba", {"num_experts": 1})],
)
def test_a_hybrid_without_experts_is_verified(family, changes):
    assert len(attnviz.analyze(TEXT, checkpoint_of(family, **changes), syntax=False).heads) == 4
