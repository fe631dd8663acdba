"""Voita et al. 2019: positional, syntactic and rare-word heads, by where their largest attention points."""

from typing import Any

import torch

from attnviz.commands.papers.table import OF_TEXTS, PaperRun, PaperTable, Rows, too_few
from attnviz.judge.roles import rare_candidates
from attnviz.judge.rules import MAJORITY, MARGIN
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.pointing import COMMON, PointingTally
from attnviz.measures.relations import RelationTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId

POSITIONAL = 0.9  # share of tokens whose largest attention is on one neighbour, of a positional head (the paper)
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # the paper's relations, in both directions
_RELATIONS = ", ".join(RELATIONS)


class _HeadRoles:
    """Which heads have a role, boolean [n_layers, n_heads] each."""

    def __init__(self, run: PaperRun, checkpoint: Checkpoint) -> None:
        self.pointing = PointingTally(checkpoint, run.token_counts)
        relations = RelationTally(checkpoint)
        self.texts = run.over_texts(checkpoint, self.pointing, relations)
        self.positional = self.pointing.at_neighbours().amax(0) >= POSITIONAL
        above = [
            (relation.accuracy.scores - relation.offset_accuracy >= MARGIN).any(0)
            for relation in relations.results()
            if relation.relation in RELATIONS and relation.accuracy.texts >= ENOUGH_TEXTS
        ]
        self.syntactic = torch.stack(above).any(0) if above else None  # None without trees
        self.rarest = self.pointing.rare().scores[0]  # share of tokens that point to it; NaN where no text counts


def _measure(run: PaperRun) -> Rows:
    trained, untrained = (_HeadRoles(run, checkpoint) for checkpoint in run.models)
    n_heads = trained.positional.numel()
    few = too_few(trained.texts)
    for kind in ("positional", "syntactic"):
        share, control = (
            None if heads is None else heads.double().mean()
            for heads in (getattr(trained, kind), getattr(untrained, kind))
        )
        if share is None:
            no_trees = f"no trees with {_RELATIONS} in {ENOUGH_TEXTS} sentences: expected a treebank (.conllu)"
            yield run.undecided(f"{kind} heads", no_trees)
        else:
            yield run.claimed(f"{kind} heads", share, n_heads, untrained=control, few=few)
    candidate = next(rare_candidates(trained.pointing), None)
    if candidate is None or candidate.estimate.texts < ENOUGH_TEXTS:
        yield run.undecided("rarest token", f"too few texts have a token beyond the {COMMON} most frequent ones")
        return
    best = run.head(0, int(trained.rarest[0].argmax()))
    role = candidate.tested(HeadId(0, best.head), 0)
    row = "rarest token, the best head of the first layer", role.score, role.n
    controls: Any = {"baseline": role.baseline, "untrained": untrained.rarest[0].nan_to_num().max()}
    yield run.claimed(*row, head=best, at_least=MAJORITY, published="0.66", interval=role.interval, **controls)
    of_two = float(trained.pointing.rare(1).scores[0, 0, best.head])
    yield run.reported("one of the two rarest", of_two, role.n, head=best, published="0.83")
    share, control = (float((heads.rarest >= MAJORITY).double().mean()) for heads in (trained, untrained))
    yield run.reported("rare-word heads", share, n_heads, untrained=control)


TABLE = PaperTable(
    "voita-2019",
    {"RELATIONS": _RELATIONS, "COMMON": COMMON, "POSITIONAL": POSITIONAL, "MARGIN": MARGIN, "MAJORITY": MAJORITY},
    takes=(*OF_TEXTS, "frequencies"),
    least=ENOUGH_TEXTS,
    measure=_measure,
)
