"""The figures of ``attnviz heads``; those but the overview and the heatmaps are planned in modules of their own."""

from collections.abc import Iterator
from typing import Any

from matplotlib.colors import Normalize

from attnviz.commands.heads.drawn import drawn
from attnviz.commands.heads.facts import facts_of
from attnviz.commands.heads.lines_view import LINES
from attnviz.commands.heads.map_view import MAP
from attnviz.commands.heads.mean_view import MEAN
from attnviz.commands.heads.measure import Analysis, HeadFindings
from attnviz.commands.heads.pair_view import PAIR
from attnviz.figures.families import family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, draw_head_grid, grid_pooling, head_grid_figure
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap, heatmap_figure, heatmap_named_every, heatmap_pooling
from attnviz.figures.heatmap_files import heatmap_files
from attnviz.figures.look import FAINTEST, Look
from attnviz.figures.matrix import Array, Labels, max_pool
from attnviz.model.tokens import visible
from attnviz.model.wording import counted
from attnviz.patterns.verdicts import NOT_MEASURABLE
from attnviz.results.facts import sentence
from attnviz.results.view import Choices, File, View

__all__ = ["VIEWS"]

_SHORTER = {
    "previous-token": "previous", "current-token": "current", "next-token": "next", "duplicate-token": "duplicate",
    "heterogeneous": "heterog.", "not measurable": "n. m.",
}  # fmt: skip


def _overview(analysis: Analysis, choices: Choices) -> Iterator[HeadGridPlan]:
    """One picture of all selected heads."""
    shown, look, heads = drawn(analysis, choices), choices.look, analysis.select(choices.select)
    facts, model, own = facts_of(shown), analysis.checkpoint, choices.look.scale == "per-head"
    pooled = grid_pooling(len(shown.units), [head.id for head in heads], look, marked=True)
    cells = []
    for head, pattern in shown.patterns(heads):
        values = max_pool(pattern.float().numpy(), pooled)
        label = visible(head.label)
        shorter = (label.replace("syntactic:", "syn: "), _SHORTER.get(label, label.removeprefix("syntactic:")))
        share = values / (_largest(values) if own else 1.0)
        cells.append(HeadCell(head.id, share, label, family_of_label(head.label), shorter))
    all_of_them = len(heads) == len(analysis.heads)
    count = f"{len(heads)} of {len(analysis.heads)} heads"
    whole = f"{model.n_layers} layers × {model.n_heads} heads"
    profile = any(head.deciding is not None and head.deciding.kind == "profile" for head in heads)
    corpus = ", syntactic ones what the model's stored profile shows over a corpus" if profile else ""
    yield HeadGridPlan(
        stem="overview",
        caption=sentence(
            f"Attention of {f'all {len(heads)} heads' if all_of_them else count} of {facts.subject}: a row a layer, a "
            f"column a head; in each square rows attend to columns ({counted(facts.n, facts.unit)})",
            _scale(look, None),
            f"labels say what this text shows of each head{corpus}, marks the family of its label",
            facts.pooled(pooled).replace("Each", "each"),
            facts.dropped,
        ),
        title=f"{facts.model}: {whole if all_of_them else count}",
        notes=facts.notes(
            "In each square rows attend to columns."
            + (" Syntactic labels are those of the model’s stored profile." if profile else ""),
            facts.pooled(pooled),
        ),
        cells=tuple(cells),
        norm=Normalize(0, 1, clip=True) if own else look.norm(),
        bar=_bar(look),
    )


