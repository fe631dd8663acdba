"""What each figure shows, in one honest sentence, and the file captions.md that sets them beside the figures."""

import re
from collections.abc import Iterable, Sequence

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.figures.heatmaps import HeatmapPlan
from attnviz.figures.look import FAINTEST, Look
from attnviz.figures.overviews import OverviewPlan, labels_from_profile
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted
from attnviz.patterns.verdicts import NOT_MEASURABLE

__all__ = ["CAPTIONS", "captions_text", "heatmap_caption", "overview_caption", "read_captions"]

CAPTIONS = "captions.md"
"""The name of the file."""

_ENTRY = re.compile(r"\*\*([^*]+)\*\*: (.*)")
_MARKUP = re.compile(r"([\\`*_<>\[\]#|&$])")


def heatmap_caption(findings: Findings, head: HeadFindings, plan: HeatmapPlan) -> str:
    """What the heatmap of one head shows, in one sentence."""
    parts = [
        f"row = {plan.unit} that attends, column = {plan.unit} attended to",
        _scale(plan.look, plan.vmax),
        *(["weights of at least 0.005 written into the cells"] if plan.number_size is not None else []),
        *([plan.dropped] if plan.dropped else []),
        *plan.notes,
    ]
    label = f"{visible(head.label)} ({plan.evidence})" if plan.evidence else visible(head.label)
    if head.label == NOT_MEASURABLE:
        label = f"{head.label} on this text"
    return f"Attention of head {head.id}, {label}, of {_subject(findings)}: {'; '.join(parts)}."


def overview_caption(findings: Findings, heads: Sequence[HeadFindings], plan: OverviewPlan) -> str:
    """What an overview shows, in one sentence."""
    all_of_them = len(heads) == len(findings.heads)
    count = f"all {len(heads)} heads" if all_of_them else f"{len(heads)} of the {len(findings.heads)} heads"
    pooled = f"each pixel is the largest of {plan.pooled} × {plan.pooled} weights (pooled for drawing only)"
    profile = ", syntactic ones what the model's stored profile shows over a corpus"
    if not labels_from_profile(heads):
        profile = ""
    parts = [
        "a row a layer, a column a head; in each square rows attend to columns "
        f"({counted(len(findings.units), findings.units.name)})",
        _scale(plan.look, None),
        f"labels say what this text shows of each head{profile}, marks the family of its label",
        *([pooled] if plan.pooled > 1 else []),
        *([findings.dropped] if findings.dropped else []),
    ]
    return f"Attention of {count} of {_subject(findings)}: {'; '.join(parts)}."


def captions_text(captions: Iterable[tuple[str, str]]) -> str:
    """The content of captions.md.

    Args:
        captions: file name and sentence of each figure; files with the same sentence that differ only in their
            format share an entry. Sentences are taken as plain text.
    """
    entries: dict[tuple[str, str], list[str]] = {}
    for name, sentence in captions:
        entries.setdefault((name.rpartition(".")[0], sentence), []).append(name)
    lines = []
    for (_, sentence), names in entries.items():
        escaped = _MARKUP.sub(r"\\\1", sentence)
        lines.append(f"**{', '.join(names)}**: {escaped}")
    return "\n\n".join(["# Captions", *lines]) + "\n"


def read_captions(text: str) -> list[tuple[str, str]]:
    """File name and sentence of each figure, from what :func:`captions_text` wrote; other lines are passed over."""
    found = []
    for line in text.splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            sentence = re.sub(r"\\(.)", r"\1", entry[2])
            found += [(name, sentence) for name in entry[1].split(", ")]
    return found


def _subject(findings: Findings) -> str:
    texts = " and ".join(quoted(text) for text in (findings.text, findings.pair) if text is not None)
    return f"{visible(findings.checkpoint.short_name)} on {texts}"


def _scale(look: Look, vmax: float | None) -> str:
    """The scale of the colours; of one head with its own largest weight, of many with none."""
    if look.scale == "per-head":
        largest = "the largest weight of each head" if vmax is None else f"the head's largest weight, {vmax:.2g}"
        return f"colour = attention weight, from 0 to {largest}"
    if look.scale == "log":
        return f"colour = attention weight, logarithmic from {FAINTEST:g} or less to 1, the same for every head"
    return "colour = attention weight, from 0 to 1, the same for every head"
