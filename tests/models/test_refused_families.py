"""Families that are not reproduced, or not by what is declared: the reason, the nearest name, the attribute."""

import re
from functools import partial

import pytest
import torch

import attnviz
from attnviz.errors import ArchitectureError, TextError, VerificationError
from attnviz.models.families import ARCHITECTURES, REFUSED, architecture_of, instead_of
from tests.support.families import checkpoint_of, first_of
from tests.support.llamas import sharp_with_images


@pytest.mark.parametrize("tower", ["chatglm", "deepseek_v4"])
def test_a_text_tower_that_is_not_reproduced_is_named(tower):
    config = sharp_with_images("llava").config
    config.text_config.model_type = tower
    with pytest.raises(ArchitectureError, match=tower):
        architecture_of(config, torch.float32)


@pytest.mark.parametrize(
    ("name", "alike"),
    [("vit", "trocr"), ("dinov2", "trocr"), ("siglip_vision_model", "trocr"), ("wav2vec2", "trocr")]
    + [
        (name, name) for name in ("deepseek_v4", "gemma3n", "kimi_linear", "falcon_h1", "t5gemma2", "step3p7", "laguna")
    ],
)
def test_an_architecture_with_a_reason_is_refused_with_it(name, alike):
    assert instead_of(name) == f": {REFUSED[alike]}"


@pytest.mark.parametrize(("name", "near"), [("ministral33", "ministral3"), ("qwen3_mo", "qwen3_moe"), ("xyz", None)])
def test_any_other_one_has_the_nearest_name_and_where_the_list_stands(name, near):
    told = instead_of(name)
    named = [family for family in ARCHITECTURES if family in re.findall(r"[\w-]+", told)]
    assert (named, "models --families" in told) == ([near] if near else [], True)


MISDECLARED = [
    ("qwen3", "heads_first", True),
    ("exaone4", "heads_first", False),
    ("cohere", "norm_kind", "rms"),
    ("olmo2", "pre_norm", False),
    ("gemma2", "words_at", ""),
    ("granite", "projection_names", ("o_proj", "k_proj", "v_proj", "q_proj")),
    ("mistral", "projection_names", ("k_proj", "q_proj", "v_proj", "o_proj")),
    ("qwen3", "projection_names", ("q_proj", "k_proj", "v_proj", "q_norm")),
    ("qwen3", "head_norm_names", ("q_proj", "k_proj")),
    ("phi", "network_names", ("fc2", None, None, "fc1")),
    ("gpt2", "network_names", ("c_proj", None, None, "c_fc")),
]


@pytest.mark.parametrize(("family", "attribute", "value"), MISDECLARED)
def test_a_declaration_whose_parts_do_not_fit_names_the_attribute(monkeypatch, family, attribute, value):
    monkeypatch.setattr(type(ARCHITECTURES[family]), attribute, value)
    with pytest.raises(ArchitectureError, match=f"{attribute} = "):
        attnviz.explain("the cat ran", checkpoint_of(family))


def test_pairs_of_rotary_positions_that_are_declared_wrong_are_named(monkeypatch):
    monkeypatch.setattr(type(ARCHITECTURES["helium"]), "rotary_interleaved", False)
    with pytest.raises(VerificationError, match="rotary_interleaved = True"):
        attnviz.analyze("the cat ran away", checkpoint_of("helium"), syntax=False)


@pytest.mark.parametrize("family", first_of(["deepseek_v32", "glm_moe_dsa"]))
def test_a_text_in_which_an_indexer_would_choose_is_refused(family):
    checkpoint = checkpoint_of(family, index_topk=6)
    assert checkpoint.positions == 6
    assert attnviz.analyze("the cat ran", checkpoint, syntax=False).verification.level == 4
    for run in (attnviz.analyze, partial(attnviz.why, head="L1H0"), partial(attnviz.ablate, select="L0H0")):
        with pytest.raises(TextError, match="index_topk"):
            run("the cat ran away , the cat ran away", checkpoint)
    assert checkpoint_of(family, index_topk=1000).positions == 64
