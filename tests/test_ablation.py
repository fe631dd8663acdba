"""Removing heads: against edited weights run by transformers alone, and models whose heads are known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz.attention import reference as attention
from attnviz.commands.ablate import effects as ablation
from attnviz.commands.ablate import passes as ablation_passes
from attnviz.commands.ablate import resumed_forward
from attnviz.commands.ablate.hooks import METHODS, Replacement, removed_heads
from attnviz.commands.ablate.inputs import MASKED, NEXT, STATES, read_sources, row_batches, rows_of
from attnviz.commands.ablate.measure import Ablation, ablate
from attnviz.commands.ablate.passes import Passes
from attnviz.commands.ablate.resumed_forward import resume, run_and_keep, running
from attnviz.corpora.bootstrap import text_weights
from attnviz.errors import CorpusError, TextError, UsageError, VerificationError
from attnviz.model.checkpoint import from_loaded
from attnviz.model.head_ids import HeadId, all_heads
from tests import ablations
from tests.ablations import TEXTS, damages, masked_token_model, next_token_model, states_model, with_uniform, without
from tests.corpora import sentences, treebank
from tests.models import bert_tokenizer, sharp_bert

KINDS: dict[str, Callable[..., tuple[Any, Any]]] = {
    NEXT: next_token_model,
    MASKED: masked_token_model,
    STATES: states_model,
}


def edited_model(method: str, model: Any, tokenizer: Any, heads: list[HeadId]) -> Any:
    if method == "uniform":
        return with_uniform(model, heads)
    means = ablations.mean_values(model, tokenizer, TEXTS) if method == "mean" else None
    return without(model, heads, means)


@pytest.fixture(scope="module")
def small() -> Ablation:
    """GPT-2 on four texts, everything measured."""
    model, tokenizer = next_token_model()
    return ablate(TEXTS, model, tokenizer=tokenizer)


# --- equal to another implementation ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_head_removed_does_what_edited_weights_do(kind: str, method: str) -> None:
    model, tokenizer = KINDS[kind]()
    found = ablate(TEXTS, model, tokenizer=tokenizer, method=method, curve=False, gradient=False)
    assert found.kind == kind
    assert {head.id for head in found.heads} == set(all_heads(3, 4))
    sizes = []
    for head in found.heads:
        expected = damages(model, edited_model(method, model, tokenizer, [head.id]), tokenizer, TEXTS)
        ours = [head.damage[measure.name].value for measure in found.measures]
        assert ours == pytest.approx(expected, abs=1e-5)
        sizes.append(max(map(abs, ours)))
    assert min(sizes) > 1e-4  # every head does something, or all would agree whatever was removed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_set_over_layers_does_what_edited_weights_do(kind: str, method: str) -> None:
    model, tokenizer = KINDS[kind]()
    heads = [HeadId(0, 1), HeadId(1, 0), HeadId(1, 3), HeadId(2, 2)]
    found = ablate(TEXTS, model, tokenizer=tokenizer, method=method, select=["L0H1,L1H0,L1H3,L2H2"], together=True)
    assert found.together is not None
    assert found.together.heads == tuple(heads)
    assert found.together.layer is None
    assert (found.layers, found.curve) == ((), None)
    expected = damages(model, edited_model(method, model, tokenizer, heads), tokenizer, TEXTS)
    assert [each.value for each in found.together.damage.values()] == pytest.approx(expected, abs=1e-5)
    singles = sum(head.damage[found.measure.name].value for head in found.heads)
    assert found.together.singles[found.measure.name].value == pytest.approx(singles)
    excess = found.together.excess[found.measure.name].value
    assert excess == pytest.approx(expected[0] - singles, abs=1e-5)


def test_in_float64_the_same_to_rounding() -> None:
    model, tokenizer = next_token_model()
    model = model.double()
    found = ablate(TEXTS, model, tokenizer=tokenizer, select=["L1"], curve=False, gradient=False)
    for head in found.heads:
        expected = damages(model, without(model, [head.id]), tokenizer, TEXTS)
        assert [each.value for each in head.damage.values()] == pytest.approx(expected, abs=1e-12)


def test_layers_together_and_the_curve_do_what_edited_weights_do(small: Ablation) -> None:
    model, tokenizer = next_token_model()
    assert [layer.layer for layer in small.layers] == [0, 1, 2]
    for layer in small.layers:
        assert layer.heads == tuple(HeadId(layer.layer or 0, head) for head in range(4))
        expected = damages(model, without(model, layer.heads), tokenizer, TEXTS)
        assert [each.value for each in layer.damage.values()] == pytest.approx(expected, abs=1e-5)
    assert small.curve is not None
    assert [point.removed for point in small.curve.points] == [1, 2, 3, 5, 6, 8, 9, 11, 12]
    assert list(small.curve.order) == [head.id for head in reversed(small.heads)]
    assert sorted(small.curve.random_order) == all_heads(3, 4)
    for point in small.curve.points:
        for order, each in ((small.curve.order, point.least), (small.curve.random_order, point.random)):
            assert set(each.heads) == set(order[: point.removed])
            expected = damages(model, without(model, each.heads), tokenizer, TEXTS)
            assert [value.value for value in each.damage.values()] == pytest.approx(expected, abs=1e-5)
    first = small.curve.points[0].least
    assert first.damage == first.singles == small.heads[-1].damage


@pytest.mark.parametrize("kind", [NEXT, MASKED])
def test_the_loss_of_the_model_as_it_is(kind: str) -> None:
    model, tokenizer = KINDS[kind]()
    found = ablate(TEXTS, model, tokenizer=tokenizer, select=["L0H0"], gradient=False)
    if kind == NEXT:
        losses, counts = [], []
        for text in TEXTS:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            losses.append(float(model(ids, labels=ids).loss.detach()))
            counts.append(ids.shape[1] - 1)
        assert found.clean_loss == pytest.approx(np.average(losses, weights=counts), abs=1e-5)
        assert found.n_places == sum(counts)
    else:
        assert found.n_places == sum(len(tokenizer(text)["input_ids"]) - 2 for text in TEXTS)
        again = ablate(TEXTS, model, tokenizer=tokenizer, select=["L0H0"], gradient=False, batch_size=1)
        assert found.clean_loss == pytest.approx(again.clean_loss)
        assert found.clean_loss == pytest.approx(float(masked_losses(model, tokenizer).mean()), abs=1e-5)


def masked_losses(model: Any, tokenizer: Any) -> torch.Tensor:
    losses = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            labels = torch.full_like(ids, -100)
            labels[0, place] = ids[0, place]
            masked = ids.where(labels == -100, tokenizer.mask_token_id)
            losses.append(model(input_ids=masked, labels=labels).loss.detach())
    return torch.stack(losses)


# --- what is left of a layer --------------------------------------------------------------------------------------


def final_states(model: Any, tokenizer: Any, removed: int, output: Callable[[Any], torch.Tensor]) -> list[torch.Tensor]:
    """The final states of each text, with the attention output of a layer replaced, by a hook of our own."""
    base = from_loaded(model, tokenizer).model
    modules = from_loaded(model, tokenizer).architecture.modules(base)[removed]

    def hook(_: Any, __: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            return output(result[0]), *result[1:]
        return output(result)

    handle = modules.output.register_forward_hook(hook)
    with torch.no_grad():
        states = [base(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    handle.remove()
    return states


@pytest.mark.parametrize("bias", [False, True], ids=["without b_O", "with b_O"])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_without_any_head_a_layer_is_its_residual_path(kind: str, layer: int, bias: bool) -> None:
    """Zero removes what the heads give, and leaves b_O, which is of no head; where it is 0, the output is 0."""
    model, tokenizer = KINDS[kind]()
    b_o = ablations.output_map(model, layer)[1]
    if not bias:
        with torch.no_grad():
            b_o.zero_()
    assert bool(b_o.abs().max() > 0.1) == bias
    expected = final_states(
        model, tokenizer, layer, lambda output: b_o.expand_as(output) if bias else torch.zeros_like(output)
    )
    checkpoint = from_loaded(model, tokenizer)
    heads = [HeadId(layer, head) for head in range(4)]
    rows, _ = rows_of(checkpoint, read_sources(TEXTS, None), STATES, print)
    untouched = final_states(model, tokenizer, layer, lambda output: output)
    with running(checkpoint):
        for batch in row_batches(checkpoint, rows, 2):
            kept = run_and_keep(checkpoint, batch.batch.inputs)
            with removed_heads(checkpoint, [heads], Replacement("zero"), batch.batch.inputs["attention_mask"]):
                final = resume(checkpoint, kept, layer)
            for row, states in zip(batch.rows, final, strict=True):
                torch.testing.assert_close(states[: len(row.item)], expected[row.text], atol=1e-5, rtol=0)
                assert float((expected[row.text] - untouched[row.text]).abs().max()) > 0.05


PAIRS = [("cat", "one"), ("saw", "two"), ("dog", "the")]


# --- heads that are known -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_load_bearing_head_of_a_gpt2_comes_first(method: str) -> None:
    model, tokenizer = ablations.copying_gpt2()
    texts = ["".join(f" {word}" for word in pair) * 29 for pair in PAIRS]
    found = ablate(texts, model, tokenizer=tokenizer, method=method)
    assert found.clean_loss is not None
    assert found.clean_loss < 1
    first, *idle = found.heads
    assert first.id == HeadId(0, 0)
    assert first.damage["loss"].value > 0.3
    assert max(abs(head.damage["loss"].value) for head in idle) < 0.02
    gradients = sorted(found.heads, key=lambda head: -(head.gradient or 0.0))
    assert gradients[0].id == HeadId(0, 0)


@pytest.mark.parametrize("method", METHODS)
def test_the_load_bearing_head_of_a_bert_comes_first(method: str) -> None:
    model, tokenizer = ablations.copying_bert(PAIRS)
    texts = [" ".join(pair * 20) for pair in PAIRS]
    found = ablate(texts, model, tokenizer=tokenizer, method=method, curve=False)
    assert found.kind == MASKED
    assert found.clean_loss is not None
    assert found.clean_loss < 1
    first, *idle = found.heads
    assert first.id == HeadId(0, 0)
    assert first.damage["loss"].value > 0.3
    assert max(abs(head.damage["loss"].value) for head in idle) < 0.02
    gradients = sorted(found.heads, key=lambda head: -(head.gradient or 0.0))
    assert gradients[0].id == HeadId(0, 0)


# --- batches, orders, formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_neither_padding_nor_order_changes_anything(kind: str) -> None:
    model, tokenizer = KINDS[kind]()
    settings = {"tokenizer": tokenizer, "curve": False}
    found = ablate(TEXTS, model, **settings)
    for other in (ablate(TEXTS, model, batch_size=1, **settings), ablate(TEXTS[::-1], model, batch_size=3, **settings)):
        assert other.clean_loss == pytest.approx(found.clean_loss, abs=1e-5)
        for head in found.heads:
            again = other.head(head.id)
            for name, value in head.damage.items():
                assert again.damage[name].value == pytest.approx(value.value, abs=1e-5)
            assert again.gradient == pytest.approx(head.gradient, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_formats(kind: str, dtype: torch.dtype) -> None:
    model, tokenizer = KINDS[kind](initializer_range=0.01)
    wide = ablate(TEXTS, model, tokenizer=tokenizer, method="mean")
    narrow = ablate(TEXTS, model.to(dtype), tokenizer=tokenizer, method="mean")
    for head in wide.heads:
        value = narrow.head(head.id).damage[wide.measures[1].name].value
        assert value == pytest.approx(head.damage[wide.measures[1].name].value, rel=0.3, abs=0.1)


def test_a_model_in_memory_is_left_as_it_was() -> None:
    model, tokenizer = next_token_model()
    model.set_attn_implementation("sdpa")
    model.train()
    ablate(TEXTS, model, tokenizer=tokenizer, method="uniform")
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_interruption_leaves_no_hooks() -> None:
    model, tokenizer = next_token_model()

    def stop(what: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ablate(TEXTS, model, tokenizer=tokenizer, progress=stop, batch_size=1)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()


def test_long_rows_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = next_token_model()
    checkpoint = from_loaded(model, tokenizer)
    rows, _ = rows_of(checkpoint, read_sources(TEXTS * 4, None), NEXT, print)
    assert sorted(len(batch.rows) for batch in row_batches(checkpoint, rows, 16)) == [4, 12]  # three words, and more
    monkeypatch.setattr("attnviz.commands.ablate.inputs._TOKENS", 60)
    batches = list(row_batches(checkpoint, rows, 16))
    assert len(batches) > 1
    assert all(batch.batch.valid.numel() <= 60 for batch in batches)
    monkeypatch.setattr("attnviz.commands.ablate.inputs._LOGITS", 1)
    batches = list(row_batches(checkpoint, rows, 16))
    assert [len(batch.rows) for batch in batches] == [1] * 16
    assert sorted(row.text for batch in batches for row in batch.rows) == list(range(16))


def test_logits_in_small_parts_are_the_same(monkeypatch: pytest.MonkeyPatch, small: Ablation) -> None:
    model, tokenizer = next_token_model()
    monkeypatch.setattr("attnviz.commands.ablate.metrics._CHUNK", 1200)  # three places of 400 logits at a time
    again = ablate(TEXTS, model, tokenizer=tokenizer, curve=False)
    for head in small.heads:
        assert again.head(head.id).damage["kl"].value == pytest.approx(head.damage["kl"].value, abs=1e-6)
        assert again.head(head.id).gradient == pytest.approx(head.gradient, rel=1e-4)


# --- intervals ----------------------------------------------------------------------------------------------------


def test_few_texts_have_no_interval(small: Ablation) -> None:
    assert small.n_texts == 4
    assert all(value.low is value.high is None for head in small.heads for value in head.damage.values())
    assert small.heads[0].damage["loss"].above_zero is None
    assert small.heads[0].damage["loss"].below_zero is None


def test_intervals_are_those_of_a_bootstrap_over_texts(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    path = sentences(tmp_path / "s.txt", 40)
    found = ablate(path, model, tokenizer=tokenizer, select=["L1"], seed=3, gradient=False, curve=False)
    assert found.n_texts == 40
    lines = path.read_text().splitlines()
    counts = np.array([len(tokenizer(line)["input_ids"]) - 1 for line in lines])
    weights = text_weights(3, range(40), ablation.REPLICATES)[1:].numpy()
    for head in found.heads:
        edited = without(model, [head.id])
        sums = [damages(model, edited, tokenizer, [line])[0] * n for line, n in zip(lines, counts, strict=True)]
        expected = np.quantile(weights @ np.array(sums) / (weights @ counts), [0.025, 0.975])
        value = head.damage["loss"]
        assert [value.low, value.high] == pytest.approx(expected, abs=1e-5)
        assert value.low is not None
        assert value.high is not None
        assert value.low < value.value < value.high
        assert (value.above_zero, value.below_zero) == (value.low > 0, value.high < 0)
    other = ablate(path, model, tokenizer=tokenizer, select=["L1"], seed=4, gradient=False, curve=False)
    assert other.heads[0].damage["loss"].low != found.heads[0].damage["loss"].low


# --- what has to hold before anything is measured -----------------------------------------------------------------


def test_what_is_verified_is_reported(small: Ablation) -> None:
    checked = small.checked
    assert checked.heads.heads_compared == 12
    assert checked.rows == 4
    assert 0 <= checked.values_error < 1e-5
    assert 0 <= checked.resumed_error < 1e-5
    assert checked.tolerance == 1e-4


def test_a_sample_of_the_batches_is_verified(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    path = sentences(tmp_path / "s.txt", 41)
    found = ablate(path, model, tokenizer=tokenizer, batch_size=1, select=["L0H0"], gradient=False)
    assert found.checked.rows == 10  # of 41 batches the first eight, the 21st and the 41st


def test_heads_that_do_not_reproduce_the_model_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = next_token_model()
    monkeypatch.setattr(attention, "attention_scores", lambda q, k, scale: q @ k.transpose(-1, -2))
    with pytest.raises(VerificationError, match="do not reproduce the model"):
        ablate(TEXTS, model, tokenizer=tokenizer)


def test_a_resumed_pass_that_leaves_a_layer_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = next_token_model()
    run = resumed_forward.run_block
    skipping = lambda *given: given[3] if given[2] == 1 else run(*given)  # noqa: E731
    monkeypatch.setattr(resumed_forward, "run_block", skipping)
    with pytest.raises(VerificationError, match="a pass resumed at layer"):
        assert ablate(TEXTS, model, tokenizer=tokenizer)


def test_resuming_from_other_inputs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a hook of the user's own changes the first layer only in a whole pass."""
    model, tokenizer = next_token_model()
    model.transformer.ln_f.register_forward_hook(lambda _, __, result: result * torch.linspace(1, 2, result.shape[1])[None, :, None])  # fmt: skip  # noqa: E501
    handle = model.transformer.register_forward_hook(lambda _, __, result: setattr(result, "last_hidden_state", result.last_hidden_state * 2) or result)  # fmt: skip  # noqa: E501
    with pytest.raises(VerificationError, match="does not reproduce the model's final states"):
        ablate(TEXTS, model, tokenizer=tokenizer)
    handle.remove()


