"""An analysis whose every number can be worked out by hand: two layers of two heads on six tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis, Options
from attnviz.inputs.prompt import Prompt, Text, merge_subwords
from attnviz.judge.verdicts import judge, label_of
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.measures.patterns import MaskInput
from attnviz.measures.statistics import TextContext
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.head_ids import HeadId
from attnviz.profiles.store import StoredProfile
from attnviz.reference.tolerances import Tolerance
from attnviz.run.checks import LayerCheck, Verification
from attnviz.run.verify import VerifiedRows
from tests.support.verified import counted_relations, measure

LABELS = ("[CLS]", "the", "cat", "ran", "away", "[SEP]")

PARSE = Parse(
    tuple(Word(label, (at,)) for at, label in enumerate(LABELS[1:5], 1)),
    (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 2, "advmod")),
    "a-parser",
)


def previous_pattern(n: int) -> Tensor:
    """Every position attends to the one before it, the first to itself."""
    return torch.eye(n)[[0, *range(n - 1)]]


def uniform_pattern(n: int, causal: bool = False) -> Tensor:
    """Every position attends to all that it may, alike."""
    allowed = torch.ones(n, n).tril() if causal else torch.ones(n, n)
    return allowed / allowed.sum(1, keepdim=True)


def first_pattern(n: int) -> Tensor:
    """Every position attends to the first."""
    return torch.eye(n)[[0] * n]


def mixed_pattern(n: int) -> Tensor:
    """Half of the attention on the position itself, a quarter on the first, a quarter on the one before."""
    return torch.eye(n) / 2 + first_pattern(n) / 4 + previous_pattern(n) / 4


def by_design(n: int, causal: bool = False) -> Tensor:
    """[2 layers, 2 heads, n, n]: L0H0 previous, L0H1 uniform, L1H0 first, L1H1 mixed."""
    heads = [previous_pattern(n), uniform_pattern(n, causal), first_pattern(n), mixed_pattern(n)]
    return torch.stack(heads).reshape(2, 2, n, n)


def tokens_of(labels: Sequence[str], special: Iterable[int], causal: bool = False, truncated: int = 0) -> Prompt:
    """Tokens with the given labels; those not special are one word each."""
    n, marked = len(labels), set(special)
    words = iter(range(n))
    return Prompt(
        ids=tuple(range(100, 100 + n)),
        labels=tuple(labels),
        special=tuple(i in marked for i in range(n)),
        sink=tuple(i in marked or (causal and i == 0) for i in range(n)),
        words=tuple(None if i in marked else next(words) for i in range(n)),
        segments=tuple(None if i in marked else 0 for i in range(n)),
        offsets=tuple((0, 0) for _ in labels),
        type_ids=None if causal else (0,) * n,
        word_labels=tuple(label for i, label in enumerate(labels) if i not in marked),
        truncated=truncated,
    )


def hand_made(
    *,
    labels: Sequence[str] = LABELS,
    special: Iterable[int] = (0, 5),
    patterns: Tensor | None = None,
    causal: bool = False,
    name: str = "by-hand",
    text: str = "the cat ran away",
    pair: str | None = None,
    parse: Parse | None = None,
    note: str = "--no-syntax was given.",
    words: bool = False,
    truncated: int = 0,
    profile: StoredProfile | None = None,
) -> Analysis:
    """An analysis of given patterns [n_layers, n_heads, n, n]; no model is run."""
    tokens = replace(tokens_of(labels, special, causal, truncated), source=Text(text, pair=pair))
    given = by_design(len(labels), causal) if patterns is None else patterns
    n_layers, n_heads = given.shape[:2]
    units = merge_subwords(tokens, words)
    context = TextContext(units, causal, MaskInput(units.labels, units.labels, causal))
    tolerance = Tolerance(1e-4, 1e-4, "a test")
    n = len(labels)
    layers = [
        VerifiedRows(LayerCheck(i, n_heads, 2e-7 * (i + 1), 1e-7, 1.5), tolerance, given[i][None], 0, n, n)
        for i in range(n_layers)
    ]
    heads, relations = [], counted_relations(layers, parse, tokens.sinks, causal) if parse else []
    for layer in layers:
        statistics = measure([layer], context)
        for head in range(n_heads):
            of_head = {key: values[head] for key, values in statistics.items()}
            id = HeadId(layer.check.layer, head)
            found = judge(of_head, context, relations, id)
            stored = None if profile is None else profile.of(id)
            heads.append(HeadFindings(id, of_head, tuple(found), label_of(found, context.n_non_sink), stored))
    verification = Verification(tolerance, tuple(layer.check for layer in layers))
    attention: Any = SimpleNamespace(
        verification=verification,
        tokens_of=lambda layer: (tokens, tokens),
        rows=lambda layer, heads=None: _rows(layers[layer], heads),
    )
    return Analysis(
        checkpoint=_checkpoint(name, causal, n_layers, n_heads),
        tokens=tokens,
        context=context,
        verified=attention,
        heads=tuple(heads),
        parse=parse,
        syntax_note="" if parse else note,
        options=Options(words=words),
        profile=profile,
    )


def _rows(layer: VerifiedRows, heads: Sequence[int] | None) -> Iterator[VerifiedRows]:
    """All rows of a layer at once; of some heads, if asked for."""
    chosen = range(layer.pattern.shape[1]) if heads is None else heads
    check = replace(layer.check, heads_compared=len(chosen))
    yield replace(layer, check=check, pattern=layer.pattern[:, list(chosen)])


def _checkpoint(name: str, causal: bool, n_layers: int, n_heads: int) -> Checkpoint:
    model: Any = nn.Linear(1, 1)
    sizes = {"num_hidden_layers": n_layers, "num_attention_heads": n_heads, "hidden_size": 8 * n_heads}
    model.config = SimpleNamespace(**sizes)
    return Checkpoint(name, None, ARCHITECTURES["gpt2" if causal else "bert"], model, None)
