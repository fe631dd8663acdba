"""Files in the forms that other tools read: lists of KV heads for DuoAttention.

DuoAttention (Xiao et al. 2024, github.com/mit-han-lab/duo-attention) reads ``full_attention_heads.tsv``, a line a layer
with a number for each KV head, and ``config.json`` beside it.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnviz.commands.profile.measure import Profile
from attnviz.judge.rules import RETRIEVED
from attnviz.measures.estimates import Interval
from attnviz.measures.patterns import RETRIEVAL, SINK
from attnviz.options import DUO_ATTENTION
from attnviz.present.kv_heads import kv_groups
from attnviz.version import __version__

RETRIEVAL_HEADS, STREAMING_HEADS = "full_attention_heads.tsv", "streaming_heads.tsv"
_KEPT = {"sink_size": 128, "recent_size": 256}  # tokens that a streaming head keeps, as in DuoAttention's own lists


def exported(profile: Profile, _: object) -> Iterator[tuple[str, str]]:
    """Names and contents of the files of ``--export``."""
    if profile.export == DUO_ATTENTION:
        for name, content in _duo_attention(profile):
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
