"""The view ``page`` of several texts: all heads by their statistics, and tables of heads and texts that sort."""

import math
from collections.abc import Iterator
from typing import Any

from attnviz.commands.heads.spans import spans_of_texts
from attnviz.commands.heads.texts.measure import HeadSpread, TextsAnalysis
from attnviz.commands.heads.texts.tables import number_fields, text_fields
from attnviz.models.head_ids import HeadId
from attnviz.options import COMMANDS
from attnviz.page.page import colours_entry, families_entry, label_entry, statistic_entry
from attnviz.present.figure_context import caption_of
from attnviz.present.statistics import described
from attnviz.present.tables import page_table, verification_line
from attnviz.present.view import ViewOptions, page_drawing
from attnviz.wording import counted, rounded, visible


def page_data(result: TextsAnalysis, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``, without patterns of single texts."""
    model, heads = result.checkpoint, result.select(choices.select)
    n = counted(len(result.texts), "text")
    options = {"words": result.options.words, "each_line": True, "alignments": result.gold and str(result.gold)}
    if result.corpus is not None and result.corpus.table is not None:
        options |= {f"{kind}_column": name for kind, name in result.corpus.table.columns.items()}
    of_spans = spans_of_texts(text.spans for text in result.texts)
    return {
        "command": "heads-texts",
        "title": result.source,
        "caption": caption_of(f"Interactive page of {counted(len(heads), 'head')} on {result.source}"),
        "verification": verification_line(result.verification, model, sample=f" on {n}").plain,
        "notes": [
            "A head's label is the one that most texts give it, each by itself.",
            "Statistics are means over texts, each counting alike; heads.jsonl has those of every text.",
            *([of_spans] if of_spans else []),
        ],
        "sides": [],
        "axes": [],
        "end": 1,
        "rows": [HeadId(layer, 0).layer_name for layer in model.layers],
        "columns": model.n_heads,
        "statistics": list(_statistics(result)),
        "heads": [_entry(head, len(result.texts)) for head in result.heads],
        "patterns": [],
        "dropped": "",
        "colours": colours_entry(),
        "families": families_entry(),
        "command_line": {
            "program": ["heads"],
            "texts": [str(result.corpus.path) if result.corpus else "-"],
            "options": [*model.model_options, *COMMANDS["heads"].typed(options)],
        },
        "start": {
            "head": str(max(heads, key=lambda head: head.rank_key).id),
            "scale": "shared",
            "drop": False,
            "token": [],
        },
        "tables": [
            page_table(
                f"Heads ({len(heads)})", "Texts: that give the head its label.", number_fields(result), heads, 0
            ),
            page_table(f"Texts ({len(result.texts)})", "", text_fields(result), result.texts, -1),
        ],
    }


def _entry(head: HeadSpread, n_texts: int) -> dict[str, Any]:
    others = ", ".join(f"{visible(label)} {n}" for label, n in list(head.labels.items())[1:])
    score = "" if head.score.mean is None else f", mean score {rounded(head.score.mean)}"
    return {
        "id": str(head.id),
        "row": int(head.id.layer),
        "column": head.id.head,
        **label_entry(head.label, head.label),
        "evidence": f"on {head.labels[head.label]} of {n_texts} texts{score}" + (f"; also {others}" if others else ""),
        "role": None,
        "patterns": [],
    }


def _statistics(result: TextsAnalysis) -> Iterator[dict[str, Any]]:
    """The mean of every statistic over texts."""
    first, of_text = result.heads[0], "word" if result.options.words else "token"
    for name in first.statistics:
        title, meaning, unit = described(name, of_text, "the sinks")
        means = [head.statistics[name].mean for head in result.heads]
        known = [mean if mean is not None and math.isfinite(mean) else None for mean in means]
        uniform = None if result.checkpoint.stacks else first.uniform.get(name)
        yield statistic_entry(name, title, f"{meaning}; mean over texts", unit, [uniform], known)


PAGE = page_drawing("heads-texts", page_data)
