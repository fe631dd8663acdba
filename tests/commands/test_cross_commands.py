"""What the other commands make of an encoder-decoder: all three kinds of attention, or its encoder alone."""

from typing import Any

import numpy as np
import pytest
import torch

from attnviz import ablate, analyze, compare, head_outputs, rollout
from attnviz.commands.ablate import inputs
from attnviz.commands.profile.measure import profile_heads
from attnviz.errors import TextError, UsageError, VerificationError
from attnviz.models.checkpoint import from_loaded
from attnviz.trace.generation import TargetTokens, target_tokens
from tests.support.drawn import drawing_of
from tests.support.encoder_decoders import FAMILIES, PRE_NORM, SOURCE, TARGET, sharp, unigram_tokenizer
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rollout_is_that_of_the_encoder_alone(models, family):
    checkpoint = models[family]
    found = rollout(SHORT, checkpoint, residual=0.5)
    ids = torch.tensor([checkpoint.tokenize(SHORT).ids])
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
    kept = tmp_path / "unfinished"
    how: dict[str, Any] = {"syntax": False, "repeats": True, "control": False, "unfinished": kept}
    found = profile_heads(models["t5"], [corpus], **how)
    assert {str(head) for head in found.roles_by_head()} == {
        f"E{layer}H{head}" for layer in range(2) for head in range(4)
    }
    entropies = [np.array([h.statistics["entropy"] for h in part.heads]) * n for part, n in analysed(models["t5"])]
    expected = sum(entropies) / sum(n for _, n in analysed(models["t5"]))
    np.testing.assert_allclose(found.statistics.results()["entropy"].flatten(), expected, atol=SUMS_32)
    assert kept.is_file()
    again = profile_heads(models["t5"], [corpus], **how)
    torch.testing.assert_close(again.statistics.results()["sink"], found.statistics.results()["sink"])


def analysed(checkpoint: Any) -> list[tuple[Any, int]]:
    """The encoder's heads on both texts, with their numbers of tokens."""
    parts = [analyze(text, checkpoint, target=READ).parts[0] for text in (SHORT, SOURCE)]
    return [(part, len(part.tokens)) for part in parts]


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
    assert all(compared.figure(name).axes for name in ("overview", "differences"))
    with pytest.raises(UsageError, match="no figure 'page'"):
        compared.page()


def test_sides_of_different_targets_or_shapes_are_refused(models, tokenizer):
    one = analyze(SHORT, models["t5"], target=READ)
    with pytest.raises(TextError, match="targets"):
        compare(one, analyze(SHORT, models["t5"], target="die Hunde"))
    shallow = from_loaded(sharp("t5", len(tokenizer), num_decoder_layers=2), tokenizer)
    with pytest.raises(UsageError, match="3 decoder layers"):
        compare(one, analyze(SHORT, shallow, target=READ))


@pytest.fixture(scope="module")
def written(models):
    return {family: head_outputs(SHORT, models[family], target=READ) for family in FAMILIES}


@pytest.mark.parametrize("family", ["bart", "mbart", "m2m_100", "t5"])
def test_outputs_of_every_kind_sum_to_the_models_own(written, models, family):
    found, checkpoint = written[family], models[family]
    given: dict[str, torch.Tensor] = {}
    modules = [checkpoint.architecture.modules(checkpoint.model)[layer] for layer in (0, 2, 5)]  # E0, D0, X0
    handles = [
        module.output.register_forward_hook(lambda _, __, out, name=name: given.update({name: out[0][0]}))
        for name, module in zip(("E0", "D0", "X0"), modules, strict=True)
    ]
    with torch.no_grad():
        eager(checkpoint)(
            input_ids=torch.tensor([found.tokens.ids]),
            decoder_input_ids=torch.tensor([found.target.tokens.ids]),
            use_cache=False,
        )
    for handle in handles:
        handle.remove()
    sink = found.pattern("X0H1")[1:, [each for each, of in enumerate(found.tokens.sink) if of]].sum(1).mean()
    assert found.head("X0H1").sink == pytest.approx(float(sink), abs=SUMS_32)
    for name, module in zip(("E0", "D0", "X0"), modules, strict=True):
        total = sum(found.output(head.id) for head in found.select(name))
        bias = getattr(module.o_proj, "bias", None)
        torch.testing.assert_close(total if bias is None else total + bias, given[name], atol=SUMS_32, rtol=0)


@pytest.mark.parametrize("family", [*PRE_NORM, "bart"])
def test_logits_of_the_target_are_taken_apart(written, models, tokenizer, family):
    found, whole = written[family], sharp(family, len(tokenizer))
    with torch.no_grad():
        logits = whole(
            input_ids=torch.tensor([found.tokens.ids]), decoder_input_ids=torch.tensor([found.target.tokens.ids])
        ).logits[0]
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
    with pytest.raises(VerificationError, match="final state"):
        head_outputs(SHORT, models[family], target=READ)


