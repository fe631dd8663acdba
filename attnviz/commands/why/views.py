"""The figure of an account: the path over the text from head to head to the explained score."""

from collections.abc import Iterator, Set

from attnviz.commands.why.measure import Account
from attnviz.commands.why.report import parts_in_words, path_of
from attnviz.figures.arcs import Arc, ArcsPlan, Sentence, arcs_figure, draw_arcs
from attnviz.figures.running_text import Piece
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import percent, rounded, signed, visible

_WHOLE, _AROUND = 40, 5  # tokens of a text that is shown whole; of a longer one, on either side of the path's tokens


def _plan_path(result: Account, _: ViewOptions) -> Iterator[ArcsPlan]:
    key, about = result.keys[0], result.figure_context
    arcs = [(key.key, result.query, f"{result.head} {rounded(key.weight)}")]
    parts = []
    for link in result.chain:
        parts.append(f"{link.scores.head}, by parts of the {link.side}: {', '.join(parts_in_words(result, link))}")
        if link.source is not None and link.key is not None:
            arcs.append((link.key, link.position, f"{link.source} {percent(link.branches[0][1])}"))
    pieces, numbers = _pieces(result.tokens.labels, {place for arc in arcs for place in arc[:2]})
    score = f"score {rounded(key.score)}, {signed(key.difference)} from the mean of {result.scores.n_keys} keys"
    beside = [f"{name} {signed(difference)}" for name, (_, difference) in key.extras.items()]
    why = f"Why {result.label(result.query)} attends to {result.label(key.key)} in {result.head} of {about.subject}"
    yield ArcsPlan(
        stem="why",
        **about.caption_and_notes(
            f"{why}: {path_of(result)}",
            f"arrows go from what a head reads to where it writes; beside {result.head} stands its attention, beside "
            "an earlier head its share of the next head's score, less the mean over its keys",
            caption_only=(score, *parts, *beside),
        ),
        title=path_of(result),
        words=pieces,
        blocks=(
            Sentence(
                str(result.head),
                score,
                tuple(Arc(numbers[start], numbers[end], name, step=True) for start, end, name in arcs),
            ),
        ),
    )


def _pieces(labels: tuple[str, ...], ends: Set[int]) -> tuple[tuple[Piece, ...], dict[int, int]]:
    """The tokens as running text, of a long one those around the ends of arcs; also each token's place there."""
    pieces: list[Piece] = []
    numbers: dict[int, int] = {}
    for position, label in enumerate(labels):
        if len(labels) <= _WHOLE or any(abs(position - end) <= _AROUND for end in ends):
            numbers[position] = len(pieces)
            pieces.append(Piece(visible(label)))
        elif position == 0 or position - 1 in numbers:
            pieces.append(Piece("…"))
    return tuple(pieces), numbers


PATH = Drawing(_plan_path, arcs_figure, draw_arcs)
