"""What the other commands make of an encoder-decoder: all three kinds of attention, or its encoder alone."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from attnviz import ablate, analyze, compare, head_outputs, rollout
from attnviz.commands.profile.measure import profile_heads
from attnviz.errors import TextError, UsageError, VerificationError
from attnviz.inputs.prompt import TargetTokens, shifted_right
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import from_loaded
from attnviz.run import generate
from attnviz.run.generate import target_tokens
from tests.support.drawn import drawing_of
from tests.support.encoder_decoders import FAMILIES, SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.tolerances import SHARP_32, SUMS_32

SHORT, READ = "the cats saw", "die Katzen sahen"


@pytest.fixture(scope="module")
def tokenizer():
    return unigram_tokenizer()


@pytest.fixture(scope="module")
def models(tokenizer):
    return {family: from_loaded(sharp(family, len(tokenizer)), tokenizer) for family in FAMILIES}


def eager(checkpoint: Any) -> Any:
    checkpoint.model.set_attn_implementation("eager")
    return checkpoint.model


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_rollout_is_that_of_the_encoder_alone(models, family):
    checkpoint = models[family]
    found = rollout(SHORT, checkpoint, residual=0.5)
    ids = torch.tensor([tokenize(checkpoint, SHORT).ids])
    with torch.no_grad():
        patterns = eager(checkpoint).encoder(ids, output_attentions=True).attentions
    rolled = torch.eye(ids.shape[1])
    for pattern in patterns:
        rolled = (pattern[0].mean(0) + torch.eye(ids.shape[1])) / 2 @ rolled
    torch.testing.assert_close(found.weights[-1], rolled, atol=SUMS_32, rtol=0)
    assert len(found.layers) == 2
    assert found.document()["model"]["part"] == "encoder"
    assert len(analyze(SHORT, found.checkpoint, target=READ).parts) == 3  # it has its decoder still


def test_a_profile_is_that_of_the_encoder_alone(models, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{SHORT}\n{SOURCE}\n")
    how: dict[str, Any] = {"syntax": False, "repeats": True, "control": False, "unfinished": tmp_path / "unfinished"}
    found, again = (profile_heads(models["t5"], [corpus], **how) for _ in range(2))
    ids = {f"E{layer}H{head}" for layer in range(2) for head in range(4)}
    assert {str(head) for head in found.roles_by_head()} == ids
    encoders = [analyze(text, models["t5"], target=READ).parts[0] for text in (SHORT, SOURCE)]
    n = [len(part.rows) for part in encoders]
    entropies = [[head.statistics["entropy"] for head in part.heads] for part in encoders]
    expected = np.average(entropies, axis=0, weights=n)
    np.testing.assert_allclose(found.statistics.results()["entropy"].flatten(), expected, atol=SUMS_32)
    torch.testing.assert_close(again.statistics.results()["sink"], found.statistics.results()["sink"])


@pytest.fixture(scope="module")
def compared(models, tokenizer):
    other = from_loaded(sharp("bart", len(tokenizer), seed=1), tokenizer)
    return compare(*(analyze(SHORT, model, target=READ) for model in (models["bart"], other)))


def test_every_head_is_compared_with_the_one_of_its_id(compared):
    assert sorted(str(head.id) for head in compared.heads) == sorted(str(head.id) for head in compared.first.heads)
    for name in ("E1H2", "D2H3", "X0H1"):
        a, b = (side.pattern(name).double().numpy() for side in (compared.first, compared.second))
        found = compared.head(name)
        assert found.total_variation == pytest.approx(np.abs(a - b).sum(1).mean() / 2, abs=SUMS_32)
        assert (b - a)[found.largest.query, found.largest.key] == pytest.approx(found.largest.difference, abs=SUMS_32)


def test_pictures_of_differences_are_rectangular(compared):
    (plan,) = drawing_of("compare", "differences").plans(compared, compared._choices(None, {"select": ["X0H1"]}))
    assert plan.values.shape == (len(compared.first.target.tokens), len(compared.first.tokens))
    assert (plan.labels.texts, plan.keys.texts) == (compared.first.target.tokens.labels, compared.first.tokens.labels)
    with pytest.raises(UsageError, match="page"):
        compared.page()


def test_sides_of_different_targets_or_shapes_are_refused(models, tokenizer):
    one = analyze(SHORT, models["t5"], target=READ)
    with pytest.raises(TextError, match="target"):
        compare(one, analyze(SHORT, models["t5"], target="die Hunde"))
    shallow = from_loaded(sharp("t5", len(tokenizer), num_decoder_layers=2), tokenizer)
    with pytest.raises(UsageError, match="decoder"):
        compare(one, analyze(SHORT, shallow, target=READ))


@pytest.fixture(scope="module")
def written(models) -> Any:
    return cache(lambda family: head_outputs(SHORT, models[family], target=READ))


SOME = ["bart", "t5", *(pytest.param(family, marks=pytest.mark.thorough) for family in ("mbart", "m2m_100"))]


@pytest.mark.parametrize("family", SOME)
def test_outputs_of_every_kind_sum_to_the_models_own(written, models, family):
    found, checkpoint = written(family), models[family]
    given: dict[str, torch.Tensor] = {}
    modules = [checkpoint.architecture.modules(checkpoint.model)[layer] for layer in (0, 2, 5)]
    of_names = dict(zip(("E0", "D0", "X0"), modules, strict=True))
    handles = [
        module.output.register_forward_hook(lambda _, __, out, name=name: given.update({name: out[0][0]}))
        for name, module in of_names.items()
    ]
    source, target = (torch.tensor([tokens.ids]) for tokens in (found.tokens, found.target.tokens))
    with torch.no_grad():
        eager(checkpoint)(input_ids=source, decoder_input_ids=target, use_cache=False)
    for handle in handles:
        handle.remove()
    sink = found.pattern("X0H1")[1:, [each for each, of in enumerate(found.tokens.sink) if of]].sum(1).mean()
    assert found.head("X0H1").sink == pytest.approx(float(sink), abs=SUMS_32)
    for name, module in of_names.items():
        total = sum(found.output(head.id) for head in found.select(name))
        bias = getattr(module.o_proj, "bias", None)
        torch.testing.assert_close(total if bias is None else total + bias, given[name], atol=SUMS_32, rtol=0)


@pytest.mark.parametrize(
    "family", ["t5", "m2m_100", "bart", *(pytest.param(of, marks=pytest.mark.thorough) for of in ("mbart", "pegasus"))]
)
def test_logits_of_the_target_are_taken_apart(written, tokenizer, family):
    found, whole = written(family), sharp(family, len(tokenizer))
    source, target = (torch.tensor([tokens.ids]) for tokens in (found.tokens, found.target.tokens))
    with torch.no_grad():
        logits = whole(input_ids=source, decoder_input_ids=target).logits[0]
    for position in (2, len(found.target.tokens) - 1):
        parts = found.effects_at(position)
        first, second = logits[position].topk(2)[0].tolist()
        assert parts.predicted.id == int(logits[position].argmax())
        total = sum((*parts.heads.values(), *(part.direct_effect for part in parts.parts)))
        assert total == pytest.approx(first - second, abs=SHARP_32 * parts.scale)
        assert {str(head)[0] for head in parts.heads} == {"D", "X"}
        assert [part.layer for part in parts.parts if part.name == "feed-forward"] == [2, 3, 4]  # those of the decoder
    assert found.effects_at(2).actual.id == found.target.tokens.ids[3]
    with pytest.raises(UsageError, match="E0H1"):
        found.promoted("E0H1")
    entries = {head["id"]: head for head in found.document()["heads"]}
    assert (entries["E0H1"]["promotion"], entries["E0H1"]["direct_effect"]) == (None, None)
    assert entries["X0H1"]["direct_effect"] == found.effects.heads[found.head("X0H1").id]


@pytest.mark.parametrize(
    ("family", "setting", "wrong"),
    [("m2m_100", "first_row", 1), ("m2m_100", "positions_after_padding", False), ("pegasus", "first_row", 2)],
)
def test_positions_of_other_rows_make_no_sum(models, monkeypatch, family, setting, wrong):
    monkeypatch.setattr(type(models[family].architecture), setting, wrong)
    with pytest.raises(VerificationError):
        head_outputs(SHORT, models[family], target=READ)


def loss_without(whole: Any, checkpoint: Any, head: str, method: str, text: str, target: str) -> float:
    """The loss of a target, a mean over its tokens, without one head: by transformers' own loss and a plain hook."""
    letter, number, which = head[0], int(head[1]), int(head[3])
    inner = getattr(whole, "model", whole)
    side = inner.encoder if letter == "E" else inner.decoder
    if hasattr(side, "block"):
        cross, layers = letter == "X", side.block[number].layer
        output = (layers[1].EncDecAttention if cross else layers[0].SelfAttention).o
    else:
        layer = side.layers[number]
        output = (layer.encoder_attn if letter == "X" else layer.self_attn).out_proj
    n_heads = next(stack for stack in checkpoint.stacks if stack.letter == letter).n_heads

    def change(_, args):
        changed = args[0].clone()
        of_head = changed.unflatten(-1, (n_heads, -1))[..., which, :]
        of_head[:] = of_head[0].mean(0) if method == "mean" else 0.0
        return (changed,)

    ids, labels = (torch.tensor([checkpoint.tokenizer(each).input_ids]) for each in (text, target))
    handle = output.register_forward_pre_hook(change)
    with torch.no_grad():
        loss = float(whole(input_ids=ids, labels=labels, use_cache=False).loss)
    handle.remove()
    return loss


