"""What a comparison measures: numbers in closed form, a weight changed on purpose, and what cannot be compared."""

import copy
import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnviz
from attnviz.commands.compare.differences import LARGEST_DISTANCE, find_differences, measure_difference
from attnviz.commands.compare.document import COMPARE, compare_csv
from attnviz.commands.compare.saving import Comparison
from attnviz.errors import OutputError, TextError, UsageError, VerificationError
from attnviz.figures.captions import read_captions
from attnviz.figures.look import Look
from attnviz.model.head_ids import HeadId
from tests.conftest import SENTENCE
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

OTHER = "The dog that I saw ran away"


def analysed(model, text=SENTENCE, **options):
    tokenizer = gpt2_tokenizer() if "gpt2" in type(model).__name__.lower() else bert_tokenizer()
    return attnviz.analyze(text, model, tokenizer=tokenizer, syntax=False, **options)


def tuned(model, layer, head):
    """The model with the queries of one head negated, as if it had been fine-tuned."""
    other = copy.deepcopy(model)
    attention = other.encoder.layer[layer].attention.self
    rows = slice(head * attention.attention_head_size, (head + 1) * attention.attention_head_size)
    with torch.no_grad():
        attention.query.weight[rows] *= -1
    return other


@pytest.fixture(scope="module")
def bert():
    return sharp_bert()


@pytest.fixture(scope="module")
def texts(bert):
    return attnviz.compare(analysed(bert), analysed(bert, OTHER))


@pytest.fixture(scope="module")
def models(bert):
    return attnviz.compare(analysed(bert), analysed(tuned(bert, 2, 1)))


def by_hand(first, second):
    """The mean divergence over queries, by the sum of Kullback-Leibler divergences in plain Python."""
    total = 0.0
    for p_row, q_row in zip(first.tolist(), second.tolist(), strict=True):
        for p, q in zip(p_row, q_row, strict=True):
            m = (p + q) / 2
            total += (p * math.log(p / m) if p else 0.0) / 2 + (q * math.log(q / m) if q else 0.0) / 2
    return total / len(first)


# --- numbers


def test_patterns_without_a_key_in_common_are_ln_2_apart():
    divergence, variation, largest = measure_difference(torch.eye(3), torch.eye(3)[[1, 2, 0]])
    assert divergence == pytest.approx(math.log(2))
    assert math.sqrt(divergence) == pytest.approx(LARGEST_DISTANCE)
    assert variation == 1.0
    assert (largest.difference, largest.query, largest.key) == (-1.0, 0, 0)  # the first in reading order


def test_equal_patterns_are_0_apart():
    pattern = torch.rand(7, 7).softmax(1)
    divergence, variation, largest = measure_difference(pattern, pattern.clone())
    assert (divergence, variation, largest.difference) == (0.0, 0.0, 0.0)


def test_a_divergence_in_closed_form():
    p, q = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    first_row = (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2)) / 2
    divergence, variation, largest = measure_difference(p, q)
    assert divergence == pytest.approx(first_row / 2)
    assert variation == pytest.approx(0.25)
    assert (largest.difference, largest.query, largest.key) == (-0.5, 0, 0)


def test_differences_are_b_minus_a():
    p, q = torch.tensor([[0.6, 0.4], [0.5, 0.5]]), torch.tensor([[0.6, 0.4], [0.1, 0.9]])
    _, _, largest = measure_difference(p, q)
    assert largest.difference == pytest.approx(-0.4)
    assert (largest.query, largest.key) == (1, 0)
    _, _, largest = measure_difference(q, p)
    assert largest.difference == pytest.approx(0.4)


def test_every_head_is_measured_from_its_own_patterns(texts):
    assert len(texts.heads) == 12
    for head in texts.heads:
        a, b = (side.layer_patterns(head.id.layer)[head.id.head].double() for side in (texts.first, texts.second))
        assert head.divergence == pytest.approx(by_hand(a, b), rel=1e-9, abs=1e-12)
        assert head.distance == pytest.approx(math.sqrt(head.divergence))
        assert head.total_variation == pytest.approx(float((a - b).abs().sum(1).mean() / 2))
        difference = texts.layer_differences(head.id.layer)[head.id.head]
        assert head.largest.difference == pytest.approx(difference[head.largest.query, head.largest.key])
        assert abs(head.largest.difference) == pytest.approx(np.abs(difference).max())


