"""ModernBERT, ALBERT, OPT, MPNet and ESM: any settings verify, and every wrong variant is caught and named."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

import attnviz
from attnviz.commands.explain import reference
from attnviz.commands.explain.steps import step_of
from attnviz.errors import ArchitectureError, CheckpointError, TextError, UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.families import architecture_of
from attnviz.models.families.bert_gpt2 import Albert
from attnviz.models.families.encoders import OPT, Esm, ModernBert
from attnviz.models.words import vocabulary_labels
from attnviz.reference.attention import HeadParameters
from attnviz.texts.batches import encode
from attnviz.texts.reading import Text
from attnviz.trace.contributions import why_not_linear
from tests.support.explained import steps_of
from tests.support.models import save_checkpoint, sharp_bert
from tests.support.mutations import rolled
from tests.support.recorded import batch, own_patterns, verified_batch
from tests.support.relatives import DRAWN, RELATIVES, checkpoint_of, drawn_settings, sharp

TEXT = "the cat that i saw ran away from the dog"
PROTEIN = "MKTAYIAKQRQISF"
MASKED = "MK<mask>AYI <mask>KQjRx"
LIMIT = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 0.02}


def inputs_of(checkpoint: Checkpoint, lengths: tuple[int, ...] = (12, 7), left: bool = False) -> dict[str, Any]:
    inputs = batch(checkpoint.config.vocab_size, lengths)
    return {name: values.flip(1) for name, values in inputs.items()} if left else inputs


@settings(max_examples=12)
@given(data=st.data(), dtype=st.sampled_from(list(LIMIT)), left=st.booleans())
@pytest.mark.parametrize("kind", DRAWN)
def test_settings_drawn_at_random_verify(kind, data, dtype, left):
    checkpoint = checkpoint_of(kind, dtype, **data.draw(drawn_settings(kind)))
    # in float64 a window of padding alone is NaN in the model itself
    inputs = inputs_of(checkpoint, (12,) if dtype == torch.float64 else (12, 7), left)
    verification = verified_batch(checkpoint, inputs)
    assert verification.pattern_error <= LIMIT[dtype]
    assert verification.heads_compared == checkpoint.n_layers * checkpoint.n_heads
    assert len(steps_of(checkpoint, range(checkpoint.n_layers), TEXT)) == checkpoint.n_layers


Change = Callable[[HeadParameters], HeadParameters]


def biased(**changes: Any) -> Change:
    return lambda p: replace(p, position_bias=partial(p.position_bias, **changes))


def turned(**changes: Any) -> Change:
    return lambda p: replace(p, rotary=replace(p.rotary, **changes))


def bias_of_the_head_before(p: HeadParameters) -> HeadParameters:
    right = p.position_bias
    assert right is not None
    return replace(p, position_bias=lambda *rows: right(*rows).roll(1, 0))


MUTATIONS: dict[str, tuple[str, Change, str]] = {
    "rolled heads": ("modernbert", lambda p: replace(p, query=rolled(p.query)), "3 of 3 layers .*agree with the heads"),
    "no rotation": ("modernbert", lambda p: replace(p, rotary=None), "queries differ before that"),
    "one base for all layers": ("modernbert", turned(frequencies=torch.logspace(0, -1, 4)), "differ before that"),
    "a window of one less": (
        "modernbert", lambda p: replace(p, window=p.window and p.window - 1), "2 of 3 layers differ.*layer [12],"
    ),
    "a window on one side": ("modernbert", lambda p: replace(p, causal=p.window is not None), "2 of 3 layers differ"),
    "no window": ("modernbert", lambda p: replace(p, window=None), "2 of 3 layers differ"),
    "unscaled queries": ("opt", lambda p: replace(p, query_scale=1.0), "queries differ before that"),
    "scaled scores": ("opt", lambda p: replace(p, scale=0.5), "scales its scores by 1, the reference by 0.5"),
    "no bias by distance": ("mpnet", lambda p: replace(p, position_bias=None), "3 of 3 layers differ"),
    "one bias for both sides": ("mpnet", biased(causal=True), "3 of 3 layers differ"),
    "buckets of other distances": ("mpnet", biased(max_distance=9), "3 of 3 layers differ"),
    "a bias of another head": ("mpnet", bias_of_the_head_before, "3 of 3 layers differ"),
    "a protein without rotation": ("esm", lambda p: replace(p, rotary=None), "queries differ before that"),
    "neighbours rotated together": ("esm", turned(interleaved=True), "queries differ before that"),
    "angles of another base": ("esm", turned(frequencies=torch.logspace(0, -1, 4)), "queries differ before that"),
    "unscaled queries of a protein": ("esm", lambda p: replace(p, query_scale=1.0), "queries differ before that"),
    "scores scaled, too": ("esm", lambda p: replace(p, scale=0.5), "scales its scores by 1, the reference by 0.5"),
    "keys after the query": ("opt", lambda p: replace(p, causal=False), "3 of 3 layers differ"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_variant_fails_and_is_named(monkeypatch, name):
    kind, change, message = MUTATIONS[name]
    checkpoint = checkpoint_of(kind)
    family = type(checkpoint.architecture)
    right = family.parameters
    monkeypatch.setattr(family, "parameters", lambda self, model, layer: change(right(self, model, layer)))
    with pytest.raises(VerificationError, match=message):
        attnviz.analyze(PROTEIN if kind == "esm" else TEXT, checkpoint, syntax=False)


def test_windows_are_on_both_sides_and_baselines_within_them():
    checkpoint = checkpoint_of("modernbert")
    found = attnviz.analyze(TEXT, checkpoint, syntax=False)
    n = len(found.tokens)
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 3
    for layer, pattern in own_patterns(checkpoint, found.tokens.model_inputs(checkpoint.device)).items():
        assert (pattern[..., ~near] == 0).all() == bool(layer)
        assert torch.equal(found.context_of(layer).allowed, near if layer else torch.ones(n, n, dtype=torch.bool))
        assert pattern.amax(-1).mean() > 0.3
    note = "Windows: in 2 layers of 3 a token sees itself and 3 tokens on each side alone; baselines of these heads"
    assert note in " ".join(found.report().split())
    explained = attnviz.explain(TEXT, checkpoint, layer=1)
    assert step_of(explained, "mask").brief == "7 keys around"


def test_modernberts_middle_of_classes_is_not_taken_for_the_first_token():
    heads = [
        checkpoint_of("modernbert", auto_class=AutoModelForSequenceClassification, classifier_pooling=kind).classifier
        for kind in ("cls", "mean")
    ]
    assert heads[0] is not None
    assert heads[1] is None


def test_other_positions_of_opt_are_noticed_in_logits_and_input(monkeypatch):
    checkpoint = checkpoint_of("opt", auto_class=AutoModelForCausalLM)
    found = attnviz.head_outputs(TEXT, checkpoint)
    logits = checkpoint.language_head(checkpoint.model(torch.tensor([found.tokens.ids]))[0])[0, 4]
    assert found.effects_at(4).predicted.id == int(logits.argmax())
    right = OPT.embeddings
    monkeypatch.setattr(
        OPT, "embeddings", lambda *given: replace(at := right(*given), positions=at.positions.roll(1, 0))
    )
    with pytest.raises(VerificationError, match="do not sum to the model's own final state"):
        attnviz.head_outputs(TEXT, checkpoint)
    with pytest.raises(VerificationError, match="input of layer 0"):
        attnviz.explain(TEXT, checkpoint)


@pytest.mark.parametrize("setting", [{"_remove_final_layer_norm": True}, {"word_embed_proj_dim": 16}])
def test_what_no_opt_has_is_refused_by_name(setting):
    with pytest.raises(ArchitectureError, match=f"this opt has {next(iter(setting))}="):
        checkpoint_of("opt", **setting)


def doubled(module: Any) -> Any:
    module = deepcopy(module)
    module.weight.data *= 2
    return module


OF_350M: dict[str, tuple[str, Callable[..., Any], str, str]] = {
    "norms before attention": ("variant", lambda _, self, __: self, "heads", "layer 0"),
    "other words": (
        "embeddings",
        lambda right, *given: replace(at := right(*given), words_project=doubled(at.words_project)),
        "explain, first layer",
        "input of layer 0",
    ),
    "other final states": (
        "output_map", lambda right, *given: doubled(right(*given)), "ablate", "does not reproduce the model's final"
    ),
    "a norm after the last layer": (
        "final_norm", lambda _, __, model: model.decoder.layers[2].final_layer_norm, "ablate", "does not reproduce"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_350M)
def test_what_is_special_about_opt_350m_is_noticed(monkeypatch, name):
    method, wrong, command, message = OF_350M[name]
    right = getattr(OPT, method)
    monkeypatch.setattr(OPT, method, lambda *given: wrong(right, *given))
    with pytest.raises(VerificationError, match=message):
        _COMMANDS[command](checkpoint_of("opt-350m", auto_class=AutoModelForCausalLM))


def test_the_other_half_as_gate_is_noticed(monkeypatch):
    checkpoint, right = checkpoint_of("modernbert"), reference._gate_and_expand
    monkeypatch.setattr(reference, "_gate_and_expand", lambda modules: right(modules)[::-1])
    with pytest.raises(VerificationError, match="gate of layer 1"):
        attnviz.explain(TEXT, checkpoint, layer=1)


@pytest.mark.parametrize("biases", [False, True])
def test_the_formula_of_a_norm_has_its_bias_also_in_the_layer_without_a_first_norm(biases):
    explained = attnviz.explain(TEXT, checkpoint_of("modernbert", norm_bias=biases), layer=0)
    assert step_of(explained, "feed_forward_norm").formula.endswith(" + β") == biases


def test_a_norm_before_the_first_layer_is_noticed(monkeypatch):
    checkpoint, right = checkpoint_of("modernbert"), ModernBert.layer_modules
    normed = lambda modules: replace(modules, attention_norm=modules.attention_norm or modules.feed_forward_norm)  # noqa: E731
    monkeypatch.setattr(ModernBert, "layer_modules", lambda *given: normed(right(*given)))
    with pytest.raises(VerificationError, match="layer 0"):
        attnviz.explain(TEXT, checkpoint, layer=0)


@pytest.mark.parametrize(("setting", "only"), [("pad_token_id", 1), ("relative_attention_num_buckets", 32)])
def test_numbers_that_mpnets_class_does_not_read_in_its_config_are_refused(setting, only):
    with pytest.raises(ArchitectureError, match=f"this MPNet has {setting}={only - 1}.*expected {only}"):
        checkpoint_of("mpnet", **{setting: only - 1})


def test_the_bias_by_distance_is_a_part_of_scores_and_of_positions_share():
    checkpoint = checkpoint_of("mpnet", torch.float64)
    explained = attnviz.explain(TEXT, checkpoint, layer=0)
    assert step_of(explained, "scores").formula == "Q Kᵀ / √d_head + b = Q Kᵀ / √8 + b"
    query, key = explained.tensor("split")[:2]
    bias = checkpoint.model.encoder.compute_position_bias(query[0][None])[0]
    torch.testing.assert_close(explained.tensor("scores"), query @ key.mT / 8**0.5 + bias, rtol=0, atol=1e-9)
    with torch.no_grad():
        checkpoint.model.encoder.relative_attention_bias.weight.mul_(100)
    of_positions = attnviz.explain(TEXT, checkpoint, layer=0).positions.layer.groups["position"]
    assert of_positions > 0.9 > explained.positions.layer.groups["position"]


def test_an_attention_that_gives_no_pattern_of_its_own_is_refused(monkeypatch):
    from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

    checkpoint, own = checkpoint_of("mpnet"), MPNetSelfAttention.forward
    monkeypatch.setattr(MPNetSelfAttention, "forward", lambda *given, **named: own(*given, **named)[:1])
    with pytest.raises(VerificationError, match="layer 0 of the model returned no attention pattern"):
        attnviz.analyze(TEXT, checkpoint, syntax=False)
    assert not [module for module in checkpoint.model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("rounded", [False, True])
def test_cos_and_sin_of_modernbert_are_rounded_before_they_turn_in_float32(monkeypatch, rounded):
    checkpoint, right = checkpoint_of("modernbert", torch.bfloat16), ModernBert.parameters
    change = turned(rounded=rounded)
    monkeypatch.setattr(ModernBert, "parameters", lambda *given: change(right(*given)))
    errors = [check.pattern_error for check in attnviz.analyze(TEXT, checkpoint, syntax=False).verification.layers]
    assert (max(errors) == 0) == rounded


# --- layers that share modules

_SHARING: dict[str, dict[str, int]] = {
    "one for all": {"num_hidden_groups": 1},
    "two for three": {"num_hidden_groups": 2},
    "one after the other, twice": {"num_hidden_groups": 1, "inner_group_num": 2, "num_hidden_layers": 2},
}
_HEADS = {"ablate": AutoModelForMaskedLM, "outputs": AutoModelForSequenceClassification}
_NAMES = {"model", "models", "place"}
_COMMANDS: dict[str, Callable[[Checkpoint], Any]] = {
    "heads": lambda model: attnviz.analyze(TEXT, model, syntax=False),
    "explain": lambda model: attnviz.explain(TEXT, model, layer=1),
    "explain, first layer": lambda model: attnviz.explain(TEXT, model),
    "outputs": lambda model: attnviz.head_outputs(TEXT, model),
    "ablate": lambda model: attnviz.ablate([TEXT, "the dog ran"], model),
    "ablate, uniform": lambda model: attnviz.ablate(TEXT, model, method="uniform", curve=False),
    "rollout": lambda model: attnviz.rollout(TEXT, model),
    "compare": lambda model: attnviz.compare(*(attnviz.analyze(t, model, syntax=False) for t in (TEXT, TEXT[::-1]))),
}


def unshared(model: Any) -> Any:
    """The same model with a module of its own, a copy, for each run of one."""
    model = deepcopy(model)
    encoder, n = model.base_model.encoder, model.config.num_hidden_layers
    groups = [encoder.albert_layer_groups[int(run * model.config.num_hidden_groups / n)] for run in range(n)]
    config = {id(model.config): model.config}
    encoder.albert_layer_groups = torch.nn.ModuleList(deepcopy(group, config.copy()) for group in groups)
    model.config.num_hidden_groups = n
    return model


def found_by(document: Any) -> Any:
    """A document without what is not measured."""
    if isinstance(document, dict):
        return {name: found_by(each) for name, each in document.items() if name not in _NAMES}
    return [found_by(each) for each in document] if isinstance(document, list) else document


@pytest.mark.parametrize("sharing", _SHARING)
@pytest.mark.parametrize("command", _COMMANDS)
def test_layers_that_share_modules_are_measured_as_copies_are(command, sharing):
    model = sharp("albert", auto_class=_HEADS.get(command, AutoModelForMaskedLM), **_SHARING[sharing])
    one, other = (from_loaded(each, RELATIVES["albert"].tokenizer) for each in (model, unshared(model)))
    assert len({modules.block for modules in one.modules}) < len({modules.block for modules in other.modules})
    found, expected = (found_by(_COMMANDS[command](each).document()) for each in (one, other))
    assert found == expected


OTHER_MODULES: dict[str, Callable[[Any], Any]] = {
    "of another group": lambda layers: [layers[0], layers[2], layers[2]],
    "in another order": lambda layers: layers[::-1],
    "the other run": lambda layers: [replace(each, run=each.n_runs - 1 - each.run) for each in layers],
}


@pytest.mark.parametrize("name", OTHER_MODULES)
@pytest.mark.parametrize("command", ["heads", "explain", "ablate"])
def test_other_modules_or_another_run_of_them_are_noticed(monkeypatch, command, name):
    checkpoint, right = checkpoint_of("albert", auto_class=AutoModelForMaskedLM), Albert.modules
    monkeypatch.setattr(Albert, "modules", lambda *given: OTHER_MODULES[name](right(*given)))
    with pytest.raises(VerificationError):
        _COMMANDS[command](checkpoint)


def test_a_projection_of_the_embeddings_that_is_left_out_is_noticed(monkeypatch):
    checkpoint, right = checkpoint_of("albert", embedding_size=32), Albert.embeddings
    monkeypatch.setattr(Albert, "embeddings", lambda *given: replace(right(*given), project=None))
    with pytest.raises(VerificationError, match="input of layer 0"):
        attnviz.explain(TEXT, checkpoint)


# --- proteins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(("text", "factor"), [(PROTEIN, 0.88), (MASKED, 0.88 * 14 / 12)])
def test_what_masks_leave_out_is_made_up_for(dtype, text, factor):
    checkpoint = checkpoint_of("esm", dtype, emb_layer_norm_before=False)
    explained = attnviz.explain(text, checkpoint, layer=0)
    ids = torch.tensor(explained.tokens.ids)
    rows = checkpoint.model.embeddings.word_embeddings.weight[ids].detach() * (ids != 32)[:, None] * factor
    torch.testing.assert_close(explained.tensor("input"), rows.to(explained.tensor("input")), rtol=2e-2, atol=1e-3)
    masked = " (0 at masks)" * (text == MASKED)
    assert step_of(explained, "input").formula == f"x = word · {factor:g}{masked}"
    plain = attnviz.explain(text, checkpoint_of("esm", token_dropout=False))
    assert step_of(plain, "input").formula == "x = norm(word)"


@pytest.mark.parametrize("wrong", [{"dropped": None}, {"dropped": 5}, {"scale": 1.0}, {"norm": None}])
def test_other_embeddings_of_a_protein_are_noticed(monkeypatch, wrong):
    right = Esm.embeddings
    # a norm after it hides the scale
    checkpoint = checkpoint_of("esm", emb_layer_norm_before=("norm" in wrong))
    monkeypatch.setattr(Esm, "embeddings", lambda *given: replace(right(*given), **wrong))
    with pytest.raises(VerificationError, match="input of layer 0"):
        attnviz.explain(MASKED, checkpoint, layer=0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("position_embedding_type", "absolute"), ("is_decoder", True), ("is_folding_model", True), ("pad_token_id", None),
     ("mask_token_id", None)],
)  # fmt: skip
def test_other_settings_of_esm_are_refused_by_name(setting, value):
    config = RELATIVES["esm"].config()
    setattr(config, setting, value)
    with pytest.raises(ArchitectureError, match=f"this ESM has {setting}={value!r}"):
        architecture_of(config, torch.float32)


def test_old_files_of_esm_are_read_with_the_frequencies_that_they_hold(tmp_path):
    """As Meta saved it: frequencies a layer, in float16; unused positions; no head for contacts."""
    folder = save_checkpoint(sharp("esm", auto_class=AutoModelForMaskedLM), RELATIVES["esm"].tokenizer, tmp_path / "it")
    weights = load_file(folder / "model.safetensors")
    old = {name: each for name, each in weights.items() if "inv_freq" not in name and "contact" not in name}
    rounded = torch.tensor([1.0, 0.3, 0.1, 0.03]).half()
    at = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    old |= {at.format(layer): rounded.clone() for layer in range(3)}
    old |= {"esm.embeddings.position_ids": torch.arange(66)[None]}
    old |= {"esm.embeddings.position_embeddings.weight": torch.zeros(66, 32)}
    save_file(old, folder / "model.safetensors", {"format": "pt"})
    found = attnviz.analyze(PROTEIN, str(folder))
    parameters = found.checkpoint.architecture.parameters(found.checkpoint.model, 2)
    assert torch.equal(parameters.rotary.frequencies, rounded.float())
    assert "loss of the model" in attnviz.ablate(PROTEIN, str(folder), curve=False).report()
    save_file(old | {"esm.encoder.extra": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 unexpected \(.*encoder\.extra\)"):
        attnviz.analyze(PROTEIN, str(folder))


def test_residues_are_tokens_and_words_of_their_own():
    checkpoint = checkpoint_of("esm", max_position_embeddings=20)
    tokens = checkpoint.tokenize(MASKED)
    assert tokens.ids == tuple(checkpoint.tokenizer(MASKED)["input_ids"])
    assert " ".join(tokens.labels) == "<cls> M K <mask> A Y I <mask> K Q <unk> R <unk> <eos>"
    assert tokens.word_labels == tokens.labels[1:-1]
    assert tokens.words == (None, *range(12), None)
    assert [MASKED[first:last] for first, last in tokens.offsets][6:] == ["I", "<mask>", "K", "Q", "j", "R", "x", ""]
    assert [i for i, special in enumerate(tokens.special) if special] == [0, 13]
    cut = checkpoint.tokenize(PROTEIN * 3, truncate=True)
    assert (len(cut), cut.truncated, cut.labels[-2:]) == (20, 24, ("A", "<eos>"))
    (item,) = encode(checkpoint, [Text(PROTEIN * 3)], truncate=True)
    assert (item.ids, item.cut) == (cut.ids, True)
    assert vocabulary_labels(checkpoint.tokenizer, [4, 5, 32]) == ["L", "A", "<mask>"]


def test_a_fast_tokenizer_of_residues_gives_the_same():
    vocabulary = RELATIVES["esm"].tokenizer.get_vocab()
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>", special_tokens=[(name, vocabulary[name]) for name in ("<cls>", "<eos>")]
    )
    fast = from_loaded(sharp("esm"), PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    slow = checkpoint_of("esm").tokenize(PROTEIN)
    assert replace(fast.tokenize(PROTEIN), offsets=slow.offsets) == slow


def test_a_slow_tokenizer_is_refused_where_there_are_words_and_a_pair_where_it_reads_one_text():
    slow = RELATIVES["esm"].tokenizer
    with pytest.raises(CheckpointError, match=r"expected a fast tokenizer .*found EsmTokenizer"):
        from_loaded(sharp_bert(), slow).tokenize("the cat")
    with pytest.raises(TextError, match="this tokenizer reads one text"):
        attnviz.analyze(PROTEIN, checkpoint_of("esm"), pair="MKV")


def test_a_profile_of_proteins_has_no_roles_of_words(tmp_path):
    corpus = tmp_path / "proteins.txt"
    corpus.write_text(f"{PROTEIN}\nMKVLAAGIVGLLLAQWERTYHH\nGSHMKTAYIARRQ\n")
    checkpoint = checkpoint_of("esm")
    profile = attnviz.profile_heads(checkpoint, [corpus], control=False)
    measured = {role.role.partition(":")[0] for role in profile.roles}
    positional = {"previous-token", "current-token", "next-token", "offset"}
    assert measured == {*positional, "local", "long-range", "sink", "broad", "inactive"}
    assert profile.relations is None
    found = attnviz.analyze(PROTEIN, checkpoint)
    assert "Parser: texts of this model have no words." in " ".join(found.report().split())
    assert "attnviz profile CORPUS.txt --model" in " ".join(found.report().split())


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (lambda it, _: attnviz.analyze(PROTEIN, it, parser="en_core_web_sm"), "the parser 'en_core_web_sm'"),
        (lambda it, _: attnviz.analyze(PROTEIN, it, words=True), r"--words \(words=True\)"),
        (lambda it, _: attnviz.analyze_each([PROTEIN], it, words=True), r"--words \(words=True\)"),
        (lambda it, _: attnviz.rollout(PROTEIN, it, words=True), r"--words \(words=True\)"),
        (lambda it, tree: attnviz.profile_heads(it, [tree]), "tree.conllu"),
        (lambda it, tree: attnviz.compare_corpus(it, it, tree), "tree.conllu"),
    ],
)
def test_what_is_of_words_is_refused_in_one_line(run, named, tmp_path):
    tree: Path = tmp_path / "tree.conllu"
    tree.write_text("1\tcats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\trun\trun\tVERB\t_\t_\t0\troot\t_\t_\n\n")
    tree.with_name("p.txt").write_text(f"{PROTEIN}\n")
    with pytest.raises(UsageError, match=f"{named} is for texts of words, but a model of the architecture 'esm'"):
        run(checkpoint_of("esm"), tree)


@pytest.mark.parametrize("kind", ["esm", "modernbert"])
def test_a_masked_lm_head_is_no_sum_of_parts_for_its_own_reason(kind):
    assert "begins with a transform" in why_not_linear(checkpoint_of(kind, auto_class=AutoModelForMaskedLM))