@pytest.mark.parametrize(("family", "method"), [("bart", "zero"), ("t5", "mean")])
def test_the_loss_without_a_head_is_transformers_own(models, tokenizer, family, method):
    checkpoint, whole = models[family], sharp(family, len(tokenizer)).double()  # two losses that nearly cancel
    found = ablate(SOURCE, checkpoint, target=TARGET, method=method, curve=False)
    ids, labels = (torch.tensor([tokenizer(each).input_ids]) for each in (SOURCE, TARGET))
    with torch.no_grad():
        clean = float(whole(input_ids=ids, labels=labels).loss)
    assert found.clean["loss"] == pytest.approx(clean, abs=SUMS_32)
    for head in ("E1H2", "D0H1", "D2H3", "X1H0", "X2H3"):
        expected = loss_without(whole, checkpoint, head, method, SOURCE, TARGET)
        assert found.head(head).damage["loss"].value == pytest.approx(expected - clean, abs=SUMS_32 * clean), head
    assert len(found.heads) == sum(stack.n_layers * stack.n_heads for stack in checkpoint.stacks)
    assert max(abs(each.damage["loss"].value) for each in found.heads) > 1e-4


@pytest.mark.parametrize("family", ["bart", pytest.param("t5", marks=pytest.mark.thorough)])
def test_batches_with_padding_in_both_texts_change_nothing(models, family, monkeypatch):
    """Two texts and targets of other lengths read at once, and one at a time."""
    targets = {tuple(tokenize(models[family], text).ids): target for text, target in ((SHORT, READ), (SOURCE, TARGET))}

    def given(checkpoint, tokens, *_):
        target = targets[tuple(tokens.ids)]
        whole = tokenize(checkpoint, target, target=True)
        start = checkpoint.config.decoder_start_token_id
        predicted = whole.ids[whole.ids[0] == start :]
        return TargetTokens(target, shifted_right(whole, start, "start"), True, predicted)

    monkeypatch.setattr(generate, "target_tokens", given)
    options: dict[str, Any] = {"method": "uniform", "select": ["E0", "D1", "X"]}
    alone, together = (ablate([SHORT, SOURCE], models[family], batch_size=size, **options) for size in (1, 2))
    for one, other in zip(alone.heads, together.heads, strict=True):
        assert one.id == other.id
        assert one.damage["loss"].value == pytest.approx(other.damage["loss"].value, abs=SUMS_32)
        assert one.gradient == pytest.approx(other.gradient, rel=1e-3, abs=SUMS_32)
    assert [set_.heads[0].layer_name for set_ in together.layers] == ["E0", "D1", "X0", "X1", "X2"]
    assert together.verified.n_inputs == 2


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_the_loss_is_on_the_tokens_that_were_generated(models, tokenizer, family):
    """Not on those of their text read again, which may be others, may be none, and end where the model did not."""
    whole = sharp(family, len(tokenizer))
    found = ablate(SOURCE, models[family], max_new_tokens=3, select=["X0"], curve=False)
    read = target_tokens(models[family], tokenize(models[family], SOURCE), None, False, 3)
    assert len(read.predicted) == 3
    assert tokenizer.eos_token_id not in read.predicted
    source, labels = torch.tensor([tokenizer(SOURCE).input_ids]), torch.tensor([read.predicted])
    with torch.no_grad():
        expected = float(whole(input_ids=source, labels=labels).loss)
    assert found.clean["loss"] == pytest.approx(expected, abs=SUMS_32)