def test_heads_are_ranked_by_distance_and_layers_are_means(texts):
    distances = [head.distance for head in texts.heads]
    assert distances == sorted(distances, reverse=True)
    assert [head.rank for head in texts.heads] == list(range(1, 13))
    assert [layer.layer for layer in texts.layers] == [0, 1, 2]
    for layer in texts.layers:
        heads = [head for head in texts.heads if head.id.layer == layer.layer]
        assert layer.distance == pytest.approx(sum(head.distance for head in heads) / 4)
        assert layer.divergence == pytest.approx(sum(head.divergence for head in heads) / 4)
        assert layer.total_variation == pytest.approx(sum(head.total_variation for head in heads) / 4)


def test_the_changed_head_ranks_first_and_all_before_it_are_0(models):
    first, *others = models.heads
    assert first.id == HeadId(2, 1)
    assert first.distance > 0.1
    assert not first.rounding
    assert [(head.divergence, head.distance, head.largest.difference) for head in others] == [(0.0, 0.0, 0.0)] * 11
    assert all(head.rounding for head in others)
    assert models.any_beyond_rounding


def test_a_change_in_a_middle_layer_shows_there_and_after(bert):
    found = attnviz.compare(analysed(bert), analysed(tuned(bert, 1, 2)))
    changed = {head.id for head in found.heads if not head.rounding}
    assert HeadId(1, 2) in changed
    assert not any(id.layer == 0 or (id.layer == 1 and id.head != 2) for id in changed)
    assert sum(id.layer == 2 for id in changed) == 4


def test_two_identical_sides_give_exactly_0_and_say_so(bert):
    found = attnviz.compare(analysed(bert), analysed(copy.deepcopy(bert)))
    assert {(head.divergence, head.total_variation, head.largest.difference) for head in found.heads} == {(0, 0, 0)}
    assert not found.any_beyond_rounding
    assert not any(head.label_changed for head in found.heads)
    assert "No weight of any head differs by more than rounding may" in found.report(300)
    assert "none beyond rounding" in found.report(300)


def test_rounding_is_told_from_change(bert):
    """The same weights in float64 differ by rounding only, far below anything that a change makes."""
    wide = copy.deepcopy(bert).double()
    found = attnviz.compare(analysed(bert), analysed(wide))
    assert found.floor >= torch.finfo(torch.float32).eps
    assert max(head.distance for head in found.heads) < 1e-4
    assert found.floor >= found.first.verification.pattern_error + found.second.verification.pattern_error


def test_the_errors_of_both_verifications_count_as_rounding(bert):
    def with_error(side, error):
        verification = side.verification
        checks = [replace(check, pattern_error=error) for check in verification.layers]
        attention = copy.copy(side.attention)
        attention.verification = replace(verification, layers=type(verification.layers)(checks))
        return replace(side, attention=attention)

    found = attnviz.compare(with_error(analysed(bert), 4e-5), with_error(analysed(tuned(bert, 2, 1)), 3e-5))
    assert found.floor == pytest.approx(7e-5)


def test_swapping_the_sides_turns_signs_and_labels_and_keeps_distances(models):
    swapped = attnviz.compare(models.second, models.first)
    for head in models.heads:
        other = swapped.head(head.id)
        assert other.divergence == pytest.approx(head.divergence, abs=1e-15)
        assert other.largest.difference == pytest.approx(-head.largest.difference)
        assert (other.label_before, other.label_after) == (head.label_after, head.label_before)


def test_labels_rest_on_the_text_alone(models):
    head = replace(models.heads[0], label_before="local", label_after="sink")
    assert head.label_changed
    assert head.labels == "local → sink"
    assert replace(head, label_after="local").labels == "local"
    for found in models.heads:
        assert found.label_before == models.first.head(found.id).label  # of a model in memory: no profile


def test_which_tokens_differ(texts, models):
    assert [texts.labels[i] for i, differs in enumerate(texts.differing) if differs] == ["cat → dog"]
    assert texts.compared == "texts"
    assert models.compared == "models"
    assert not any(models.differing)
    assert models.labels == models.first.units.labels
    assert texts.quiet == texts.first.units.sink


def test_words_are_compared_where_their_pieces_are_not_as_many(bert):
    sides = [analysed(bert, text, words=True) for text in ("the unbelievable cat ran", "the old cat ran")]
    found = attnviz.compare(*sides)
    assert found.unit == "word"
    assert len(found.labels) == 6
    assert found.layer_differences(0).shape == (4, 6, 6)
    assert "unbelievable → [UNK]" in found.labels[2]


