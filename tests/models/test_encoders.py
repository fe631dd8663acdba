"""What is special about BERT's relatives: ModernBERT, ALBERT, OPT, MPNet, DeBERTa, ESM, RoBERTa and their kin."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

import attnviz
from attnviz.errors import CheckpointError, TextError, UsageError, VerificationError
from attnviz.inputs.prompt import Text, merge_subwords
from attnviz.inputs.text import encode, tokenize
from attnviz.inputs.words import vocabulary_labels
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.bert_gpt2 import Albert
from attnviz.reference.positions import RelativePositions
from attnviz.run.layer_steps import verify_stages
from tests.conftest import needs_parser
from tests.support.families import first_of
from tests.support.models import save_checkpoint, sharp_bert
from tests.support.recorded import own_patterns
from tests.support.relatives import KINDS, RELATIVES, checkpoint_of, sharp
from tests.support.tolerances import SHARP_64, SUMS_32, SUMS_64

TEXT = "the cat that i saw ran away from the dog"
PROTEIN = "MKTAYIAKQRQISF"
MASKED = "MK<mask>AYI <mask>KQjRx"


def test_windows_are_on_both_sides_and_baselines_within_them():
    checkpoint = checkpoint_of("modernbert")
    found = attnviz.analyze(TEXT, checkpoint, syntax=False)
    n = len(found.tokens)
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 3
    for layer, pattern in own_patterns(checkpoint, found.tokens.model_inputs(checkpoint.device)).items():
        assert (pattern[..., ~near] == 0).all() == bool(layer)
        assert torch.equal(
            found.context_of(layer).allowed_rows(0, n), near if layer else torch.ones(n, n, dtype=torch.bool)
        )
        assert pattern.amax(-1).mean() > 0.3


def test_modernberts_mean_of_states_is_not_taken_for_the_first_token():
    of_classes = transformers.AutoModelForSequenceClassification
    heads = [
        checkpoint_of("modernbert", auto_class=of_classes, classifier_pooling=kind).classifier
        for kind in ("cls", "mean")
    ]
    assert [head is None for head in heads] == [False, True]


def test_the_bias_by_distance_is_a_part_of_scores():
    checkpoint = checkpoint_of("mpnet", torch.float64)
    explained = attnviz.explain(TEXT, checkpoint, layer=0)
    query, key = explained.tensor("split")[:2]
    bias = checkpoint.model.encoder.compute_position_bias(query[0][None])[0]
    torch.testing.assert_close(explained.tensor("scores"), query @ key.mT / 8**0.5 + bias, rtol=0, atol=SHARP_64)


def test_scores_of_deberta_are_of_content_and_of_its_relative_positions_both_ways():
    checkpoint = checkpoint_of("deberta-v2", torch.float64)
    explained = attnviz.explain(TEXT, checkpoint, layer=0)
    (query, key), attention = explained.tensor("split")[:2], checkpoint.modules[0].attention
    positions = checkpoint.model.encoder.get_rel_pos(query)
    with torch.no_grad():
        table = checkpoint.model.encoder.get_rel_embedding()
        both = attention.disentangled_attention_bias(query, key, positions, table, 3)
    content, *by_position = query @ key.mT / 24**0.5, explained.tensor("content_to_position")
    by_position.append(explained.tensor("position_to_content"))
    torch.testing.assert_close(sum(by_position), both, rtol=0, atol=SUMS_32)
    torch.testing.assert_close(explained.tensor("scores"), content + both, rtol=0, atol=SUMS_32)
    row = explained.row
    for key in row.keys:
        by_position = key["content_to_position"] + key["position_to_content"]
        assert key["product"] * row.scale + by_position == pytest.approx(key["score"])


@pytest.mark.parametrize("settings", [(256, 512), (8, 66), (5, 20)])
def test_buckets_of_relative_positions_are_those_of_the_model_at_every_distance(settings):
    n_buckets, farthest = settings
    each = torch.arange(2.0 * n_buckets)[None, :, None]  # the key of a bucket is its number
    relative, ones = RelativePositions({"content_to_position": each}, farthest), torch.ones(1, 1200, 1)
    found = relative.products(ones[:, :700], ones, 1.0, 500)["content_to_position"][0]
    right = build_relative_position(ones, ones, n_buckets, farthest)[0, 500:]
    assert torch.equal(found, (right + n_buckets).clamp(0, 2 * n_buckets - 1).float())


@pytest.mark.parametrize("legacy", [True, False])
def test_both_masked_lm_heads_of_deberta_are_read(legacy, tmp_path):
    model = sharp("deberta-v2", auto_class=transformers.AutoModelForMaskedLM, legacy=legacy)
    folder = save_checkpoint(model, RELATIVES["deberta-v2"].tokenizer, tmp_path / "model")
    result = attnviz.head_outputs("the cat [MASK] the dog", str(folder), device="cpu")
    assert result.effects.error < SUMS_32
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([result.tokens.ids])).logits[0, result.effects.position]
    assert result.effects.predicted.logit == pytest.approx(float(logits.max()), abs=SUMS_32)


# --- layers that share modules

_SHARING: dict[str, dict[str, int]] = {
    "two for three": {"num_hidden_groups": 2},
    "one after the other, twice": {"num_hidden_groups": 1, "inner_group_num": 2, "num_hidden_layers": 2},
}
_HEADS = {"ablate": transformers.AutoModelForMaskedLM, "outputs": transformers.AutoModelForSequenceClassification}
_NAMES = {"model", "models", "place"}
_COMMANDS: dict[str, Callable[[Checkpoint], Any]] = {
    "heads": lambda model: attnviz.analyze(TEXT, model, syntax=False),
    "explain": lambda model: attnviz.explain(TEXT, model, layer=1),
    "outputs": lambda model: attnviz.head_outputs(TEXT, model),
    "ablate": lambda model: attnviz.ablate([TEXT, "the dog ran"], model),
    "ablate, uniform": lambda model: attnviz.ablate(TEXT, model, method="uniform", curve=False),
}


def unshared(model: Any) -> Any:
    model = deepcopy(model)
    encoder, n = model.base_model.encoder, model.config.num_hidden_layers
    groups = [encoder.albert_layer_groups[int(run * model.config.num_hidden_groups / n)] for run in range(n)]
    config = {id(model.config): model.config}
    encoder.albert_layer_groups = torch.nn.ModuleList(deepcopy(group, config.copy()) for group in groups)
    model.config.num_hidden_groups = n
    return model


def found_by(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: found_by(each) for name, each in document.items() if name not in _NAMES}
    return [found_by(each) for each in document] if isinstance(document, list) else document


@pytest.mark.draws
@pytest.mark.parametrize(
    ("command", "sharing"),
    first_of([("ablate", "two for three"), *((command, "one after the other, twice") for command in _COMMANDS)]),
)
def test_layers_that_share_modules_are_measured_as_copies_are(command, sharing):
    model = sharp("albert", auto_class=_HEADS.get(command, transformers.AutoModelForMaskedLM), **_SHARING[sharing])
    one, other = (from_loaded(each, RELATIVES["albert"].tokenizer) for each in (model, unshared(model)))
    assert len({modules.block for modules in one.modules}) < len({modules.block for modules in other.modules})
    found, expected = (found_by(_COMMANDS[command](each).document()) for each in (one, other))
    assert found == expected


OTHER_MODULES: dict[str, Callable[[Any], Any]] = {
    "heads": lambda layers: [layers[0], layers[2], layers[2]],
    "explain": lambda layers: layers[::-1],
    "ablate": lambda layers: [replace(each, run=each.n_runs - 1 - each.run) for each in layers],
}


@pytest.mark.parametrize("command", OTHER_MODULES)
def test_other_modules_or_another_run_of_them_are_noticed(monkeypatch, command):
    checkpoint, right = checkpoint_of("albert", auto_class=transformers.AutoModelForMaskedLM), Albert.modules
    monkeypatch.setattr(Albert, "modules", lambda *given: OTHER_MODULES[command](right(*given)))
    with pytest.raises(VerificationError):
        _COMMANDS[command](checkpoint)


# --- proteins


@pytest.mark.parametrize(
    ("text", "factor", "dtype"), [(PROTEIN, 0.88, torch.bfloat16), (MASKED, 0.88 * 14 / 12, torch.float32)]
)
def test_what_masks_leave_out_is_made_up_for(dtype, text, factor):
    checkpoint = checkpoint_of("esm", dtype, emb_layer_norm_before=False)
    explained = attnviz.explain(text, checkpoint, layer=0)
    ids = torch.tensor(explained.tokens.ids)
    rows = checkpoint.model.embeddings.word_embeddings.weight[ids].detach() * (ids != 32)[:, None] * factor
    torch.testing.assert_close(explained.tensor("input"), rows.to(explained.tensor("input")), rtol=2e-2, atol=1e-3)


def test_old_files_of_esm_are_read_with_the_frequencies_that_they_hold(tmp_path):
    """As Meta saved it: frequencies a layer, in float16; unused positions; no head for contacts."""
    folder = save_checkpoint(
        sharp("esm", auto_class=transformers.AutoModelForMaskedLM), RELATIVES["esm"].tokenizer, tmp_path / "it"
    )
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
    assert found.checkpoint.language_head is not None
    save_file(old | {"esm.encoder.extra": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"encoder\.extra"):
        attnviz.analyze(PROTEIN, str(folder))


def test_residues_are_tokens_and_words_of_their_own():
    checkpoint = checkpoint_of("esm", max_position_embeddings=20)
    tokens = tokenize(checkpoint, MASKED)
    assert tokens.ids == tuple(checkpoint.tokenizer(MASKED)["input_ids"])
    assert " ".join(tokens.labels) == "<cls> M1 K2 <mask>3 A4 Y5 I6 <mask>7 K8 Q9 <unk>10 R11 <unk>12 <eos>"
    assert " ".join(tokens.word_labels) == "M K <mask> A Y I <mask> K Q <unk> R <unk>"
    assert tokens.words == (None, *range(12), None)
    assert [MASKED[first:last] for first, last in tokens.offsets][6:] == ["I", "<mask>", "K", "Q", "j", "R", "x", ""]
    assert [i for i, special in enumerate(tokens.special) if special] == [0, 13]
    cut = tokenize(checkpoint, PROTEIN * 3, truncate=True)
    assert (len(cut), cut.truncated, cut.labels[-2:]) == (20, 24, ("A18", "<eos>"))
    (item,) = encode(checkpoint, [Text(PROTEIN * 3)], truncate=True)
    assert (item.ids, item.truncated) == (cut.ids, cut.truncated)
    assert vocabulary_labels(checkpoint.tokenizer, [4, 5, 32]) == ["L", "A", "<mask>"]


def test_a_slow_tokenizer_is_refused_where_there_are_words_and_a_pair_where_it_reads_one_text():
    with pytest.raises(CheckpointError, match="EsmTokenizer"):
        tokenize(from_loaded(sharp_bert(), RELATIVES["esm"].tokenizer), "the cat")
    with pytest.raises(TextError):
        attnviz.analyze(PROTEIN, checkpoint_of("esm"), pair="MKV")


def test_a_profile_of_proteins_has_no_roles_of_words(tmp_path):
    corpus = tmp_path / "proteins.txt"
    corpus.write_text(f"{PROTEIN}\nMKVLAAGIVGLLLAQWERTYHH\nGSHMKTAYIARRQ\n")
    profile = attnviz.profile_heads(checkpoint_of("esm"), [corpus], control=False)
    measured = {role.role.partition(":")[0] for role in profile.roles}
    positional = {"previous-token", "current-token", "next-token", "offset"}
    assert measured == {*positional, "local", "long-range", "sink", "broad", "inactive"}
    assert profile.relations is None


@pytest.mark.parametrize(
    "run",
    [
        lambda it, _: attnviz.analyze(PROTEIN, it, parser="en_core_web_sm"),
        lambda it, _: attnviz.analyze(PROTEIN, it, words=True),
        lambda it, _: attnviz.analyze_each([PROTEIN], it, words=True),
        lambda it, _: attnviz.rollout(PROTEIN, it, words=True),
        lambda it, tree: attnviz.profile_heads(it, [tree]),
        lambda it, tree: attnviz.compare_corpus(it, it, tree),
    ],
)
def test_what_is_of_words_is_refused(run, tmp_path):
    tree: Path = tmp_path / "tree.conllu"
    tree.write_text("1\tcats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\trun\trun\tVERB\t_\t_\t0\troot\t_\t_\n\n")
    tree.with_name("p.txt").write_text(f"{PROTEIN}\n")
    with pytest.raises(UsageError, match="words"):
        run(checkpoint_of("esm"), tree)


# --- BERT's nearest relatives


@pytest.mark.draws
@pytest.mark.parametrize(
    ("kind", "changes"), first_of([*((kind, {}) for kind in KINDS), ("electra", {"embedding_size": 32})])
)
@pytest.mark.parametrize("pair", [None, "a dog"])
def test_the_input_of_the_first_layer_follows_from_the_tables(kind, changes, pair):
    checkpoint = checkpoint_of(kind, torch.float64, **changes)
    tokens = tokenize(checkpoint, f"{TEXT}{checkpoint.tokenizer.pad_token} the cat", pair)  # typed padding, too
    kept = list(verify_stages(checkpoint, tokens, [0, 2]))
    assert kept[0].checks["input"].error < SUMS_64
    assert kept[1].checks["output"].error < SHARP_64


@pytest.mark.parametrize("kind", first_of([kind for kind in KINDS if not ARCHITECTURES[kind].segments]))
def test_a_pair_is_joined_as_the_tokenizer_does_and_that_is_said(kind):
    checkpoint = checkpoint_of(kind)
    result = attnviz.analyze("the cat ran", checkpoint, pair="a dog", syntax=False)
    between = "</s></s>" if "<s>" in result.tokens.labels else "[SEP]"
    first, last = result.tokens.labels[0], result.tokens.labels[-1]
    assert result.tokens.ids == tuple(checkpoint.tokenizer("the cat ran", "a dog")["input_ids"])
    (note,) = result.document()["reading_notes"]
    assert f"{first} TEXT {between} PAIR {last}" in note


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("roberta", ("<s>", "the", "un", "~be", "~liev", "~a", "~bl", "~e", "cat", "~s", "ran", "away", ".",
                     "<mask>", "</s>")),
        ("xlm-roberta", ("<s>", "the", "un", "~believ", "~able", "cat", "~s", "ran", "away", ".", "<mask>", "</s>")),
    ],
)  # fmt: skip
def test_labels_and_words_are_those_of_other_tokenizers(kind, labels):
    tokens = tokenize(checkpoint_of(kind), "the unbelievable cats ran away. <mask>")
    assert tokens.labels == labels
    assert tokens.word_labels == ("the", "unbelievable", "cats", "ran", "away", ".", "<mask>")
    assert [i for i, special in enumerate(tokens.special) if special] == [0, len(labels) - 1]
    units = merge_subwords(tokens, words=True)
    assert units.labels == ("<s>", *tokens.word_labels, "</s>")
    assert tokens.sinks == {0, len(labels) - 1}


@needs_parser
@pytest.mark.parametrize("kind", first_of(["roberta", "xlm-roberta"]))
def test_a_parse_meets_the_words_of_the_tokenizer(kind):
    result = attnviz.analyze("The cats saw a dog.", checkpoint_of(kind), words=True)
    assert result.parse is not None
    found = {word.text: [result.tokens.labels[at] for at in word.positions] for word in result.parse.words}
    assert list(found) == ["The", "cats", "saw", "a", "dog", "."]
    assert (found["cats"], found["dog"], found["."]) == (["cat", "~s"], ["dog"], ["."])


def test_a_profile_does_not_depend_on_the_side_of_the_tokenizers_padding(tmp_path):
    (tmp_path / "corpus.txt").write_text("The cat ran away\nthe dog that I saw ran\nhe saw one tree\n")
    checkpoint, scores = checkpoint_of(KINDS[0]), []
    for side, size in (("left", 8), ("right", 1)):
        checkpoint.tokenizer.padding_side = side
        options = {"syntax": False, "batch_size": size, "control": False}
        profile = attnviz.profile_heads(checkpoint, [tmp_path / "corpus.txt"], **options)
        scores.append(profile.document()["statistics"])
    for name in ("entropy", "distance", "sink"):
        both = (torch.tensor(each[name]) for each in scores)
        torch.testing.assert_close(*both, rtol=SUMS_32, atol=SUMS_32)
