"""What the other commands make of an encoder-decoder: all three kinds of attention, or its encoder alone."""

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from attnviz import analyze, compare, rollout
from attnviz.cli import app
from attnviz.commands.compare.views import VIEWS
from attnviz.commands.profile.measure import profile_heads
from attnviz.errors import TextError, UsageError
from attnviz.model.checkpoint import from_loaded
from tests.encoder_decoders import FAMILIES, SOURCE, TARGET, saved, sharp, unigram_tokenizer
from tests.models import bert_tokenizer, sharp_bert

SHORT, READ = "the cats saw", "die Katzen sahen"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return unigram_tokenizer()


@pytest.fixture(scope="module")
def models(tokenizer) -> dict[str, Any]:
    return {family: from_loaded(sharp(family, len(tokenizer)), tokenizer) for family in FAMILIES}


def eager(checkpoint: Any) -> Any:
    checkpoint.model.set_attn_implementation("eager")
    return checkpoint.model


# --- the encoder alone: rollout and profile -------------------------------------------------------


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
    torch.testing.assert_close(found.weights[-1], rolled, atol=1e-5, rtol=0)
    assert len(found.layers) == 2
    assert found.facts.model.endswith(" (encoder)")
    report = " ".join(found.report().split())
    assert f"{family} is an encoder-decoder; this command measures its encoder alone." in report
    model = found.document()["model"]
    assert (model["part"], [stack["letter"] for stack in model["stacks"]]) == ("encoder", ["E"])


