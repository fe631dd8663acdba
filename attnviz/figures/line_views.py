"""From findings to planned lines: which heads are drawn, from which token, and the captions."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from attnviz.commands.heads.findings import Findings, HeadFindings, without_sinks
from attnviz.errors import UsageError
from attnviz.figures.colours import Array
from attnviz.figures.lines import MOST_HEADS, MOST_LINES, WHOLE_ROWS, LinesPlan, plan_lines, too_many
from attnviz.figures.look import PLAIN, Look
from attnviz.figures.view_drawing import text_line
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import find_positions, visible
from attnviz.model.wording import quoted

__all__ = ["MOST_PICTURES", "MOST_ROWS", "heads_with_lines", "lines_plan", "lines_plans"]

MOST_PICTURES, MOST_ROWS = 24, 1600
"""Pictures of one head each, and rows of tokens in all of them together: they take time to draw and room on disk."""


def heads_with_lines(
    findings: Findings, heads: Sequence[HeadFindings], from_token: str | None = None, threshold: float | None = None
) -> tuple[list[HeadFindings], str]:
    """The heads that pictures of lines are drawn of, in the model's order, and what to tell the user.

    Up to :data:`attnviz.figures.lines.MOST_HEADS` share one picture. More get a picture each, but no more pictures
    than :data:`MOST_PICTURES` and no more rows than :data:`MOST_ROWS`: those whose pattern is furthest
    above its baseline.

    Args:
        findings: as they are drawn, of one text.
        heads: those asked for.
        from_token: as for :func:`lines_plans`; in long texts such pictures have few rows.
        threshold: as there.

    Returns:
        the heads, and a sentence on those left out; empty where there are none.

    Raises:
        UsageError: no such token, or a threshold that is none.
    """
    if len(heads) <= MOST_HEADS:
        return list(heads), ""
    ranked = sorted(heads, key=_margin, reverse=True)[:MOST_PICTURES]
    heights = list(itertools.accumulate(_heights(findings, ranked, from_token, threshold)))
    most = max(1, sum(height <= MOST_ROWS for height in heights))
    if len(heads) <= most:
        return list(heads), ""
    chosen = {head.id for head in ranked[:most]}
    return [head for head in heads if head.id in chosen], (
        f"lines are drawn of {most} of the {len(heads)} heads, those furthest above their baselines; "
        f"choose others with --select (up to {MOST_HEADS} share one picture)."
    )


def lines_plans(
    findings: Findings,
    heads: Sequence[HeadFindings],
    look: Look,
    from_token: str | None = None,
    drop_special: bool = False,
    threshold: float | None = None,
) -> Iterator[tuple[str, LinesPlan, str]]:
    """Each picture of lines: its file stem, plan and caption; which heads, see :func:`heads_with_lines`.

    Args:
        findings: of one text.
        heads: up to eight share one picture, ``lines``; more get one each, ``lines/L02H08``.
        look: scale, theme and width.
        from_token: show the attention of this token alone, see :func:`find_positions`.
        drop_special: leave sinks out, see :func:`attnviz.commands.heads.findings.without_sinks`.
        threshold: the least weight to draw; see :func:`attnviz.figures.lines.plan_lines`.

    Raises:
        UsageError: no such token, no tokens left, no heads, or a threshold that is none.
    """
    if not heads:
        raise UsageError(
            "expected at least one head to draw lines of, found none: select some, such as L2H8, with --select "
            "(select=...)."
        )
    shown = without_sinks(findings) if drop_special else findings
    numbers = _from_numbers(shown, from_token)
    drawn, _ = heads_with_lines(shown, heads, from_token, threshold)
    patterns = _patterns(shown, drawn)
    if len(heads) <= MOST_HEADS:
        plan = _plan(shown, drawn, list(patterns), look, numbers, threshold)
        yield "lines", plan, _caption(shown, plan, numbers)
        return
    for head, pattern in zip(drawn, patterns, strict=True):
        plan = _plan(shown, [head], [pattern], look, numbers, threshold, MOST_LINES // 2)
        yield f"lines/{head.id.file_stem}", plan, _caption(shown, plan, numbers)


def lines_plan(
    findings: Findings,
    select: Iterable[str | HeadId],
    look: Look = PLAIN,
    *,
    from_token: str | None = None,
    drop_special: bool = False,
    threshold: float | None = None,
) -> LinesPlan:
    """The plan of one picture of up to eight heads, to draw on Axes with :func:`attnviz.figures.draw_lines`.

    Args:
        findings: of one text, as :func:`attnviz.analyze` returns them.
        select: heads, as for ``attnviz heads --select``; all without one.
        look: scale and theme.
        from_token: as for :func:`lines_plans`, like the others.
        drop_special: see there.
        threshold: see there.

    Raises:
        UsageError: as there; or more than eight heads.
    """
    heads = findings.select(select)
    if len(heads) > MOST_HEADS:
        raise UsageError(too_many(len(heads)))
    return next(lines_plans(findings, heads, look, from_token, drop_special, threshold))[1]


def _plan(
    shown: Findings,
    heads: Sequence[HeadFindings],
    patterns: Sequence[Array],
    look: Look,
    numbers: Sequence[int] | None,
    threshold: float | None,
    most_lines: int = MOST_LINES,
) -> LinesPlan:
    rows = _numbers(shown)
    return plan_lines(
        patterns,
        shown.units.labels,
        heads=[(head.id, visible(head.label)) for head in heads],
        quiet=shown.units.sink,
        title=_title(shown, heads, numbers),
        look=look,
        notes=[text_line(shown)],
        unit=shown.units.name,
        from_positions=None if numbers is None else [rows.index(number) for number in numbers],
        threshold=threshold,
        most_lines=most_lines,
        segments=[shown.tokens.segments[members[0]] for members in shown.units.members],
    )


def _heights(
    shown: Findings, heads: Sequence[HeadFindings], from_token: str | None, threshold: float | None
) -> list[int]:
    """How many rows the picture of each head has, of itself alone."""
    n = len(shown.units)
    if from_token is None or n <= WHOLE_ROWS:
        return [n] * len(heads)
    numbers, ordered = _from_numbers(shown, from_token), sorted(heads, key=lambda head: head.id)
    rows = {
        head.id: len(_plan(shown, [head], [pattern], PLAIN, numbers, threshold, MOST_LINES // 2).labels)
        for head, pattern in zip(ordered, _patterns(shown, ordered), strict=True)
    }
    return [rows[head.id] for head in heads]


def _margin(head: HeadFindings) -> float:
    pattern = head.strongest
    return -1.0 if pattern is None else pattern.margin


def _numbers(findings: Findings) -> list[int]:
    """For each row the number of its position in the whole text, nothing dropped."""
    return [findings.frame.units.members.index(members) for members in findings.units.members]


def _from_numbers(findings: Findings, token: str | None) -> tuple[int, ...] | None:
    """The positions of the token that are not dropped, by their numbers in the whole text."""
    if token is None:
        return None
    found = find_positions(findings.frame.units.labels, token)
    kept = _numbers(findings)
    numbers = tuple(number for number in found if number in kept)
    if not numbers:
        raise UsageError(f"“{visible(token)}” is among the tokens that are dropped; keep them to see its attention.")
    return numbers


def _patterns(findings: Findings, heads: Sequence[HeadFindings]) -> Iterator[Array]:
    """The pattern of each head, [n, n]; of a layer with several of them only once recomputed."""
    layer, patterns = -1, None
    for head in heads:
        if patterns is None or head.id.layer != layer:
            layer, patterns = head.id.layer, findings.layer_patterns(head.id.layer)
        pattern: Array = patterns[head.id.head].float().numpy()
        yield pattern


def _title(findings: Findings, heads: Sequence[HeadFindings], numbers: Sequence[int] | None) -> str:
    shown = f"{heads[0].id}  {visible(heads[0].label)}" if len(heads) == 1 else f"{len(heads)} heads"
    chosen = "" if numbers is None else f", from {_chosen(findings, numbers)}"
    dropped = f", {findings.dropped}" if findings.dropped else ""
    return f"{visible(findings.checkpoint.short_name)}: {shown}{chosen}{dropped}"


def _caption(findings: Findings, plan: LinesPlan, numbers: Sequence[int] | None) -> str:
    """One sentence: model, text, heads, what is shown, on which scale, and what is not drawn."""
    texts = " and ".join(quoted(text) for text in (findings.text, findings.pair) if text is not None)
    heads = ", ".join(f"{head} ({label})" for head, label in plan.heads)
    chosen = "" if numbers is None else f" from {_chosen(findings, numbers)} alone"
    dropped = f"{findings.dropped}; " if findings.dropped else ""
    return (
        f"Attention{chosen} in {visible(findings.checkpoint.short_name)} on {texts}, "
        f"{'head' if len(plan.heads) == 1 else 'heads'} {heads}: {dropped}{plan.described()}."
    )


def _chosen(findings: Findings, numbers: Sequence[int]) -> str:
    """The token, and the numbers of its positions in the whole text."""
    named = ", ".join(f"#{number}" for number in numbers[:4]) + (", …" if len(numbers) > 4 else "")
    return f"“{findings.frame.units.labels[numbers[0]]}” ({named})"
