"""Clark et al. 2019: the surface patterns of their sections 3.1 to 3.3; their relations are claims on heads."""

from attnviz.commands.papers.table import PaperRun, PaperTable, Rows, over_texts_evidence, too_few
from attnviz.judge.rules import BROAD_SHARE, MAJORITY, SINK_SHARE
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.surface import ENTROPY, FROM_SEP, MARKS, OFFSETS, SurfaceTally

DEPTHS = 5 / 12, 10 / 12  # where the paper's layers 6 to 10 of 12 begin and end, as shares of the depth

_PUBLISHED = {"previous token": "4 of 144", "next token": "5 of 144"}


def _measure(run: PaperRun) -> Rows:
    tallies = [SurfaceTally(checkpoint) for checkpoint in run.models]
    n_texts = run.over_texts(run.checkpoint, tallies[0])
    run.over_texts(run.untrained, tallies[1])
    trained, untrained = (tally.means() for tally in tallies)
    n_layers = run.checkpoint.n_layers
    thresholds = {**dict.fromkeys(OFFSETS, MAJORITY), ENTROPY: BROAD_SHARE, **dict.fromkeys(MARKS, SINK_SHARE)}
    for name, threshold in thresholds.items():
        if not (name in trained and name in untrained):
            continue
        n_above, control = (int((means[name][0] > threshold).sum()) for means in (trained, untrained))
        row = f"heads over {threshold:.2g}: {name}", n_above, n_layers * run.checkpoint.n_heads
        if name in _PUBLISHED:
            yield run.claimed(*row, untrained=control, published=_PUBLISHED[name], few=too_few(n_texts))
        else:
            yield run.reported(*row, untrained=control)
    first, last = (round(depth * n_layers) for depth in DEPTHS)
    layers = f"layers {first} to {last - 1}" if last - first > 1 else f"layer {first}"
    for name, least, published in (("[SEP]", 0.5, "over half"), (FROM_SEP, 0.9, "over 0.9")):
        if name in trained:
            samples, of_untrained = (means[name][:, first:last].mean((1, 2)) for means in (trained, untrained))
            what = f"mean attention to {name}, {layers}"
            evidence = over_texts_evidence(samples, n_texts) | {"untrained": of_untrained[0]}
            yield run.claimed(what, samples[0], n_texts, at_least=least, published=published, **evidence)


TABLE = PaperTable(
    "clark-2019",
    {"MAJORITY": MAJORITY, "BROAD_SHARE": BROAD_SHARE, "SINK_SHARE": SINK_SHARE},
    least=ENOUGH_TEXTS,
    measure=_measure,
)
