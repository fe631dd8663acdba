"""Every view of every command can be read at the width of a column: nothing is cut or covered."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

import attnviz
from attnviz.figures.page import heading
from attnviz.figures.style import Style
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.measures.predictions import NEXT, STATES
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.present.report import views_of
from attnviz.present.view import ViewOptions
from tests.support.ablations import TEXTS, measured, next_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.corpora import sentences
from tests.support.drawn import HOSTILE, covered, drawing_of, least_contrast, nothing_over_the_edge, text_share
from tests.support.explained import of_bert, of_gpt2
from tests.support.hand_made import hand_made
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.profiles import corpus, examples_of, model, profile, relation, role, roles_of, statistics
from tests.support.results import result_of
from tests.support.stored import profile_of
from tests.support.stored import role as stored_role

NAMES = [*HOSTILE, "[unused1]", "incomprehensibilities" * 3, "w" * 60, "_x_", "\u202eabc", "猫が"]
RELATIONS = ("nsubj", "acl:relcl", "obj")
TEXT = " ".join(f"word{i % 7} the cat" for i in range(30))


def analysis(labels: list[str], n_layers: int, n_heads: int, relations: Sequence[str] = RELATIONS) -> Any:
    """Of a pair with a parse, so that no view of it is missing, and with roles over a corpus."""
    n = len(labels) + 3
    middle = n // 2
    special = {0, middle, n - 1}
    words = [place for place in range(n) if place not in special]
    parse = Parse(
        tuple(Word(label or "_", (place,)) for label, place in zip(labels, words, strict=True)),
        tuple(Arc(i, i + 1 + i % 2, relations[i % len(relations)]) for i in range(len(labels) - 2)),
        "by hand",
    )
    named = iter(labels)
    corpus_role = stored_role(f"syntactic:{max(relations, key=len)}", 0.7, 0.4, direction="dependent_to_head")
    patterns = np.random.default_rng(n).dirichlet(np.ones(n) / 5, (n_layers, n_heads, n))
    made = hand_made(
        labels=["[S]" if place in special else next(named) for place in range(n)], special=special, parse=parse,
        patterns=torch.tensor(patterns, dtype=torch.float32), text=" ".join(labels) or "a", pair="it was",
        name="/".join(labels)[:200],
        profile=profile_of({f"L{layer}H{layer}": [corpus_role] for layer in range(min(n_layers, n_heads))}),
    )  # fmt: skip
    segments = tuple(None if place in special else int(place > middle) for place in range(n))
    return replace(made, tokens=replace(made.tokens, segments=segments))


@cache
def long_bert() -> Any:
    return sharp_bert(max_position_embeddings=512)


def comparison(*texts: str) -> Any:
    options: dict[str, Any] = {"tokenizer": bert_tokenizer(), "syntax": False}
    return attnviz.compare(*(attnviz.analyze(text, long_bert(), **options) for text in texts))


def large_profile() -> Any:
    names = ["sink", "previous-token", "broad", "long-range", "coreference", "semantic", "syntactic:nsubj:pass", "new"]
    heads = [HeadId(layer, head) for layer in range(3) for head in range(12)]
    roles = [replace(role(0, names[i % 8], 0.9), id=head) for i, head in enumerate(heads) if i % 11 < 9]
    roles += [replace(other, role="sink", score=0.5, holds=True) for other in roles[::3]]
    entropy = statistics(3 * torch.rand(3, 12, generator=torch.Generator().manual_seed(1)))
    relations = (relation("nsubj:pass", 123_456, -12),)
    found = profile(roles, checkpoint=model("m", 3, 12), relations=relations, statistics=entropy)
    text = "the cat ran away and then it saw " + 9 * "the old house of " + "a"
    return replace(found, examples=examples_of(found, text))


def hostile_profile(hostile: str) -> Any:
    measured_on = {"checkpoint": model(hostile), "corpora": (corpus(hostile.replace("/", "|"), "conllu"),)}
    roles = roles_of(f"syntactic:{hostile}", [0.1] * 5 + [0.9])
    found = profile(roles, relations=(relation(hostile),), **measured_on)
    return replace(found, examples=examples_of(found, f"the cat {hostile} ran away and saw the house"))


def hostile_classifier() -> Any:
    model, _ = sharp_classifier("bert", id2label={0: r"[/b]$\frac$", 1: "\u202egood", 2: "x" * 200})
    return model


BERT: dict[str, Any] = {"tokenizer": bert_tokenizer()}
GPT2: dict[str, Any] = {"tokenizer": gpt2_tokenizer()}
HOSTILE_TEXT = r"[/b] $\frac$ 猫 " + "x" * 40
HOSTILE_NAMES = (r"[unused1] [/b] $\frac$ _x_ 猫が" "\u202eabc", "long-name " * 30, "x" * 300)
RESULTS: dict[str, Callable[[], Any]] = {
    "heads, few": lambda: analysis(["a", "b", "c"], 1, 1),
    "heads, many": lambda: analysis([f"word{i}" for i in range(90)], 3, 12),
    "heads, hostile": lambda: analysis(NAMES, 2, 3, NAMES),
    "compare, few": lambda: comparison("a", "the"),
    "compare, many": lambda: comparison(TEXT, TEXT.replace("word3 the", "word3 a", 1)),
    "compare.corpus": lambda: attnviz.compare_corpus(
        *(from_loaded(sharp_bert(seed), bert_tokenizer()) for seed in (0, 1)),
        sentences(Path(mkdtemp()) / "s.txt", 40),
        syntax=False,
    ),
    "compare.roles": lambda: result_of("compare.roles"),
    "explain, few": lambda: of_gpt2("a", layer=2),
    "explain, many": lambda: of_bert("the cat saw a dog . " * 55, {"max_position_embeddings": 400}),
    "explain, hostile": lambda: of_gpt2(HOSTILE_TEXT, {"n_positions": 99}),
    "rollout, many": lambda: attnviz.rollout(TEXT, long_bert(), **BERT),
    "rollout, hostile": lambda: attnviz.rollout(HOSTILE_TEXT, sharp_gpt2(n_positions=200), **GPT2),
    "why, many": lambda: attnviz.why(TEXT, long_bert(), head="L2H1", depth=4, **BERT),
    "why, hostile": lambda: attnviz.why(HOSTILE_TEXT, sharp_gpt2(n_positions=200), head="L2H1", depth=3, **GPT2),
    "circuits, many": lambda: attnviz.circuits(long_bert(), **BERT),
    "card": lambda: result_of("card"),
    "card, hostile": lambda: replace(
        attnviz.card("L2H1", HOSTILE_TEXT, sharp_gpt2(n_positions=200), circuits=False, **GPT2),
        profile=profile_of({"L2H1": [stored_role(f"syntactic:{name}", 0.7, 0.4) for name in HOSTILE_NAMES]}),
    ),
    "outputs, few": lambda: attnviz.head_outputs("a", next_token_model()[0], **GPT2),
    "outputs, many": lambda: attnviz.head_outputs(TEXT, long_bert(), **BERT),
    "outputs, hostile": lambda: attnviz.head_outputs("the cat", hostile_classifier(), **BERT),
    "profile, many": large_profile,
    "profile, hostile": lambda: hostile_profile(HOSTILE_NAMES[0]),
    "patch, few": lambda: attnviz.patch("the cat", next_token_model()[0], corrupt="the dog", **GPT2),
    "patch, hostile": lambda: attnviz.patch(
        f"{HOSTILE_TEXT} cat", next_token_model(n_positions=200)[0], corrupt=f"{HOSTILE_TEXT} dog", select="L1", **GPT2
    ),
    "ablate, few": lambda: measured(STATES, TEXTS, curve=True, select=["L0-1"]),
    "ablate, many": lambda: measured(NEXT, sentences(Path(mkdtemp()) / "s.txt", 30), curve=True),
    "ablate, hostile": lambda: attnviz.ablate(TEXTS, hostile_classifier(), select="L1", curve=False, **BERT),
}
COLUMN, DARK = Style(width=3.3), Style("dark", "per-head", 3.3)
WIDE, LARGE, LEAST = Style(width=13.3, font_size=6), Style(width=4.0, font_size=14), Style("light", "log", 2.0)
QUICK = (
    ("heads, few", "overview"),
    ("heads, hostile", "heads"),
    ("heads, hostile", "claim"),
    ("compare, few", "differences"),
    ("patch, few", "patch"),
)


def cases() -> Iterator[Any]:
    for name in RESULTS:
        for view in views_of(name.partition(",")[0]):
            if not view.is_page:
                marks = [] if (name, view.name) in QUICK else [pytest.mark.thorough]
                yield pytest.param(name, view.name, DARK if "hostile" in name else COLUMN, marks=marks)
    for style in (Style(), WIDE, LARGE, LEAST):
        yield from (
            pytest.param("heads, many", view, style, marks=pytest.mark.thorough) for view in ("overview", "text")
        )


@cache
def made(name: str) -> Any:
    return RESULTS[name]()


@pytest.mark.parametrize(("result", "view", "style"), [*cases()])
def test_nothing_is_cut_or_covered(result: str, view: str, style: Style) -> None:
    (drawing,) = [each.drawing for each in views_of(made(result).command) if each.name == view]
    if drawing.missing(made(result)):
        pytest.skip(drawing.missing(made(result)))
    figure = made(result).figure(view, style)
    width, height = figure.get_size_inches()
    assert style.width in (None, pytest.approx(width * style.magnified(width)))
    assert height <= {"relations": 9, "card": 30}.get(view, max(13, 1.1 * width))
    assert least_contrast(figure) >= 4.5
    if style.inches is not None and view != "card":
        heads = [
            heading(plan.title, [getattr(plan, "evidence", "".join(plan.notes[:1]))], style, width)
            for plan in drawing.plans(made(result), ViewOptions(style=style))
        ]
        assert text_share(figure) <= 0.3 or len(figure.texts) <= max(map(len, heads))
    assert nothing_over_the_edge(figure)
    assert covered(figure) == []
    small = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_fontsize() < 5.5]
    assert small == []
    assert all(ax.get_window_extent().width >= 0.15 * figure.dpi for ax in figure.axes if ax.images)


@pytest.mark.parametrize("n", [4, 30])
def test_an_overview_in_a_column_keeps_its_height_for_heads_and_says_the_rest_in_its_caption(n: int) -> None:
    drawing, choices = drawing_of("heads", "overview"), ViewOptions(style=COLUMN)
    (plan,) = drawing.plans(analysis([f"w{i}" for i in range(n)], 6, 12), choices)
    plan = replace(plan, title="minilm: all 72 heads")
    figure = plan.figure(COLUMN)
    grid = figure.axes[0].get_window_extent().height + figure.axes[0].get_legend().get_window_extent().height
    assert grid >= 0.7 * figure.bbox.height
    shown = " ".join(text.get_text() for text in figure.texts)
    left_out = [note.removesuffix(".") for note in plan.notes if note not in shown]
    assert left_out
    assert all(note.casefold() in plan.caption.casefold() for note in left_out)
    assert figure.get_figheight() < plan.figure(Style()).get_figheight()


@pytest.mark.parametrize(("n", "style"), [(20, Style()), (40, Style()), (90, Style()), (40, COLUMN)])
def test_an_overview_of_few_heads_says_which_tokens_it_names_and_fills_its_page(n: int, style: Style) -> None:
    found = analysis([f"w{i}" for i in range(n)], 2, 12)
    figure = found.figure("overview", style, select=["L0H1", "L1H8"])
    ax, bar = figure.axes[0], figure.axes[0].images[0]
    assert ax.transData.transform((bar.get_extent()[1], 0))[0] >= 0.85 * figure.bbox.width
    ticks = [len(axis.get_ticklocs()) for square in ax.child_axes for axis in (square.xaxis, square.yaxis)]
    plan = next(drawing_of("heads", "overview").plans(found, ViewOptions(style=style, select=("L0H1", "L1H8"))))
    named = ["every" in plan.caption and "is named" in plan.caption]
    assert max(ticks) == len(range(0, n + 3, plan.every))
    assert named == [plan.every > 1]


def test_what_covers_something_is_found_and_what_is_not_drawn_covers_nothing() -> None:
    figure = Figure(figsize=(4, 4))
    ax = figure.add_axes((0.2, 0.2, 0.6, 0.6), xticks=[0, 1, 1.01])
    ax.set_xlim(0, 1)
    assert covered(figure) == []
    figure.text(0.5, 0.5, "heading")
    ax.text(0.5, 0.6, "a name")
    assert covered(figure) == [("heading", "panel")]
    ax.text(0.5, 0.61, "another")
    figure.add_axes((0.7, 0.7, 0.2, 0.2), xticks=[], yticks=[])
    assert {frozenset(pair) for pair in covered(figure)} >= {frozenset({"a name", "another"}), frozenset({"panel"})}
    assert nothing_over_the_edge(figure)
    figure.text(0.99, 0.5, "beyond")
    assert not nothing_over_the_edge(figure)
