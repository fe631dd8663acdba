"""BERT's relatives: verified as BERT is, from their own files, with their own tokenizers, by every command."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import attnviz
from attnviz.commands.explain.position_share import input_parts
from attnviz.commands.explain.stages import verify_stages
from attnviz.commands.models.measure import find_config, read_configuration
from attnviz.errors import ArchitectureError, CheckpointError, TextError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.families import ARCHITECTURES, architecture_of
from attnviz.models.sources import find_checkpoint
from attnviz.models.tokens import merge_subwords
from attnviz.trace import residual_parts
from attnviz.trace.verify import verify_attention
from tests.conftest import SENTENCE, needs_parser
from tests.support.models import save_checkpoint
from tests.support.mutations import OUTPUT_MUTATIONS, PASSED_ON, PATTERN_MUTATIONS
from tests.support.recorded import whole_pattern
from tests.support.relatives import KINDS, RELATIVES, checkpoint_of, sharp

of_each = pytest.mark.parametrize("kind", KINDS)
SHAPES = [{}, {"hidden_size": 24, "num_attention_heads": 1, "num_hidden_layers": 1}, {"num_attention_heads": 16}]
PARTED = [kind for kind in KINDS if not ARCHITECTURES[kind].segments]


def loaded(folder: Path) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), torch.device("cpu"), torch.float32)


def run(checkpoint: Checkpoint, text: str = SENTENCE, pair: str | None = None) -> Any:
    return verify_attention(checkpoint, checkpoint.tokenize(text, pair))


# --- verified, and every wrong attention noticed -------------------------------------------------------------


@of_each
@pytest.mark.parametrize("changes", SHAPES)
def test_heads_reproduce_the_model_in_several_shapes(kind, changes):
    checkpoint = checkpoint_of(kind, torch.float64, **changes)
    verification = run(checkpoint, SENTENCE, "the dog ran").verification
    assert verification.heads_compared == checkpoint.n_layers * checkpoint.n_heads
    assert verification.pattern_error < 1e-14
    assert verification.output_error < 1e-14
    assert max(check.residual_error for check in verification.layers) < 1e-14


@of_each
def test_patterns_are_far_from_even_so_that_a_wrong_formula_shows(kind):
    checkpoint = checkpoint_of(kind)
    pattern = whole_pattern(run(checkpoint), 1)
    assert float(pattern.amax(-1).mean()) > 1.5 / pattern.shape[-1]


@pytest.mark.draws
@of_each
@pytest.mark.parametrize("name", [*PATTERN_MUTATIONS, *OUTPUT_MUTATIONS])
def test_a_wrong_attention_fails_verification(monkeypatch, kind, name):
    checkpoint, family = checkpoint_of(kind), type(ARCHITECTURES[kind])
    change, right = (PATTERN_MUTATIONS | OUTPUT_MUTATIONS)[name], family.parameters
    monkeypatch.setattr(family, "parameters", lambda self, model, layer: change(right(self, model, layer)))
    with pytest.raises(VerificationError, match="3 of 3 layers differ"):
        run(checkpoint)


@pytest.mark.draws
@of_each
@pytest.mark.parametrize("name", PASSED_ON)
def test_an_output_that_is_changed_before_the_residual_fails_verification(kind, name):
    checkpoint = checkpoint_of(kind)
    modules = checkpoint.architecture.modules(checkpoint.model)[2]
    w_o: Any = modules.o_proj
    given: list[Tensor] = []
    w_o.register_forward_hook(lambda _, __, output: given.append(output))
    modules.attention_norm.register_forward_pre_hook(
        lambda _, args: (args[0] - given[-1] + PASSED_ON[name](given[-1], w_o.bias),)
    )
    with pytest.raises(VerificationError, match="but layer 2 does not pass them on: the sum"):
        run(checkpoint)


@of_each
def test_a_wrong_epsilon_and_a_norm_that_gives_something_else_are_noticed(monkeypatch, kind):
    checkpoint = checkpoint_of(kind, torch.float64)
    monkeypatch.setattr(type(checkpoint.architecture), "epsilon_setting", 1e-3)
    with pytest.raises(VerificationError, match=r"does not pass them on: the .*norm after its attention is"):
        run(checkpoint)


# --- positions ------------------------------------------------------------------------------------------------


@of_each
def test_a_text_may_have_as_many_tokens_as_the_model_has_usable_positions(kind):
    checkpoint = checkpoint_of(kind, max_position_embeddings=20)
    usable = 18 if checkpoint.architecture.positions_after_padding else 20
    tokens = checkpoint.tokenize("the cat " * 20, truncate=True)
    assert len(tokens) == checkpoint.positions == usable
    verify_attention(checkpoint, tokens)
    with pytest.raises(TextError, match=rf"has 42 tokens, but the model has {usable} positions"):
        checkpoint.tokenize("the cat " * 19 + "the cat")


@of_each
@pytest.mark.parametrize("pair", [None, "a dog"])
def test_the_input_of_the_first_layer_follows_from_the_tables(kind, pair):
    checkpoint = checkpoint_of(kind, torch.float64)
    tokens = checkpoint.tokenize(f"{SENTENCE}{checkpoint.tokenizer.pad_token} the cat", pair)  # typed padding, too
    kept: list[Any] = []
    verify_stages(checkpoint, tokens, [0, 2], kept.append)
    assert kept[0].checks["input"].error < 1e-14
    assert kept[1].checks["output"].error < 1e-13
    with torch.inference_mode():
        parts = torch.stack(list(input_parts(checkpoint, tokens).values())).sum(0)
    assert float((parts - kept[0]["input"].tensor).abs().max()) < 1e-13


@of_each
def test_positions_one_off_are_noticed(monkeypatch, kind):
    checkpoint, right = checkpoint_of(kind), residual_parts.position_rows
    monkeypatch.setattr(residual_parts, "position_rows", lambda *given: right(*given) + 1)
    with pytest.raises(VerificationError, match="input of layer 0"):
        verify_stages(checkpoint, checkpoint.tokenize(SENTENCE), [0], lambda _: None)


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.draws
@of_each
@pytest.mark.parametrize(
    "head",
    [
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoModelForQuestionAnswering,
        AutoModelForMultipleChoice,
    ],
)
def test_a_checkpoint_with_any_head_is_read_from_its_files(kind, head, tmp_path):
    model = sharp(kind, auto_class=head)
    folder = save_checkpoint(model, RELATIVES[kind].tokenizer, tmp_path / kind)
    checkpoint = loaded(folder)
    assert (checkpoint.language_head is None) == (head is not AutoModelForMaskedLM)
    inputs = checkpoint.tokenize(SENTENCE).model_inputs(checkpoint.device)
    with torch.inference_mode():
        states = checkpoint.model(**inputs).last_hidden_state
        if checkpoint.language_head is not None:
            torch.testing.assert_close(checkpoint.language_head(states), model(**inputs).logits)
    torch.testing.assert_close(states, from_loaded(model, checkpoint.tokenizer).model(**inputs).last_hidden_state)
    run(checkpoint)


@of_each
def test_a_head_keeps_the_modes_of_its_modules(kind):
    model = sharp(kind, auto_class=AutoModelForMaskedLM)
    checkpoint = from_loaded(model, RELATIVES[kind].tokenizer)
    attnviz.ablate(["the cat ran"], checkpoint, curve=False)
    assert not any(module.training for module in model.modules())


@of_each
@pytest.mark.parametrize(
    ("setting", "value"),
    [("is_decoder", True), ("add_cross_attention", True), ("position_embedding_type", "relative_key")],
)
def test_what_is_not_reproduced_is_refused_by_name_and_value(kind, setting, value):
    config = RELATIVES[kind].config()
    setattr(config, setting, value)
    with pytest.raises(ArchitectureError, match=rf"this \w+\S* has {setting}={value!r}"):
        architecture_of(config, torch.float32)


def test_a_width_of_heads_that_the_family_does_not_read_is_not_believed(tmp_path):
    checkpoint = checkpoint_of("roberta", torch.float32)
    checkpoint.config.head_dim = 5
    assert checkpoint.d_head == checkpoint.d_model // checkpoint.n_heads
    assert attnviz.ablate(SENTENCE, checkpoint, curve=False).heads


def test_a_size_that_is_no_model_is_refused_by_the_configs_own_name():
    with pytest.raises(ArchitectureError, match="the config has n_layers=0; expected a model with layers"):
        architecture_of(RELATIVES["distilbert"].config(num_hidden_layers=0), torch.float32)


def test_the_discriminator_of_electra_is_read_without_a_head(tmp_path):
    folder = save_checkpoint(
        sharp("electra", auto_class=AutoModelForPreTraining), RELATIVES["electra"].tokenizer, tmp_path / "it"
    )
    checkpoint = loaded(folder)
    assert checkpoint.language_head is None
    run(checkpoint)


@pytest.mark.parametrize("width", [20, 32])
def test_embeddings_of_electra_are_projected_where_they_are_narrower(width):
    checkpoint = checkpoint_of("electra", embedding_size=width)
    verify_stages(checkpoint, checkpoint.tokenize(SENTENCE, "a dog"), [0], lambda _: None)
    formula = attnviz.explain(SENTENCE, checkpoint).document()["stages"][0]["formula"]
    assert formula == "x = norm(word + position + segment)" + " W + b" * (width == 20)


def test_what_older_versions_saved_beside_the_weights_is_left_out(tmp_path):
    model = sharp("roberta", auto_class=AutoModelForMaskedLM)
    folder = save_checkpoint(model, RELATIVES["roberta"].tokenizer, tmp_path / "it")
    weights = load_file(folder / "model.safetensors")
    older = {
        "roberta.embeddings.position_ids": torch.arange(66)[None],
        "roberta.pooler.dense.weight": torch.zeros(32, 32),
        "roberta.pooler.dense.bias": torch.zeros(32),
    }
    save_file(weights | older, folder / "model.safetensors", {"format": "pt"})
    assert loaded(folder).language_head is not None
    run(loaded(folder))
    save_file(weights | {"roberta.encoder.extra": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 unexpected \(.*encoder\.extra\)"):
        loaded(folder)


@pytest.mark.parametrize("padding", [None, -1, 65])
def test_roberta_without_a_padding_token_to_count_from_is_refused(padding):
    config = RELATIVES["roberta"].config()
    config.pad_token_id = padding
    with pytest.raises(ArchitectureError, match=rf"pad_token_id={padding}, from which its 66 positions"):
        architecture_of(config, torch.float32)


@of_each
def test_models_counts_the_parameters_and_says_how_many_positions_are_usable(kind, tmp_path):
    model = sharp(kind)
    folder = save_checkpoint(model, RELATIVES[kind].tokenizer, tmp_path / kind)
    found = read_configuration(find_config(str(folder)))
    assert (found.architecture, found.level, found.n_layers, found.n_heads, found.d_model, found.d_head) == (
        kind, 4, 3, 4, 32, 8,
    )  # fmt: skip
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    shared = kind == "albert"  # by two of its layers
    assert found.attention_parameters == (3 - shared) * 4 * (32 * 32 + 32)
    skipped = ARCHITECTURES[kind].positions_after_padding
    assert (found.positions, any("for no token" in note for note in found.notes)) == (66 - 2 * skipped, skipped)


# --- pairs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PARTED)
def test_a_pair_is_joined_as_the_tokenizer_does_and_that_is_said(kind, tmp_path):
    checkpoint = checkpoint_of(kind)
    result = attnviz.analyze("the cat ran", checkpoint, pair="a dog", syntax=False)
    between = "</s></s>" if "<s>" in result.tokens.labels else "[SEP]"
    first, last = result.tokens.labels[0], result.tokens.labels[-1]
    assert result.tokens.ids == tuple(checkpoint.tokenizer("the cat ran", "a dog")["input_ids"])
    (note,) = result.document()["reading_notes"]
    assert f"{first} TEXT {between} PAIR {last}" in note
    assert note in " ".join(result.report().split())
    assert "token types" not in attnviz.analyze("the cat ran", checkpoint, syntax=False).report()
    assert attnviz.compare(result, result).document()["reading_notes"] == [note]


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("roberta", ("<s>", "the", "un", "~be", "~liev", "~a", "~bl", "~e", "cat", "~s", "ran", "away", ".",
                     "<mask>", "</s>")),
        ("xlm-roberta", ("<s>", "the", "un", "~believ", "~able", "cat", "~s", "ran", "away", ".", "<mask>", "</s>")),
    ],
)  # fmt: skip
def test_labels_and_words_are_those_of_other_tokenizers(kind, labels):
    tokens = checkpoint_of(kind).tokenize("the unbelievable cats ran away. <mask>")
    assert tokens.labels == labels
    assert tokens.word_labels == ("the", "unbelievable", "cats", "ran", "away", ".", "<mask>")
    assert [i for i, special in enumerate(tokens.special) if special] == [0, len(labels) - 1]
    units = merge_subwords(tokens, words=True)
    assert units.labels == ("<s>", *tokens.word_labels, "</s>")
    assert tokens.sinks == {0, len(labels) - 1}


def test_an_unknown_piece_is_shown_as_the_model_sees_it():
    tokens = checkpoint_of("xlm-roberta").tokenize("cat 中")
    assert tokens.labels == ("<s>", "cat", "␣", "~<unk>", "</s>")
    assert tokens.word_labels == ("cat", "中")


@needs_parser
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_a_parse_meets_the_words_of_the_tokenizer(kind):
    result = attnviz.analyze("The cats saw a dog.", checkpoint_of(kind), words=True)
    assert result.parse is not None
    at = {word.text: word.positions for word in result.parse.words}
    assert list(at) == ["The", "cats", "saw", "a", "dog", "."]
    labels = result.tokens.labels
    assert [labels[i] for i in at["cats"]] == ["cat", "~s"]
    assert [labels[i] for i in at["dog"]] == ["dog"]
    assert [labels[i] for i in at["."]] == ["."]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_profile_does_not_depend_on_the_side_of_the_tokenizers_padding(side, tmp_path):
    (tmp_path / "corpus.txt").write_text("The cat ran away\nthe dog that I saw ran\nhe saw one tree\n")
    checkpoint = checkpoint_of(KINDS[0])
    checkpoint.tokenizer.padding_side = side
    scores = [
        attnviz.profile_heads(checkpoint, [tmp_path / "corpus.txt"], syntax=False, batch_size=size).document()[
            "statistics"
        ]
        for size in (1, 8)
    ]
    for name in ("entropy", "distance", "sink"):
        torch.testing.assert_close(torch.tensor(scores[0][name]), torch.tensor(scores[1][name]), rtol=1e-5, atol=1e-5)