def _heatmaps(analysis: Analysis, choices: Choices) -> Iterator[HeatmapPlan]:
    """The heatmap of each selected head."""
    shown, look = drawn(analysis, choices), choices.look
    facts, own = facts_of(shown), choices.look.scale == "per-head"
    labels = Labels(shown.units.labels, shown.units.sink)
    pooled = heatmap_pooling(labels.texts, look)
    notes = (
        f"{facts.model} on {facts.text_line}",
        *facts.notes(facts.named(heatmap_named_every(labels.texts, pooled, look)), facts.pooled(pooled))[1:],
    )
    for head, pattern in shown.patterns(analysis.select(choices.select)):
        values = max_pool(pattern.float().numpy(), pooled)
        largest, evidence, label = _largest(values), _evidence(head), visible(head.label)
        about = "not measurable on this text" if head.label == NOT_MEASURABLE else f"{label} ({evidence})"
        yield HeatmapPlan(
            stem=f"heads/{head.id.file_stem}",
            caption=sentence(
                f"Attention of head {head.id}, {about}, of {facts.subject}: row = {facts.unit} that attends, column = "
                f"{facts.unit} attended to",
                _scale(look, largest),
                "weights of at least 0.005 written into the cells where they have room" if len(values) <= 24 else "",
                facts.dropped,
                facts.pooled(pooled).replace("Each", "each"),
            ),
            title=f"{head.id}  {label}",
            evidence=f"{evidence} · largest weight {largest:.2g}" if own else evidence,
            notes=notes,
            values=values,
            labels=labels,
            norm=look.norm(largest),
            bar_norm=look.norm(),
            bar=_bar(look),
            pooled=pooled,
        )


def _heatmap_files(analysis: Analysis, choices: Choices, file_format: str) -> Iterator[File]:
    return heatmap_files(_heatmaps(analysis, choices), choices.look, file_format)


def _largest(values: Array) -> float:
    return float(values.max()) or 1.0


def _bar(look: Look) -> str:
    """What a colour bar shows that serves every head."""
    return {
        "shared": "attention weight (same scale for every head)",
        "per-head": "share of the head’s largest weight (own scales)",
        "log": "attention weight (log scale)",
    }[look.scale]


def _scale(look: Look, largest: float | None) -> str:
    """The scale of the colours, for a caption; of one head with its own largest weight, of many with none."""
    if look.scale == "per-head":
        end = "the largest weight of each head" if largest is None else f"the head's largest weight, {largest:.2g}"
        return f"colour = attention weight, from 0 to {end}"
    if look.scale == "log":
        return f"colour = attention weight, logarithmic from {FAINTEST:g} or less to 1, the same for every head"
    return "colour = attention weight, from 0 to 1, the same for every head"


def _evidence(head: HeadFindings) -> str:
    """The score of the pattern behind the label, or of the nearest, beside its baseline."""
    verdict = head.strongest
    if verdict is None or verdict.score is None:
        return "not measurable on this text"
    if verdict.kind in ("syntactic", "profile"):
        arrow = "dep → head" if verdict.direction == "dependent_to_head" else "head → dep"
        guess = verdict.largest_baseline if verdict.baselines else "profile's best offset"
        baseline = f"{'offset ' * guess.startswith(('+', '-'))}{guess}: {verdict.baseline:.2f}"
        return f"{visible(verdict.name)} ({arrow}) {verdict.score:.2f} · {baseline} · n = {verdict.n}"
    if verdict.margin <= 0:
        return "no positional pattern above uniform attention"
    name = verdict.name if head.deciding else f"nearest: {verdict.name}"
    uniform = verdict.baseline or 0.0
    baseline = f"{uniform:.2f}" if uniform >= 0.01 else f"{uniform:.1g}"
    repeats = "" if verdict.on_repeats is None else f" ({verdict.on_repeats:.2f} where a token repeats)"
    return f"{name} {verdict.score:.2f}{repeats} · uniform attention {baseline} · n = {verdict.n}"


VIEWS: tuple[View[Any, Any], ...] = (
    View("overview", "every head of every layer in one picture", _overview, head_grid_figure, draw_head_grid),
    View(
        "heads",
        "a heatmap a head: row = query (attends from), column = key (attended to)",
        _heatmaps,
        heatmap_figure,
        draw_heatmap,
        stems=r"heads/L\d+H\d+",
        files=_heatmap_files,
    ),
    LINES,
    MAP,
    MEAN,
    PAIR,
)
"""Every figure of the command, in the order of its documentation."""