def test_gpt2_models_are_compared(gpt2_folder):
    model = sharp_gpt2()
    found = attnviz.compare(analysed(model), analysed(sharp_gpt2(seed=1)))
    assert len(found.heads) == 12
    assert all(head.distance > 0 for head in found.heads)
    difference = found.layer_differences(1)
    assert not np.triu(difference, 1).any()  # no head sees what comes after


def test_heads_are_found_and_selected_as_in_an_analysis(texts):
    assert texts.head("L1H2").id == texts.head(HeadId(1, 2)).id == HeadId(1, 2)
    assert {head.id.layer for head in texts.select(["L1"])} == {1}
    assert [head.rank for head in texts.select(["L1"])] == sorted(head.rank for head in texts.select(["L1"]))
    with pytest.raises(UsageError, match="the model has no head L9H0"):
        texts.head("L9H0")


# --- what cannot be compared


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, r"bert with 3 layers of 4 heads, BertModel is bert with 2 layers of 4 heads"),
        ({"num_attention_heads": 2}, r"3 layers of 4 heads, BertModel is bert with 3 layers of 2 heads"),
        ({"num_hidden_layers": 1, "num_attention_heads": 1}, r"bert with 1 layer of 1 head; expected the same"),
    ],
)
def test_models_of_other_shape_are_refused(bert, changes, message):
    with pytest.raises(UsageError, match=message):
        attnviz.compare(analysed(bert), analysed(sharp_bert(**changes)))


def test_other_architectures_are_refused(bert):
    with pytest.raises(UsageError, match=r"is bert with 3 .* is gpt2 with 3 layers of 4 heads; expected the same arch"):
        attnviz.compare(analysed(bert), analysed(sharp_gpt2()))


def test_other_tokens_of_the_same_text_are_refused(bert):
    other = bert_tokenizer()
    other.add_tokens(["saw ran"])
    side = attnviz.analyze(SENTENCE, sharp_bert(vocab_size=len(other)), tokenizer=other, syntax=False)
    with pytest.raises(TextError, match=r"at position 5 found 'saw' \(id \d+\) and 'saw ran' \(id \d+\); exp"):
        attnviz.compare(analysed(bert), side)


def test_a_text_cut_short_is_refused_with_both_lengths(bert):
    first, second = analysed(bert), analysed(bert)
    tokens = replace(second.tokens, ids=second.tokens.ids[:-1], labels=second.tokens.labels[:-1])
    with pytest.raises(TextError, match="found 9 and 8 tokens; expected models with the same tokenizer"):
        attnviz.compare(first, replace(second, tokens=tokens))
    kinds = replace(second.tokens, type_ids=(1,) * 9)
    with pytest.raises(TextError, match="found the same tokens with other segments or words"):
        attnviz.compare(first, replace(second, tokens=kinds))


def test_another_text_and_another_model_at_once_are_refused(bert):
    with pytest.raises(UsageError, match="both the text and the model differ"):
        attnviz.compare(analysed(bert), analysed(tuned(bert, 0, 0), OTHER))


def test_the_same_weights_loaded_twice_are_one_model(bert):
    assert attnviz.compare(analysed(bert), analysed(copy.deepcopy(bert), OTHER)).compared == "texts"


def test_texts_of_other_length_are_refused_with_both_lengths_and_what_to_do(bert):
    shorter = analysed(bert, "The cat that I saw ran")
    with pytest.raises(TextError, match=r"have 9 and 8 tokens, 2 special tokens included; expected as many in both: "
                       r"replace tokens .* \(as words, --words, they have 9 and 8\)"):  # fmt: skip
        attnviz.compare(analysed(bert), shorter)
    pieces = [analysed(bert, text) for text in ("the unbelievable cat", "the white cat")]
    with pytest.raises(TextError, match=r"7 and 5 tokens.*word by word they are equally long \(5\): compare words"):
        attnviz.compare(*pieces)
    words = [analysed(bert, text, words=True) for text in ("the cat", "the cat ran")]
    with pytest.raises(TextError, match=r"have 4 and 5 words, .*: replace tokens or words, but add and remove none\."):
        attnviz.compare(*words)


def test_lengths_without_special_tokens_do_not_speak_of_them():
    model = sharp_gpt2()
    with pytest.raises(TextError, match=r"the texts have \d+ and \d+ tokens; expected"):
        attnviz.compare(analysed(model, "the cat"), analysed(model, "the cat ran away now"))


def test_other_options_are_refused(bert):
    with pytest.raises(UsageError, match="analysed with different options"):
        attnviz.compare(analysed(bert), analysed(bert, words=True))
    first = analysed(bert)
    with pytest.raises(UsageError, match="one side was analysed with syntax and the other without"):
        attnviz.compare(replace(first, parse=object()), analysed(bert, OTHER))