def test_slices_that_are_not_the_heads_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that has the values of two heads swapped would remove the wrong ones."""
    model, tokenizer = next_token_model()
    monkeypatch.setattr(ablation_passes.attention, "project", _swapped(attention.project))
    with pytest.raises(VerificationError, match=r"what would be removed of L0H0 is not what|do not reproduce"):
        ablate(TEXTS, model, tokenizer=tokenizer)


def _swapped(project: Any) -> Any:
    """Heads 0 and 1 swapped, only where values are projected for the comparison with what is removed."""
    import sys

    def swapped(x: torch.Tensor, projection: Any) -> torch.Tensor:
        found = project(x, projection)
        caller = sys._getframe(1).f_code.co_name
        return found[:, [1, 0, 2, 3]] if caller == "_compare_values" else found

    return swapped


def test_a_layer_that_does_not_run_is_noticed() -> None:
    model, tokenizer = next_token_model()
    checkpoint = from_loaded(model, tokenizer)
    rows, _ = rows_of(checkpoint, read_sources(TEXTS, None), NEXT, print)
    with running(checkpoint):
        batch = next(iter(row_batches(checkpoint, rows, 8)))
        kept = run_and_keep(checkpoint, batch.batch.inputs)
        mask = batch.batch.inputs["attention_mask"]
        with (
            pytest.raises(VerificationError, match=r"lacks a head to run once, found \{0: 0\}"),
            removed_heads(checkpoint, [[HeadId(0, 0)]], Replacement("zero"), mask),
        ):
            resume(checkpoint, kept, 1)


def test_one_at_a_time_only() -> None:
    model, tokenizer = next_token_model()
    found = ablate(TEXTS, model, tokenizer=tokenizer, curve=False, gradient=False)
    assert (found.layers, found.together, found.curve) == ((), None, None)
    assert len(found.heads) == 12


def test_a_forward_that_somebody_has_replaced_is_put_back() -> None:
    """As libraries do that move weights about."""
    model, tokenizer = next_token_model()
    module = model.transformer.h[1].attn
    plain, calls = module.forward, []
    module.forward = lambda *given, **named: calls.append(1) or plain(*given, **named)
    own = module.forward
    ablate(TEXTS, model, tokenizer=tokenizer, select=["L0-1"], curve=False, gradient=False)
    assert module.forward is own
    assert calls
    assert "forward" not in vars(model.transformer.h[0].attn)


def test_several_copies_are_as_one_at_a_time() -> None:
    model, tokenizer = masked_token_model()
    checkpoint = from_loaded(model, tokenizer)
    rows, _ = rows_of(checkpoint, read_sources(TEXTS, None), MASKED, print)
    sets = [frozenset([HeadId(0, 0)]), frozenset([HeadId(0, 1), HeadId(2, 2)]), frozenset([HeadId(1, 3)]), frozenset()]
    passes = Passes(checkpoint, rows, Replacement("uniform"), 5)
    together = passes.run(sets, lambda *_: None)
    for number, heads in enumerate(sets):
        alone = Passes(checkpoint, rows, Replacement("uniform"), 5).run([heads], lambda *_: None, verify=False)
        torch.testing.assert_close(alone[0], together[number], atol=1e-5, rtol=1e-4)
    assert not together[3].any()


# --- texts and corpora --------------------------------------------------------------------------------------------


def test_files_are_corpora_and_all_else_texts(tmp_path: Path) -> None:
    trees = treebank(tmp_path / "t.conllu", 3)
    lines = sentences(tmp_path / "s.txt", 4)
    found = read_sources([str(trees), "the cat ran", lines], 2)
    assert [corpus.path.name for corpus in found.corpora] == ["t.conllu", "s.txt"]
    assert found.read == (2, 2)
    assert found.given == ("the cat ran",)
    assert [text.number for text in found.texts] == [0, 1, 2, 3, 4]
    assert found.texts[2].text == "the cat ran"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], UsageError, "nothing to measure on"),
        (["  "], TextError, "empty or blank"),
        (["nowhere.txt"], CorpusError, "expected a corpus at nowhere.txt, found nothing"),
        (["nowhere.conllu"], CorpusError, "found nothing"),
        ([Path("a text")], CorpusError, "found nothing"),
    ],
)
def test_what_is_no_text(given: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_sources(given, None)


def test_names_that_no_file_can_have_are_texts() -> None:
    long = "the cat " * 400
    assert read_sources([long, "a\0b"], None).given == (long, "a\0b")


def test_corpora_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "gap.tsv").write_text("x")
    with pytest.raises(CorpusError, match="found a GAP table"):
        read_sources([tmp_path / "gap.tsv"], None)
    one = sentences(tmp_path / "a.txt", 3)
    (tmp_path / "b.txt").write_bytes(one.read_bytes())
    with pytest.raises(UsageError, match="same content"):
        read_sources([one, tmp_path / "b.txt"], None)


def test_sentences_that_cannot_be_measured_are_left_out(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    path = tmp_path / "s.txt"
    path.write_text("the cat ran away\na\n" + "the cat ran away " * 30 + "\nhe saw it\n")
    said: list[str] = []
    found = ablate(path, model, tokenizer=tokenizer, warn=said.append, gradient=False, select=["L0H0"], method="mean")
    assert found.n_texts == 2
    assert [line.split(": ")[1] for line in said] == [
        "it has 120 tokens, but the model has 40 positions",
        "it has a single token, so there is no next one to predict",
    ]
    assert str(path) in said[0]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (NEXT, "the cat ran away " * 30, "cannot measure on 'the cat ran away .*the model has 40 positions"),
        (NEXT, "a", "a single token, so there is no next one"),
        (MASKED, "[MASK]", "it has no token to mask"),
    ],
)
def test_a_text_that_was_given_has_to_be_measurable(kind: str, text: str, message: str) -> None:
    model, tokenizer = KINDS[kind]()
    with pytest.raises(TextError, match=message):
        ablate(text, model, tokenizer=tokenizer)


def test_a_corpus_of_which_nothing_is_left(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    (tmp_path / "s.txt").write_text("a\na\n")
    with pytest.raises(TextError, match="no text is left"):
        ablate(tmp_path / "s.txt", model, tokenizer=tokenizer)


def test_a_bert_whose_tokenizer_has_no_mask_is_measured_by_its_states() -> None:
    model, _ = masked_token_model()
    tokenizer = bert_tokenizer()
    tokenizer.mask_token = None
    found = ablate(TEXTS, model, tokenizer=tokenizer, select=["L0H0"], gradient=False)
    assert (found.kind, found.clean_loss) == (STATES, None)


def test_many_inputs_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "MANY", 3)
    model, tokenizer = next_token_model()
    said: list[str] = []
    ablate(TEXTS, model, tokenizer=tokenizer, select=["L0"], curve=False, gradient=False, warn=said.append)
    assert said == ["4 inputs, each with 4 heads to remove; a --limit reads fewer sentences"]


# --- options and the object ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "median"}, "unknown method 'median': expected one of zero, mean, uniform"),
        ({"batch_size": 0}, "expected batch-size of at least 1, found 0"),
        ({"limit": 0}, "expected limit of at least 1, found 0"),
        ({"select": ["L9"]}, "names layer 9"),
        ({"select": ["L0H1"], "together": True}, "two heads or more to remove together, found L0H1 alone"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    model, tokenizer = next_token_model()
    with pytest.raises(UsageError, match=message):
        ablate(TEXTS, model, tokenizer=tokenizer, **options)


def test_the_object(small: Ablation) -> None:
    assert attnviz.ablate is ablate
    assert attnviz.Ablation is Ablation
    assert isinstance(small, attnviz.Ablation)
    assert small.head("L1H2") is small.head(HeadId(1, 2))
    assert [head.rank for head in small.heads] == list(range(1, 13))
    values = [head.damage["loss"].value for head in small.heads]
    assert values == sorted(values, reverse=True)
    most = small.heads[0]
    assert repr(small).startswith(f"<Ablation (zero) of GPT2LMHeadModel: 12 heads on 4 texts, {most.id} first (loss")
    with pytest.raises(UsageError, match="head L9H9 was not removed: 12 heads were"):
        small.head("L9H9")
    with pytest.raises(UsageError, match="unknown figure 'pie': expected one of heads, map, curve, gradient"):
        small.figure("pie")


def test_progress_is_told_of_every_stage() -> None:
    model, tokenizer = states_model()
    told: list[tuple[str, int, int]] = []
    ablate(TEXTS, model, tokenizer=tokenizer, method="mean", progress=lambda *what: told.append(what), batch_size=2)
    assert [what for what, done, total in told if done == total == 4] == ["means", "removing", "curve"]
    assert ("removing", 2, 4) in told


def test_one_head_alone() -> None:
    tokenizer = bert_tokenizer()
    found = ablate("the cat ran", sharp_bert(), tokenizer=tokenizer, select=["L0H1"])
    assert found.curve is None
    assert found.layers == ()
    assert found.rank_correlations == {"cosine": None, "l2": None}
    assert found.figures == ("heads",)
