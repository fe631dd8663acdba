"""The view ``relations``: the parse as arcs over the text, found and missed by heads."""

from collections.abc import Iterator, Sequence

from attnviz.analysis.result import Analysis, PatternView
from attnviz.commands.heads.first_look import labels_and_roles
from attnviz.commands.heads.relations import HeadRelation, relations_of, without_relations, word_positions
from attnviz.commands.heads.token_views import MOST_PICTURES
from attnviz.figures.matrix import Outline
from attnviz.figures.style import Style
from attnviz.figures.text import (
    MOST_INCHES,
    Arc,
    ArcsPlan,
    Piece,
    Sentence,
    in_several_lines,
    leaves_out_lines,
)
from attnviz.language import syntax
from attnviz.models.head_ids import is_of_source
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import visible

_FOUND = "found (solid): the word attends to the other end more than to any other word; missed: dashed and crossed"
_NO_RELATION = "no selected head has a relation of this text as its label or role"

_SHORT = 40  # most words of a text that is drawn whole, with other relations in grey


def outlines_of(shown: PatternView, relation: HeadRelation, pooled: int) -> Iterator[Outline]:
    """Outlines of a relation's pairs in the drawn patterns."""
    for pair in relation.pairs:
        rows, columns = (word_positions(shown.units, relation.parse, word) for word in (pair.query, pair.key))
        if rows and columns:
            first, last = ((each[0] // pooled, each[-1] // pooled) for each in (rows, columns))
            yield Outline(first, last, pair.found)


def outlined_note(relation: HeadRelation) -> str:
    """What the outlines of a head are."""
    return f"outlined: {relation.arrow}, {relation.count} (solid; missed: dashed), {parser_note(relation.parse)}"


def parser_note(parse: syntax.Parse) -> str:
    """Whose the pairs are."""
    return f"pairs by the parser {visible(parse.parser)}, which may be wrong"


def relations_left_out(analysis: Analysis, choices: ViewOptions) -> Iterator[str]:
    """Messages on heads without a picture of their relation."""
    heads = analysis.select(choices.select)
    relations = list(relations_of(analysis, heads, choices.relation))
    of_source = [is_of_source(head.id.layer) for head in heads]
    if not all(of_source):
        yield "relations are measured in the encoder alone, on the source: --select E shows its heads and no others."
    if not relations and any(of_source):
        yield f"{_NO_RELATION}: --relation names one for all."
    if choices.top is None and len(relations) > MOST_PICTURES:
        yield f"relations are drawn of {MOST_PICTURES} of {len(relations)} heads, those that find most (--top N)."


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[ArcsPlan]:
    """Plan the heads in one picture if it fits a page, else one each; without relations the parse alone."""
    relations = list(relations_of(analysis, analysis.select(choices.select), choices.relation))
    n = MOST_PICTURES if choices.top is None else choices.top or len(relations)
    most = sorted(relations, key=lambda relation: -relation.found / len(relation.pairs))[:n]
    relations = [relation for relation in relations if relation in most]
    plan = _plan(analysis, relations, "relations", choices.style)
    if len(relations) <= 1 or plan.body(choices.style)[1] <= MOST_INCHES:
        yield plan
        return
    for relation in relations:
        yield _plan(analysis, [relation], f"relations/{relation.head.id.file_stem}", choices.style)


def _plan(analysis: Analysis, relations: Sequence[HeadRelation], stem: str, style: Style) -> ArcsPlan:
    about, parse = analysis.figure_context, analysis.parse
    assert parse is not None
    heads = "; ".join(
        f"{labels_and_roles(analysis, [relation.head])}: {relation.arrow}, {relation.count}" for relation in relations
    )
    folded = len(parse.words) > _SHORT
    words = tuple(_words(analysis, parse))
    blocks = []
    for relation in relations:
        arcs = []
        for pair in relation.pairs:
            ends = (pair.query, pair.key) if relation.direction == syntax.DIRECTIONS[0] else (pair.key, pair.query)
            arcs.append(Arc(*ends, name=visible(relation.name), found=pair.found))
        note = f"{relation.arrow}: {relation.count} · label {relation.head.shown}"
        blocks.append(Sentence(str(relation.head.id), note, (*arcs, *(() if folded else _others(parse, arcs)))))
    blocks = blocks or [Sentence("parse", visible(parse.parser), _others(parse, ()))]
    folded = folded and bool(relations)
    title = {0: "the parse", 1: "".join(f"{one.head.id}  {one.arrow}: {one.count}" for one in relations)}
    on = "; one at an edge goes on in the next line" if in_several_lines(words, style) else ""
    return ArcsPlan(
        stem=stem,
        **about.caption_and_notes(
            f"Dependency parse of {about.quotes}{heads and f', and what heads of {about.model} find of it: {heads}'}",
            f"arcs from dependent to head{on}; {parser_note(parse)}",
            _FOUND if relations else _NO_RELATION,
            "…: lines left out, without a pair or beyond the page"
            if leaves_out_lines(folded, words, blocks, style)
            else "",
        ),
        title=f"{about.model}: {title.get(len(relations), f'{len(relations)} heads')}",
        words=words,
        folded=folded,
        blocks=tuple(blocks),
    )


def _words(analysis: Analysis, parse: syntax.Parse) -> Iterator[Piece]:
    """The parser's words with the text's white space; the second text of a pair begins a line."""
    tokens, texts, before = analysis.tokens, analysis.tokens.texts, (0, 0)
    for number, word in enumerate(parse.words):
        first, last = word.positions[0], word.positions[-1]
        segment, (start, _), (_, end) = tokens.segments[first] or 0, tokens.offsets[first], tokens.offsets[last]
        begins = number > 0 and segment != before[0]
        between = texts[segment][before[1] : start] if not begins else ""
        between += texts[segment][start:end][:1]
        yield Piece(visible(word.text), end <= start or between != between.strip(), begins=begins)
        before = segment, end


def _others(parse: syntax.Parse, arcs: Sequence[Arc]) -> tuple[Arc, ...]:
    there = {(arc.dependent, arc.head) for arc in arcs}
    ends = ((arc, (arc.dependent, arc.head)) for arc in parse.arcs)
    return tuple(Arc(*pair, name=visible(arc.relation)) for arc, pair in ends if pair not in there)


RELATIONS = Drawing(_plans, missing=without_relations)