def test_a_profile_is_that_of_the_encoder_alone(models, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{SHORT}\n{SOURCE}\n")
    found = profile_heads(
        models["t5"], [corpus], syntax=False, repeats=True, unfinished=tmp_path / "unfinished", batch_size=1
    )
    assert {str(head) for head in found.passed_roles()} == {
        f"E{layer}H{head}" for layer in range(2) for head in range(4)
    }
    entropies = [np.array([h.statistics["entropy"] for h in part.heads]) * n for part, n in analysed(models["t5"])]
    expected = sum(entropies) / sum(n for _, n in analysed(models["t5"]))
    np.testing.assert_allclose(found.statistics.results()["entropy"].flatten(), expected, atol=1e-5)
    assert {role["id"][0] for role in found.document()["roles"]} == {"E"}
    assert "measures its encoder alone" in " ".join(found.report().split())
    again = profile_heads(
        models["t5"], [corpus], syntax=False, repeats=True, unfinished=tmp_path / "unfinished", batch_size=1
    )
    torch.testing.assert_close(again.statistics.results()["sink"], found.statistics.results()["sink"])


def analysed(checkpoint: Any) -> list[tuple[Any, int]]:
    """The encoder's heads on both texts, with their numbers of tokens."""
    parts = [analyze(text, checkpoint, target=READ).parts[0] for text in (SHORT, SOURCE)]
    return [(part, len(part.tokens)) for part in parts]


def test_a_profile_of_an_encoder_decoder_is_not_kept_for_heads(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{SHORT}\n{SOURCE}\n")
    arguments = ["profile", str(corpus), "-m", str(saved("t5", tmp_path)), "-d", "cpu", "-o", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, [*arguments, "--no-figures", "--no-control", "--no-syntax"])
    assert ran.exit_code == 0, ran.output
    assert "not kept for attnviz heads, which shows no roles of encoder-decoders" in ran.stderr


# --- compare --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(models, tokenizer) -> Any:
    other = from_loaded(sharp("bart", len(tokenizer), seed=1), tokenizer)
    return compare(*(analyze(SHORT, model, target=READ) for model in (models["bart"], other)))


def test_every_head_is_compared_with_the_one_of_its_id(compared):
    assert sorted(str(head.id) for head in compared.heads) == sorted(str(head.id) for head in compared.first.heads)
    for name in ("E1H2", "D2H3", "X0H1"):
        a, b = (side.pattern(name).double().numpy() for side in (compared.first, compared.second))
        found = compared.head(name)
        assert found.total_variation == pytest.approx(np.abs(a - b).sum(1).mean() / 2, abs=1e-9)
        assert (b - a)[found.largest.query, found.largest.key] == pytest.approx(found.largest.difference, abs=1e-6)
    assert [str(layer.layer) for layer in compared.layers] == ["E0", "E1", "D0", "D1", "D2", "X0", "X1", "X2"]
    assert compared.layers[3].distance == pytest.approx(np.mean([head.distance for head in compared.select("D1")]))


def test_rows_and_columns_of_a_difference_have_the_names_of_their_own_texts(compared):
    entry = next(head for head in compared.document()["heads"] if head["id"] == "X0H1")
    assert (entry["stack"], entry["layer"]) == ("cross-attention", 0)
    assert entry["largest"]["query_label"] == compared.first.target.tokens.labels[entry["largest"]["query"]]
    assert entry["largest"]["key_label"] == compared.first.tokens.labels[entry["largest"]["key"]]
    document = json.loads(json.dumps(compared.document()))
    assert document["target"] == READ
    assert [layer["stack"][0] for layer in document["layers"]] == list("eedddccc")
    assert "X0" in compared.report()
    assert f"target: “{READ}”" in compared.report()


def test_pictures_of_differences_are_rectangular_and_maps_one_a_kind(compared):
    views = {view.name: view for view in VIEWS}
    (plan,) = views["differences"].plans(compared, compared._choices(None, {"select": ["X0H1"]}))
    assert plan.values.shape == (len(compared.first.target.tokens), len(compared.first.tokens))
    assert (plan.labels.texts, plan.keys.texts) == (compared.first.target.tokens.labels, compared.first.tokens.labels)
    (heads,) = views["map"].plans(compared, compared._choices(None, {}))
    assert [(each.name[0], each.values.shape) for each in heads.maps] == [("E", (2, 3)), ("D", (3, 4)), ("X", (3, 4))]
    assert heads.maps[2].values[0, 1] == compared.head("X0H1").distance
    for name in ("overview", "map", "differences"):
        plt.close(compared.figure(name))
    with pytest.raises(UsageError, match="no figure 'page'"):
        compared.page()


def test_two_sources_with_one_target_are_compared(models):
    sides = [analyze(text, models["t5"], target=READ, words=True) for text in (SHORT, "the dogs saw")]
    found = compare(*sides)
    assert found.compared == "texts"
    cross = found.parts[2]
    assert (cross.labels, cross.key_labels) == (sides[0].target.context.units.labels, found.parts[0].labels)
    assert cross.key_differing == found.differing
    assert not any(cross.differing)
    assert cross.key_labels[1] == "cats → dogs"


def test_sides_of_different_targets_or_shapes_are_refused(models, tokenizer):
    one = analyze(SHORT, models["t5"], target=READ)
    with pytest.raises(TextError, match=r"the decoders read different targets, “die .*”; expected the same .*--target"):
        compare(one, analyze(SHORT, models["t5"], target="die Hunde"))
    shallow = from_loaded(sharp("t5", len(tokenizer), num_decoder_layers=2), tokenizer)
    with pytest.raises(UsageError, match=r"t5 with 2 encoder layers of 4 heads, 3 decoder layers of 4 heads, 3 cross"):
        compare(one, analyze(SHORT, shallow, target=READ))


def test_compare_takes_a_target(tmp_path):
    texts, out = ["compare", SHORT, "the dogs saw", "--target", READ, "-d", "cpu"], tmp_path / "out"
    more = ["-m", str(saved("t5", tmp_path)), "--words", "-o", str(out), "--figures", "map"]
    ran = CliRunner().invoke(app, [*texts, *more])
    assert ran.exit_code == 0, ran.output
    assert json.loads((out / "compare.json").read_text())["target"] == READ
    ran = CliRunner().invoke(app, [*texts, "-m", "tiny-gpt2", "-o", str(tmp_path / "other")])
    assert ran.exit_code == 1
    assert "'gpt2' reads one text; leave out --target" in ran.stderr


# --- options that a model cannot take -------------------------------------------------------------


def test_a_longest_target_is_for_targets_that_are_generated(models):
    with pytest.raises(TextError, match=r"--max-new-tokens .* but a model of the architecture 'bert' writes none"):
        analyze("the cat", sharp_bert(), tokenizer=bert_tokenizer(), max_new_tokens=3)
    with pytest.raises(TextError, match=r"--max-new-tokens .* but the target is given; leave it out"):
        analyze(SHORT, models["t5"], target=TARGET, max_new_tokens=3)