def loss_without(whole: Any, checkpoint: Any, head: str, method: str, texts: list[tuple[str, str]]) -> list[float]:
    """The loss of each target, a mean over its tokens, without one head: by transformers' own loss and a plain hook."""
    letter, number, which = head[0], int(head[1]), int(head[3])
    inner = getattr(whole, "model", whole)
    side = inner.encoder if letter == "E" else inner.decoder
    if hasattr(side, "block"):
        cross, layers = letter == "X", side.block[number].layer
        output = (layers[1].EncDecAttention if cross else layers[0].SelfAttention).o
    else:
        layer = side.layers[number]
        output = (layer.encoder_attn if letter == "X" else layer.self_attn).out_proj
    stack = next(stack for stack in checkpoint.stacks if stack.letter == letter)
    values, losses = [], []

    def run(change: Any = None) -> list[float]:
        found = []
        for text, target in texts:
            ids, labels = (torch.tensor([checkpoint.tokenizer(each).input_ids]) for each in (text, target))
            handle = output.register_forward_pre_hook(lambda _, args: change(args[0]))
            with torch.no_grad():
                found.append(float(whole(input_ids=ids, labels=labels, use_cache=False).loss))
            handle.remove()
        return found

    run(lambda given: values.append(given[0]))
    width = values[0].shape[-1] // stack.n_heads
    place = slice(which * width, (which + 1) * width)
    instead = torch.cat(values)[:, place].mean(0) if method == "mean" else 0.0

    def change(given: torch.Tensor) -> torch.Tensor:
        changed = given.clone()
        changed[..., place] = instead
        return changed

    losses += run(change)
    return losses


TEXTS = [(SHORT, READ), (SOURCE, TARGET)]


@pytest.mark.parametrize("method", ["zero", "mean"])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_the_loss_without_a_head_is_transformers_own(models, tokenizer, family, method):
    checkpoint, whole = models[family], sharp(family, len(tokenizer)).double()  # two losses that nearly cancel
    whole.set_attn_implementation("eager")
    text, target = TEXTS[1]
    found = ablate(text, checkpoint, target=target, method=method, curve=False)
    ids, labels = (torch.tensor([tokenizer(each).input_ids]) for each in (text, target))
    with torch.no_grad():
        clean = float(whole(input_ids=ids, labels=labels).loss)
    assert found.clean_loss == pytest.approx(clean, abs=SUMS_32)
    for head in ("E1H2", "D0H1", "D2H3", "X1H0", "X2H3"):
        (expected,) = loss_without(whole, checkpoint, head, method, TEXTS[1:])
        assert found.head(head).damage["loss"].value == pytest.approx(expected - clean, abs=SUMS_32 * clean), head
    assert len(found.heads) == sum(stack.n_layers * stack.n_heads for stack in checkpoint.stacks)
    assert max(abs(each.damage["loss"].value) for each in found.heads) > 1e-4


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_batches_with_padding_in_both_texts_change_nothing(models, tmp_path, family, monkeypatch):
    """Two texts of other lengths read at once, and one at a time; targets are those given, text by text."""
    own = dict(TEXTS)

    def given(checkpoint, tokens, *_):
        text = own[said[tuple(tokens.ids)]]
        return TargetTokens(text, tokens, True, models[family].tokenize(text, target=True).ids)

    monkeypatch.setattr(inputs, "target_tokens", given)
    said = {tuple(models[family].tokenize(text).ids): text for text in own}
    results = [
        ablate(list(own), models[family], method="uniform", batch_size=size, select=["E0", "D1", "X"])
        for size in (1, 2)
    ]
    for one, other in zip(*(result.heads for result in results), strict=True):
        assert one.id == other.id
        assert one.damage["loss"].value == pytest.approx(other.damage["loss"].value, abs=SUMS_32)
        assert one.gradient == pytest.approx(other.gradient, rel=1e-3, abs=SUMS_32)
    assert [set_.heads[0].layer_name for set_ in results[1].layers] == ["E0", "D1", "X0", "X1", "X2"]
    assert results[1].verified.n_inputs == 2


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_the_loss_is_on_the_tokens_that_were_generated(models, tokenizer, family):
    """Not on those of their text read again, which may be others, may be none, and end where the model did not."""
    whole = sharp(family, len(tokenizer))
    found = ablate(SOURCE, models[family], max_new_tokens=3, select=["X0"], curve=False)
    read = target_tokens(models[family], models[family].tokenize(SOURCE), None, False, 3)
    assert len(read.predicted) == 3
    assert tokenizer.eos_token_id not in read.predicted
    source, labels = torch.tensor([tokenizer(SOURCE).input_ids]), torch.tensor([read.predicted])
    with torch.no_grad():
        expected = float(whole(input_ids=source, labels=labels).loss)
    assert found.clean_loss == pytest.approx(expected, abs=SUMS_32)


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
