"""The view ``page`` of ``attnviz heads``: every head to hover over, click and compare, in one file without network."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from attnviz.commands.heads.drawn import MOSTLY_WHITE
from attnviz.commands.heads.lines_view import clearest_first
from attnviz.commands.heads.map_view import statistic_meaning, uniform_value
from attnviz.commands.heads.measure import Analysis, HeadFindings
from attnviz.commands.heads.naming import role_text, shorter
from attnviz.figures.families import family_of_label
from attnviz.model.head_ids import HeadId
from attnviz.model.positions import find_positions
from attnviz.model.sources import BUILT_IN
from attnviz.model.tokens import merge_units
from attnviz.model.wording import counted, visible
from attnviz.page.data import ERROR, axis_entry, colours_entry, pack, rounded
from attnviz.patterns.statistics import SCALARS
from attnviz.results.facts import sentence
from attnviz.results.tables import verification_line
from attnviz.results.view import Choices

__all__ = ["Evidence", "axis_of", "command_options", "head_entry", "kept_note", "page_data"]

Evidence = Callable[[HeadFindings], str]


def page_data(analysis: Analysis, choices: Choices, evidence: Evidence) -> dict[str, Any]:
    """What the page shows; see ``PageData`` in ``attnviz/page/patterns.js``.

    Args:
        analysis: of one text.
        choices: the heads, token, scale and special tokens that it begins with.
        evidence: the score behind a head's label, in words.
    """
    facts, model, n = analysis.facts, analysis.checkpoint, len(analysis.units)
    chosen = analysis.select(choices.select) if choices.select else []
    ranked = [head.id for head in [*chosen, *clearest_first([h for h in analysis.heads if h not in chosen])]]

    def patterns(ids: Sequence[HeadId]) -> Iterator[tuple[HeadId, Sequence[Tensor]]]:
        return ((head.id, [pattern]) for head, pattern in analysis.patterns(map(analysis.head, ids)))

    causal = analysis.context.causal
    kept = pack(ranked, patterns, n * n, causal, choices.budget)
    place = {head: at for at, head in enumerate(kept)}
    first = kept_note(len(kept), len(ranked), choices.budget)
    return {
        "command": "heads",
        "title": f"{facts.model} on {facts.text_line}",
        "caption": sentence(
            f"Interactive page of {facts.subject}: {counted(len(analysis.heads), 'head')}, "
            f"{counted(facts.n, facts.unit)}; opens from disk, without network",
            first,
        ),
        "verification": verification_line(analysis.verification, model).plain,
        "notes": [
            *([first] if first else []),
            "Labels are of this text alone; ? marks an indication only.",
            f"Statistics are those of heads.json; weights on the page are within {ERROR} of the verified ones.",
        ],
        "sides": [facts.model],
        "axes": [axis_of(analysis)],
        "end": 1,
        "rows": [f"L{layer}" for layer in range(model.n_layers)],
        "columns": model.n_heads,
        "statistics": list(_statistics(analysis)),
        "heads": [
            {**head_entry(analysis, head, evidence), "patterns": [place[head.id]] if head.id in place else []}
            for head in analysis.heads
        ],
        "patterns": [{"rows": 0, "columns": 0, "triangle": causal, "data": side[0]} for side in kept.values()],
        "dropped": analysis.sinks,
        "colours": colours_entry(),
        "command_line": {"program": ["heads"], "texts": [analysis.text], "options": command_options(analysis)},
        "start": _start(analysis, choices, ranked[0]),
        "tables": [],
    }


def head_entry(analysis: Analysis, head: HeadFindings, evidence: Evidence) -> dict[str, Any]:
    """One head: id, place in the grid, label with its evidence, role."""
    family, role = family_of_label(head.label), head.role
    over_corpus = ""
    if role is not None:
        over_corpus = f"{role_text(analysis, head)} {role.score:.2f} (baseline {role.baseline:.2f}, n = {role.n})"
    mark = head.labelled.shown.removeprefix(head.label)
    return {
        "id": str(head.id),
        "row": head.id.layer,
        "column": head.id.head,
        "label": visible(head.label) + mark,
        "short": visible(shorter(head.label)) + mark,
        "family": {"name": family.name, "colour": family.colour, "marker": family.marker},
        "evidence": evidence(head),
        "role": over_corpus,
    }


def axis_of(analysis: Analysis) -> dict[str, Any]:
    """The tokens, with the words that they merge into; or the words."""
    units, of_token = analysis.units, analysis.tokens.segments
    words = None if analysis.options.words else merge_units(analysis.tokens, True)
    return axis_entry(units, [of_token[members[0]] for members in units.members], words)


def command_options(analysis: Analysis) -> list[str]:
    """The options of the command line that give the same numbers."""
    model, asked = analysis.checkpoint, analysis.options
    dtype = str(model.dtype).removeprefix("torch.")
    return [
        *("--model", model.name),
        *(("--revision", model.revision) if model.revision and model.name not in BUILT_IN else ()),
        *(("--dtype", dtype) if dtype != "float32" else ()),
        *(("--pair", analysis.pair) if analysis.pair is not None else ()),
        *(("--generate", str(analysis.continuation.asked)) if analysis.continuation is not None else ()),
        *(("--words",) if asked.words else ()),
        *(("--local-window", str(asked.local_window)) if asked.local_window != 1 else ()),
        *(("--long-range-from", str(asked.long_range_from)) if asked.long_range_from != 4 else ()),
        *(("--truncate",) if analysis.tokens.truncated else ()),
    ]


def kept_note(kept: int, total: int, budget: int) -> str:
    """That not every pattern is on the page; empty where all are."""
    if kept == total:
        return ""
    return (
        f"Patterns of {kept} of {counted(total, 'head')} are on this page, those selected (--select) or of the "
        f"clearest labels, to keep it below {budget / 1_000_000:g} MB; all have their statistics."
    )


def _statistics(analysis: Analysis) -> Iterable[dict[str, Any]]:
    for name in SCALARS:
        title, reading, unit = statistic_meaning(analysis, name)
        yield {
            "key": name, "title": title, "reading": reading, "unit": unit,
            "uniform": rounded(uniform_value(analysis, name)),
            "values": [rounded(head.statistics[name]) for head in analysis.heads],
        }  # fmt: skip


def _start(analysis: Analysis, choices: Choices, head: HeadId) -> dict[str, Any]:
    """What the page begins with; in a long text a logarithmic scale, since on the other most weights look like 0."""
    scale = choices.look.scale
    if scale == "shared" and len(analysis.units) > MOSTLY_WHITE:
        scale = "log"
    token = () if choices.token is None else find_positions(analysis.units, choices.token)
    return {"head": str(head), "scale": scale, "drop": choices.drop_special, "token": list(token)}
