"""Pictures of what a classifier decides: what they say of it, and that hostile names of classes are drawn."""

from pathlib import Path

import numpy as np
import pytest

import attnviz
from attnviz.commands.outputs.map_views import plan_effects
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.ablations import TEXTS
from tests.support.classifiers import sharp_classifier


@pytest.mark.parametrize("kind", ["bert", "gemma2"])
def test_the_map_of_a_decision_has_every_part_of_every_layer(kind: str) -> None:
    model, tokenizer = sharp_classifier(kind)
    result = attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer, label="good")
    (plan,) = plan_effects(result, ViewOptions())
    (drawn,) = plan.maps
    assert result.decision is not None
    columns = {"bert": ["b_O", "FFN", "LN"], "gemma2": ["FFN"]}[kind]
    assert [name for name, _ in drawn.beside] == columns
    rest = [part.value for part in result.decision.parts if part.layer is None]
    total = np.sum(drawn.values) + sum(np.sum(values) for _, values in drawn.beside) + sum(rest)
    assert total == pytest.approx(result.decision.difference, abs=1e-5)
    assert ("linearisation" in plan.caption) == (kind == "bert")


def test_pictures_of_classes_with_hostile_names(tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier("bert", id2label={0: "[/b]$\\frac$", 1: "\u202egood", 2: "x" * 200})
    style = Style(width=3.3)
    attnviz.head_outputs("the cat", model, tokenizer=tokenizer).save(
        tmp_path / "outputs", figures=["effects"], style=style
    )
    result = attnviz.ablate(TEXTS, model, tokenizer=tokenizer, select="L1", curve=False)
    result.save(tmp_path / "ablate", figures=["heads"], style=style)
    captions = (tmp_path / "ablate" / "captions.md").read_text()
    assert "class probabilities of 4 texts without labels" in captions
