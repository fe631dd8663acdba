"""Word alignment by cross-attention, against gold links between words that stand between spaces."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from attnviz.arguments import as_found
from attnviz.errors import CorpusError, TextError
from attnviz.inputs.lines import broken, lines
from attnviz.inputs.prompt import Prompt, Text
from attnviz.inputs.text import tokenize
from attnviz.language.syntax import overlapping
from attnviz.measures.guesses import fast_argmax
from attnviz.measures.rows import Statistic
from attnviz.models.head_ids import HeadId
from attnviz.run.verify import VerifiedAttention
from attnviz.wording import quoted

# Rows that stand for a target word: those that predict it, or that read it (AWO and AWI in Kobayashi et al. 2020).
ROWS = "output", "input"

# Statistics of a cross-attention head on a pair of texts; see alignment_rates.
STATISTICS = (
    *(
        Statistic(f"{name}_{rows}", f"{title}, {rows}", f"{meaning} gold word alignments", column=f"{title}, {rows}")
        for name, title, meaning in (
            ("aer", "AER", "error rate of the largest weights, against"),
            ("gain", "Gain", "AER of the baseline minus that of the head, against"),
            ("precision", "Precision", "share of the largest weights that are in"),
            ("recall", "Recall", "share that the largest weights find, of sure"),
        )
        for rows in ROWS
    ),
    Statistic(
        "aer_baseline", "AER, baseline", "AER of the diagonal, or of random links if less", column="AER, baseline"
    ),
)
ALIGNMENT = tuple(statistic.name for statistic in STATISTICS)

_LINK = re.compile(r"([0-9]{1,6})([-?p])([0-9]{1,6})")


def aligned_pairs(texts: Sequence[Text], path: Path) -> tuple[list[Text], list[Tensor]]:
    """Texts with their targets as pairs, and gold links, boolean [2, n_target, n_source]: sure ones, and all possible.

    A text is ``SOURCE ||| TARGET``, or has its target as pair. ``path`` has a line for each: ``0-1 2?0`` links source
    word 0 to target word 1, and 2 possibly to 0 (also ``2p0``). CorpusError for what does not fit.
    """
    of_lines, pairs, gold = list(lines(path)), list[Text](), list[Tensor]()
    if len(of_lines) != len(texts):
        raise CorpusError(f"{path}: expected a line for each of {len(texts)} pairs, found {len(of_lines)}.")
    for text, (place, line) in zip(texts, of_lines, strict=True):
        both = text.text.split("|||") if text.pair is None else [text.text, text.pair]
        if len(both) != 2 or not all(map(str.strip, both)):
            raise broken(text.place or path, "SOURCE ||| TARGET, or --pair-column of targets", as_found(text.text))
        pairs.append(replace(text, text=both[0].strip(), pair=both[1].strip()))
        n_source, n_target = (len(side.split()) for side in both)
        links = torch.zeros(2, n_target, n_source, dtype=torch.bool)
        for written in line.split():
            link = _LINK.fullmatch(written)
            if link is None or int(link[1]) >= n_source or int(link[3]) >= n_target:
                words = f"source words 0 to {n_source - 1} and target words 0 to {n_target - 1}"
                raise broken(place, f"links such as 0-0 or 0?1 of {words}", as_found(written))
            links[0 if link[2] == "-" else 1 :, int(link[3]), int(link[1])] = True
        if not links.any():  # every link of a head would be wrong, whatever it does
            raise broken(place, "the links of a pair, such as 0-0 1-2", "none; leave this pair out of both files")
        gold.append(links)
    return pairs, gold


def alignment_rates(verified: VerifiedAttention, pair: Text, gold: Tensor) -> dict[HeadId, dict[str, float | None]]:
    """The :data:`ALIGNMENT` of every cross-attention head on a pair of texts.

    A head links each target word to the source word with most attention, summed over the pieces of both. Of its links
    A, sure ones S and possible ones P, AER is 1 - (|A and S| + |A and P|) / (|A| + |S|), precision |A and P| / |A|,
    recall |A and S| / |S| (Och & Ney 2003); gain is how far its AER is below that of the diagonal, or of chance.
    """
    model, target = verified.checkpoint, str(pair.pair)
    keys = _pieces(verified.tokens, pair.text)
    read = _pieces(tokenize(model, target, target=True), target)
    queries = torch.stack([read, pad(read[:, :-1], (1, 0))])[:, None]
    middles = (torch.arange(len(read)) + 0.5) * len(keys) / len(read)
    diagonal = one_hot(middles.long(), len(keys))
    by_chance = torch.ones(gold.shape[1:]).double() / len(keys)
    baseline = torch.minimum(_rates(diagonal, gold)[0], _rates(by_chance, gold)[0])
    of_heads = dict[HeadId, dict[str, float | None]]()
    for layer in model.stacks[-1].layers:
        pattern = torch.cat([rows.in_float32[0] for rows in verified.rows(layer)], 1).double().cpu()
        weights = queries @ pattern @ keys.T  # [n_rows, n_heads, n_target, n_source]
        links = one_hot(fast_argmax(weights), len(keys)) * (weights > 0)
        aer, *others = _rates(links, gold)
        values = torch.cat([aer, baseline - aer, *others, baseline.expand_as(aer)[:1]])
        for head, numbers in enumerate(values.T.tolist()):
            known = [number if math.isfinite(number) else None for number in numbers]  # without sure links no recall
            of_heads[HeadId(layer, head)] = dict(zip(ALIGNMENT, known, strict=True))
    return of_heads


def _pieces(tokens: Prompt, text: str) -> Tensor:
    """1 where a token is a piece of a word, or the space before it, [n_words, n_tokens]."""
    n, spelled = len(text.split()), text if tokens.spelled is None else tokens.spelled
    spans = [word.span() for word in re.finditer(r"\s*\S+", spelled)]
    if len(spans) != n:
        raise TextError(f"{quoted(text)}: expected {n} words between spaces, but the tokenizer reads {len(spans)}.")
    pieces = torch.zeros(len(spans), len(tokens), dtype=torch.float64)
    for word, positions in enumerate(overlapping(tokens.offsets, spans)):
        pieces[word, list(positions)] = 1
    before = [not special and span == (0, 0) for special, span in zip(tokens.special, tokens.offsets, strict=True)]
    pieces[0, before] = 1  # the space before the first word may be a token that stands for no character
    return pieces


def _rates(links: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Error rate, precision and recall of links, 0-1, [.., n_target, n_source]."""
    linked, on_sure, on_possible = ((links.double() * mask).sum((-2, -1)) for mask in (torch.tensor(1), *gold))
    return 1 - (on_sure + on_possible) / (linked + gold[0].sum()), on_possible / linked, on_sure / gold[0].sum()