def test_a_model_changed_since_is_noticed(bert):
    model = copy.deepcopy(bert)
    first = analysed(model)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.neg_()
    with pytest.raises(VerificationError, match="no longer gives the verified patterns"):
        find_differences(first, analysed(bert))


@pytest.mark.parametrize("other", [None, "a text", 3])
def test_what_is_no_analysis_is_refused(bert, other):
    with pytest.raises(UsageError, match=r"expected two analyses, as attnviz\.analyze returns them, found"):
        attnviz.compare(analysed(bert), other)


def test_the_checkpoint_of_one_side_serves_the_other(bert):
    before = analysed(bert)
    after = attnviz.analyze(OTHER, before.checkpoint, syntax=False)
    assert after.checkpoint is before.checkpoint
    assert attnviz.compare(before, after).compared == "texts"
    with pytest.raises(UsageError, match="a loaded model runs as it is"):
        attnviz.analyze(OTHER, before.checkpoint, dtype="float64")
    with pytest.raises(UsageError, match="tokenizer is for a loaded model"):
        attnviz.analyze(OTHER, before.checkpoint, tokenizer=bert_tokenizer())


# --- documents, tables, files


def test_the_document_holds_both_sides_and_every_number(texts):
    content = json.loads(json.dumps(texts.document(), allow_nan=False))
    assert content["compared"] == "texts"
    assert content["texts"] == [SENTENCE, OTHER]
    assert [model["architecture"] for model in content["models"]] == ["bert", "bert"]
    assert [len(tokens) for tokens in content["tokens"]] == [9, 9]
    assert content["differing"] == [2]
    assert [check["heads_compared"] for check in content["verification"]] == [12, 12]
    assert content["rounding"] == texts.floor
    assert content["words"] is None
    assert [layer["layer"] for layer in content["layers"]] == [0, 1, 2]
    first, found = content["heads"][0], texts.heads[0]
    assert first["id"] == str(found.id)
    assert first["divergence"] == found.divergence
    assert first["largest"]["difference"] == found.largest.difference
    assert first["largest"]["query_label"] == texts.labels[found.largest.query]
    assert set(first) >= {"distance", "total_variation", "label_before", "label_after", "label_changed", "rank"}


def test_the_table_has_the_same_rows(texts):
    content = texts.document(select=["L1"])
    rows = list(csv.DictReader(io.StringIO(compare_csv(content))))
    assert [row["id"] for row in rows] == [head["id"] for head in content["heads"]]
    assert len(rows) == 4
    for row, head in zip(rows, content["heads"], strict=True):
        assert float(row["distance"]) == head["distance"]
        assert float(row["largest_difference"]) == head["largest"]["difference"]
        assert row["key_label"] == head["largest"]["key_label"]
        assert None not in row
        assert "" not in row.values()


def test_words_stand_in_the_document(bert):
    sides = [analysed(bert, text, words=True) for text in (SENTENCE, OTHER)]
    assert attnviz.compare(*sides).document()["words"][1][2] == "dog"


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_names_sides_heads_and_layers(texts, width):
    report = texts.report(width)
    assert max(map(len, report.splitlines())) <= width
    assert f"A: “{SENTENCE}”\nB: “{OTHER}”\nmodel: BertModel\n1 of 9 tokens differs: cat → dog" in report
    assert report.count("Verified 12 heads in 3 layers") == 2
    assert "Heads (12, the most different first)" in report
    first = texts.heads[0]
    assert f"{first.id}" in report
    assert f"{first.distance:.3f}" in report
    assert report.count("Variation") == (1 if width < 100 else 2) + 1  # the layers', and in the notes
    assert "Layers (means over their heads)" in report


def test_the_report_can_be_cut_to_the_first_heads(texts):
    report = texts.report(100, top=11)
    assert "Heads (11 of 12, the most different first)" in report
    assert "1 more head is left out: --top 0 lists all" in report
    assert "2 more heads are left out" in texts.report(100, top=10)
    assert "Heads (4, the" in texts.report(100, select=["L0"], top=0)


def test_a_token_that_differs_is_marked_where_there_is_no_room_for_both(bert):
    long = "unbelievable"
    found = attnviz.compare(*(analysed(bert, f"the {word} ran", words=True) for word in (long, "white")))
    assert any(found.differing[head.largest.key] for head in found.heads)
    narrow, wide = found.report(80), found.report(160)
    assert f"‘{long}*’" in narrow
    assert f"‘{long} → [UNK]’" in wide
    assert f"‘{long}*’" not in wide


