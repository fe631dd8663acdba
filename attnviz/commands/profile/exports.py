"""The numbers of every head of a profile, and files of them in the forms that other tools read.

The numbers are axes of the page's scatter, columns of the table by KV head, and metrics of HeadVis' front end.

DuoAttention (Xiao et al. 2024, github.com/mit-han-lab/duo-attention) reads ``full_attention_heads.tsv``, a line a layer
with a number for each KV head, and ``config.json`` beside it. HeadVis (github.com/anthropics/headvis) reads what its
``data_pipeline.py`` describes.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from attnviz.commands.profile.examples import DECILES, TextWeights
from attnviz.commands.profile.measure import DUO_ATTENTION, Profile
from attnviz.judge.rules import RETRIEVED
from attnviz.measures.chats import LOOKBACK
from attnviz.measures.estimates import Interval
from attnviz.measures.patterns import RETRIEVAL, ROLES_ON_REPEATS, SINK
from attnviz.measures.tallies import OFFSETS
from attnviz.models.head_ids import HeadId, number_of, select_heads
from attnviz.page.page import statistic_entry
from attnviz.present import statistics
from attnviz.present.kv_heads import kv_groups
from attnviz.version import __version__
from attnviz.wording import visible

RETRIEVAL_HEADS, STREAMING_HEADS = "full_attention_heads.tsv", "streaming_heads.tsv"
_KEPT = {"sink_size": 128, "recent_size": 256}  # tokens that a streaming head keeps, as in DuoAttention's own lists
_FAINTEST = 0.005  # the least weight in a file for HeadVis, as it asks for


def exported(profile: object, _: object) -> Iterator[tuple[str, str]]:
    """Names and contents of the files of ``--export``; a stored profile has none."""
    if isinstance(profile, Profile) and profile.export:
        files = _duo_attention(profile) if profile.export == DUO_ATTENTION else _headvis(profile)
        for name, content in files:
            yield f"{profile.export}/{name}", content if isinstance(content, str) else json.dumps(content)


def retrieval_scores(profile: Profile) -> list[tuple[float, Interval]]:
    """Of every KV head, layer by layer, the largest retrieval score of its heads, and the interval of this."""
    roles = {role.id: role for role in profile.roles if role.role == RETRIEVAL}
    scores = []
    for heads in kv_groups(profile.checkpoint).values():
        of_heads = [roles[head] for head in heads]
        low, high = np.max([role.interval or (0.0, 1.0) for role in of_heads], 0).tolist()
        scores.append((max(role.score for role in of_heads), (low, high)))
    return scores


def _duo_attention(profile: Profile) -> Iterator[tuple[str, Any]]:
    """Of retrieval the largest score of the heads that share keys; of sinks the least, for all must do with these."""
    model = profile.checkpoint
    scores, intervals = zip(*retrieval_scores(profile), strict=True)
    sinks = {role.id: role.score for role in profile.roles if role.role == SINK}
    least = [min(sinks[head] for head in heads) for heads in kv_groups(model).values() if sinks]
    for name, values in ((RETRIEVAL_HEADS, scores), (STREAMING_HEADS, least)):
        if values:
            rows = np.reshape(values, (model.n_layers, -1)).tolist()
            yield name, "".join("\t".join(f"{value:.6f}" for value in row) + "\n" for row in rows)
    config = {
        "model_name": model.name,
        "revision": model.revision,
        "weights_sha256": profile.weights_sha256,
        "attnviz": __version__,
        "measured_on": profile.source(RETRIEVAL),
        "threshold": RETRIEVED,
        "interval": np.reshape(intervals, (model.n_layers, -1, 2)).tolist(),
    }
    yield "config.json", _KEPT | config


def _headvis(profile: Profile) -> Iterator[tuple[str, Any]]:
    model, entries = profile.checkpoint, [*statistic_entries(profile)]
    heads = select_heads((), model.kinds)
    places = [(number_of(head.layer), head.head) for head in heads]
    config = {
        "model_name": model.short_name,
        "heads": places,
        "n_layers": len(model.every_layer),
        "n_heads": model.n_heads,
        "n_intervals": DECILES,
        "metrics": [entry["key"] for entry in entries],
        "metric_descriptions": {entry["key"]: entry["reading"] for entry in entries},
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
    }
    yield "config.json", config
    rows = [{"layer": layer, "head": head} for layer, head in places]
    for entry in entries:
        for row, value in zip(rows, entry["values"], strict=True):
            row[entry["key"]] = value
    yield "scatter_data.json", rows
    for id, (layer, head) in zip(heads, places, strict=True):
        sequences = [_sequence(text, number, id, model.tokenizer) for number, text in enumerate(profile.texts)]
        sequences.sort(key=lambda sequence: float(sequence["max_activation"]))
        for rank, sequence in enumerate(sequences):
            sequence["interval"] = 1 + DECILES * rank // len(sequences)
        yield f"heads/L{layer}H{head}.json", {"sequences": sequences, "histogram": {}, "statistics": {}}


def _sequence(text: TextWeights, number: int, id: HeadId, tokenizer: Any) -> dict[str, Any]:
    """A text as HeadVis reads it; its largest weight is beyond the diagonal, the first row and the first column."""
    n = len(text.item)
    queries, weights = torch.arange(n), text.weights[id]
    kept = weights >= _FAINTEST
    names = tokenizer.convert_ids_to_tokens(list(text.item.ids))
    return {
        "sequence_id": number,
        "tokens": [piece or name for piece, name in zip(text.item.pieces, names, strict=True)],
        "attention_indices": (queries[:, None] * n + text.keys[id])[kept].tolist(),
        "attention_values": [round(weight, 4) for weight in weights[kept].tolist()],
        "seq_len": n,
        "max_activation": round(text.strongest(id, queries == 0)[0], 4),
    }


def statistic_entries(profile: Profile) -> Iterator[dict[str, Any]]:
    """The axes of the scatter: statistics, and roles that a head has or that are measured on random repeats."""
    heads = select_heads((), profile.checkpoint.kinds)

    def column(key: str, title: str, reading: str, uniform: float | None, value: Callable[[HeadId], Any]) -> Any:
        numbers = (float(value(head)) for head in heads)
        known = [number if math.isfinite(number) else None for number in numbers]
        return statistic_entry(key, title, reading, "", [uniform], known)

    if profile.statistics is not None:
        baselines = profile.statistics.baselines()
        for name, values in profile.statistics.results().items():
            if name not in OFFSETS:
                title = name.replace("_", " ")
                yield column(name, title, "mean over the corpora", baselines.get(name), values.__getitem__)
    for pair in profile.chats:
        if pair.measure == LOOKBACK:
            uniform, ratios = float(pair.scores.baseline.mean()), pair.scores.scores[0]
            yield column("lookback", "lookback ratio", statistics.LOOKBACK, uniform, ratios.__getitem__)
    for name in dict.fromkeys(role.role for role in profile.roles if role.holds or role.role in ROLES_ON_REPEATS):
        of_role = {role.id: role for role in profile.roles if role.role == name}
        threshold = next(iter(of_role.values())).threshold
        scores = dict.fromkeys(heads, math.nan) | {head: role.score for head, role in of_role.items()}
        yield column(f"role {name}", f"role {visible(name)}", threshold, None, scores.__getitem__)