def test_uniform_attention_of_a_removed_head_is_over_its_own_keys(models):
    """A head whose attention is uniform already loses nothing by the method uniform, and a sharp one does."""
    checkpoint = models["t5"]
    weights = checkpoint.model.decoder.block[1].layer[1].EncDecAttention.q.weight
    before = weights.detach().clone()
    with torch.no_grad():
        weights[:8] = 0.0  # scores of X1H0 are all 0
    try:
        found = ablate(SHORT, checkpoint, target=READ, method="uniform", select=["X1"], curve=False)
    finally:
        with torch.no_grad():
            weights.copy_(before)
    assert found.head("X1H0").damage["loss"].value == pytest.approx(0, abs=SUMS_32)
    assert abs(found.head("X1H1").damage["loss"].value) > 1e-5


def test_gradients_are_what_zero_does_to_first_order(tokenizer):
    """Shrunk heads: then the loss changes by the gradient alone."""
    model = sharp("bart", len(tokenizer))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "v_proj" in name:
                parameter.mul_(1e-3)
    found = ablate(SHORT, from_loaded(model.double(), tokenizer), target=READ, method="zero", curve=False)
    for head in found.heads:
        assert head.gradient == pytest.approx(abs(head.damage["loss"].value), rel=0.05, abs=1e-8)


def test_a_model_without_a_head_is_measured_by_the_decoders_final_states(tokenizer):
    found = ablate(SHORT, from_loaded(sharp("bart", len(tokenizer)).model, tokenizer), target=READ, curve=False)
    assert found.kind == "states"
    assert found.head("X1H1").damage["cosine"].value > 0