def test_many_differing_tokens_are_counted_and_the_first_named(bert):
    found = attnviz.compare(analysed(bert), analysed(bert, "one two three four five house tree"))
    assert "7 of 9 tokens differ: the → one, " in found.report(200)
    assert ", and 3 more" in found.report(200)


def test_saving_writes_everything_and_a_rerun_replaces_it(texts, models, tmp_path):
    content = texts.save(tmp_path / "out", top=2)
    drawn = sorted(head.id.file_stem for head in texts.heads[:2])
    figures = ["compare.png", "compare-map.png", *(f"differences/{stem}.png" for stem in drawn)]
    assert content["figures"] == figures
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert files == sorted([*figures, "captions.md", "compare.csv", "compare.json"]) == content["files"]
    captions = read_captions((tmp_path / "out/captions.md").read_text(encoding="utf-8"))
    assert [name for name, _ in captions] == figures
    assert captions[2][1].startswith(f"Attention of {texts.select([drawn[0]])[0].id} in B minus that in A")
    assert all(COMPARE.owns(name) for name in files if name != "compare.json")
    models.save(tmp_path / "out", figures=False)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["compare.csv", "compare.json"]


def test_a_rerun_adds_its_captions_to_those_of_figures_that_stay(texts, tmp_path):
    texts.save(tmp_path, select=["L0H0"], formats=["png", "svg"])
    texts.save(tmp_path, select=["L0H1"], formats=["png"])
    captions = dict(read_captions((tmp_path / "captions.md").read_text(encoding="utf-8")))
    assert set(captions) == {
        *(f"{name}.{kind}" for name in ("compare", "compare-map", "differences/L00H00") for kind in ("png", "svg")),
        "differences/L00H01.png",
    }
    assert all((tmp_path / name).exists() for name in captions)


def test_selected_heads_are_all_drawn_and_files_of_others_kept(texts, tmp_path):
    content = texts.save(tmp_path, select=["L0-2"], formats=["svg"])
    assert len(content["figures"]) == 14
    (tmp_path / "differences" / "mine.png").write_bytes(b"mine")
    (tmp_path / "differences" / "L99H99.png").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"differences/L99H99\.png, which attnviz did not write"):
        texts.save(tmp_path)
    assert (tmp_path / "differences" / "mine.png").read_bytes() == b"mine"


def test_an_unknown_format_is_refused_and_nothing_is_written(texts, tmp_path):
    with pytest.raises(UsageError, match="unknown format 'gif'"):
        texts.save(tmp_path / "out", formats=["gif"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"look": "dark"}, r"expected look as attnviz.figures.Look\(theme, scale, width\), found 'dark'"),
        ({"top": "3"}, "expected top as a whole number from 0 on, found '3'"),
        ({"top": -1}, "expected top as a whole number from 0 on, found -1"),
        ({"formats": None}, r"expected a list of formats such as \['png', 'pdf'\], found None"),
        ({"formats": "png"}, r"expected a list of formats such as .*, found 'png'; write \['png'\]"),
        ({"select": 5}, r"expected a list of selections such as \['L2H8', 'L0-3'\], found 5"),
    ],
)
def test_options_of_odd_types_are_refused_and_nothing_is_written(texts, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        texts.save(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_other_things_of_odd_types_are_refused(texts, tmp_path):
    with pytest.raises(UsageError, match=r"expected a folder as a text or a Path .* found None"):
        texts.save(None)
    with pytest.raises(UsageError, match="expected look as"):
        texts.figure("L1H1", look="dark")
    with pytest.raises(UsageError, match="expected a width of 20 columns or more, found '80'"):
        texts.report("80")


def test_one_selection_may_stand_without_a_list(texts):
    assert texts.select("L1") == texts.select(["L1"])
    assert texts.select(HeadId(1, 2)) == texts.select([HeadId(1, 2)]) == [texts.head("L1H2")]


def test_a_comparison_is_one_line(texts):
    assert isinstance(texts, Comparison)
    first = texts.heads[0]
    line = f"<Comparison of “{SENTENCE}” with “{OTHER}”: 12 heads, {first.id} first ({first.distance:.3f})>"
    assert repr(texts) == line
    assert texts.figure("overview").axes
    assert texts.figure("map", Look("dark")).axes
    assert texts.figure("L1H1").axes
    assert texts.figure(HeadId(1, 1)).axes
