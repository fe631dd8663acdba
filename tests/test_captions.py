"""One honest sentence a figure, and the file that holds them."""

import pytest
import torch

from attnviz.commands.heads.findings import without_sinks
from attnviz.figures.captions import captions_text, heatmap_caption, overview_caption, read_captions
from attnviz.figures.heatmaps import heatmap_plans
from attnviz.figures.look import Look
from attnviz.figures.overviews import model_overview_plan
from tests.hand_made import hand_made, uniform_pattern
from tests.stored import PROFILE


def heat(findings, name="L0H0", look=None):
    head = findings.head(name)
    (plan,) = heatmap_plans(findings, [head], look or Look())
    return heatmap_caption(findings, head, plan)


def test_the_caption_of_a_heatmap():
    assert heat(hand_made()) == (
        "Attention of head L0H0, previous-token (previous-token 1.00 · uniform attention 0.19 · n = 3), of by-hand on "
        "“the cat ran away”: row = token that attends, column = token attended to; colour = attention weight, from 0 "
        "to 1, the same for every head; weights of at least 0.005 written into the cells."
    )


def test_the_caption_of_an_overview():
    found = hand_made(pair="and then")
    assert overview_caption(found, found.heads, model_overview_plan(found, found.heads)) == (
        "Attention of all 4 heads of by-hand on “the cat ran away” and “and then”: a row a layer, a column a head; in "
        "each square rows attend to columns (6 tokens); colour = attention weight, from 0 to 1, the same for every "
        "head; labels say what this text shows of each head, marks the family of its label."
    )
    some = found.select(["L1"])
    assert "Attention of 2 of the 4 heads of" in overview_caption(found, some, model_overview_plan(found, some))


@pytest.mark.parametrize(
    ("scale", "of_one", "of_many"),
    [
        ("per-head", "from 0 to the head's largest weight, 0.75", "from 0 to the largest weight of each head"),
        ("log", "logarithmic from 0.0001 or less to 1", "logarithmic from 0.0001 or less to 1"),
    ],
)
def test_captions_name_the_scale(scale, of_one, of_many):
    found, look = hand_made(patterns=(torch.eye(6) * 0.7 + uniform_pattern(6) * 0.3)[None, None]), Look(scale=scale)
    assert of_one in heat(found, look=look)
    assert of_many in overview_caption(found, found.heads, model_overview_plan(found, found.heads, look))


def test_captions_tell_what_was_dropped_and_pooled():
    found = without_sinks(hand_made())
    for sentence in (heat(found), overview_caption(found, found.heads, model_overview_plan(found, found.heads))):
        assert "; special tokens dropped, rows renormalised" in sentence
    n = 1100
    long = hand_made(labels=[str(i) for i in range(n)], special=(), patterns=uniform_pattern(n)[None, None])
    assert "; each cell is the largest of 2 × 2 weights (pooled for drawing only)." in heat(long)
    plan = model_overview_plan(long, long.heads)
    assert "; each pixel is the largest of 10 × 10 weights" in overview_caption(long, long.heads, plan)
    assert "written into the cells" not in heat(long)


def test_the_caption_of_an_overview_says_which_labels_are_those_of_a_profile():
    said = "of each head, syntactic ones what the model's stored profile shows over a corpus, marks the family"
    found = hand_made(profile=PROFILE)
    assert found.head("L0H1").label == "syntactic:nsubj"
    assert said in overview_caption(found, found.heads, model_overview_plan(found, found.heads))
    others = found.select(["L0H0"])
    assert said not in overview_caption(found, others, model_overview_plan(found, others))


def test_a_head_that_cannot_be_measured_is_said_so_once():
    one = hand_made(labels=["a"], special=(), causal=True, patterns=uniform_pattern(1)[None, None])
    assert heat(one).startswith("Attention of head L0H0, not measurable on this text, of by-hand on")


def test_one_token_is_one_token():
    one = hand_made(labels=["a"], special=(), patterns=uniform_pattern(1)[None, None])
    caption = overview_caption(one, one.heads, model_overview_plan(one, one.heads))
    assert "rows attend to columns (1 token);" in caption


HOSTILE = "a*b_c `x` <script> [CLS](u) #1 | \\ **d**: e"


def test_captions_come_back_from_the_file_as_they_were_and_hold_no_markup():
    captions = [("overview.png", "one"), ("heads/L00H00.png", HOSTILE), ("heads/L00H00.svg", HOSTILE)]
    text = captions_text(captions)
    assert text.startswith("# Captions\n\n**overview.png**: one\n\n**heads/L00H00.png, heads/L00H00.svg**: a\\*b\\_c")
    assert "\\<script>" in text.replace("\\>", ">")
    assert read_captions(text) == captions
    assert text.count("\n\n") == 2


def test_files_with_the_same_caption_share_a_line_only_where_they_are_one_figure():
    assert captions_text([("a.png", "x"), ("b.png", "x"), ("a.svg", "y")]).splitlines()[2::2] == [
        "**a.png**: x",
        "**b.png**: x",
        "**a.svg**: y",
    ]


def test_lines_that_are_no_captions_are_passed_over():
    assert read_captions("# Captions\n\nmine\n**: x\n") == []


def test_texts_in_captions_are_one_line():
    assert "\n" not in heat(hand_made(text="a\nb\x1b[31m", name="bad\nname"))
