"""From findings to planned lines: which heads are drawn, from which token, and the captions."""

import difflib
import re
from collections.abc import Iterator, Sequence

from attnviz.colours import Array
from attnviz.errors import UsageError
from attnviz.figures import quoted
from attnviz.findings import Findings, HeadFindings, without_sinks
from attnviz.lines import MOST_HEADS, MOST_LINES, LinesPlan, plan_lines
from attnviz.look import Look
from attnviz.tokens import visible
from attnviz.view_drawing import text_line

__all__ = ["MOST_PICTURES", "MOST_ROWS", "find_positions", "heads_with_lines", "lines_plans"]

MOST_PICTURES, MOST_ROWS = 24, 1600
"""Pictures of one head each, and rows of tokens in all of them together: they take time to draw and room on disk."""

_SHORT_ENOUGH_TO_LIST = 20


def find_positions(labels: Sequence[str], token: str) -> tuple[int, ...]:
    """The positions of a token: all that show its text, or the one with its number.

    Args:
        labels: [n], the texts of the positions as shown.
        token: one of these texts, or ``#3`` for position 3, counted from 0. A text goes before a number.

    Raises:
        UsageError: the text has no such token, or it is no string.
    """
    if not isinstance(token, str):
        number = isinstance(token, int) and not isinstance(token, bool)
        example = (
            f"write '#{token}' for the token at position {token}" if number and token >= 0 else "write 'cat' or '#2'"
        )
        raise UsageError(
            f"expected the token that lines start from (from_token) as a string, its text or '#' and its position, "
            f"found {token!r}: {example}."
        )
    found = tuple(position for position, label in enumerate(labels) if label == token)
    if found:
        return found
    numbered = re.fullmatch(r"#([0-9]{1,9})", token)
    if numbered is not None and int(numbered[1]) < len(labels):
        return (int(numbered[1]),)
    distinct = list(dict.fromkeys(labels))
    near = difflib.get_close_matches(token, distinct, n=5, cutoff=0.5)
    if len(distinct) <= _SHORT_ENOUGH_TO_LIST:
        known = f"one of {', '.join(distinct)}"
    else:
        known = "a token as figures show it" + (f" (near: {', '.join(near)})" if near else "")
    raise UsageError(
        f"no token “{visible(token)}” in the text: expected {known}, or a position from #0 to #{len(labels) - 1}."
    )


def heads_with_lines(findings: Findings, heads: Sequence[HeadFindings]) -> tuple[list[HeadFindings], str]:
    """The heads that pictures of lines are drawn of, in the model's order, and what to tell the user.

    Up to :data:`attnviz.lines.MOST_HEADS` share one picture. More get a picture each, but no more pictures
    than :data:`MOST_PICTURES` and no more rows than :data:`MOST_ROWS`: those whose pattern is furthest
    above its baseline.

    Returns:
        the heads, and a sentence on those left out; empty where there are none.
    """
    most = max(1, min(MOST_PICTURES, MOST_ROWS // len(findings.units)))
    if len(heads) <= max(MOST_HEADS, most):
        return list(heads), ""
    chosen = {head.id for head in sorted(heads, key=_margin, reverse=True)[:most]}
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
        drop_special: leave sinks out, see :func:`attnviz.findings.without_sinks`.
        threshold: the least weight to draw; see :func:`attnviz.lines.plan_lines`.

    Raises:
        UsageError: no such token, no tokens left, no heads, or a threshold that is none.
    """
    if not heads:
        raise UsageError(
            "expected at least one head to draw lines of, found none: select some, such as L2H8, with --select "
            "(select=...)."
        )
    shown = without_sinks(findings) if drop_special else findings
    numbers = None if from_token is None else _from_numbers(shown, from_token)
    rows = None if numbers is None else [_numbers(shown).index(number) for number in numbers]
    drawn, _ = heads_with_lines(shown, heads)
    together = len(heads) <= MOST_HEADS
    for group in [drawn] if together else [[head] for head in drawn]:
        plan = plan_lines(
            list(_patterns(shown, group)),
            shown.units.labels,
            heads=[(head.id, visible(head.label)) for head in group],
            quiet=shown.units.sink,
            title=_title(shown, group, numbers),
            look=look,
            notes=[text_line(shown)],
            unit=shown.units.name,
            from_positions=rows,
            threshold=threshold,
            most_lines=MOST_LINES if together else MOST_LINES // 2,
            segments=[shown.tokens.segments[members[0]] for members in shown.units.members],
        )
        yield "lines" if together else f"lines/{group[0].id.file_stem}", plan, _caption(shown, plan, numbers)


def _margin(head: HeadFindings) -> float:
    pattern = head.strongest
    return -1.0 if pattern is None else pattern.margin


def _numbers(findings: Findings) -> list[int]:
    """For each row the number of its position in the whole text, nothing dropped."""
    return [findings.frame.units.members.index(members) for members in findings.units.members]


def _from_numbers(findings: Findings, token: str) -> tuple[int, ...]:
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
