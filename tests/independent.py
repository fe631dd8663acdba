"""The numbers of heads.json computed again from the contract's text: transformers, numpy and loops.

Nothing of attnviz is imported here, and its tricks are not repeated: positions are looped over, and
what is special, a word or a sink comes from the tokenizer's own encoding.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

SHARES = ("previous", "current", "next", "local", "long_range")
SCALARS = ("entropy", "entropy_uniform", "distance", "confidence", "sink", *SHARES)


def attentions(model: Any, tokenizer: Any, text: str, pair: str | None) -> np.ndarray:
    """The model's own attention, [layer, head, query, key] in float64, by output_attentions."""
    model.set_attn_implementation("eager")
    model.eval()
    segments = model.config.model_type == "bert"
    inputs = tokenizer(text, pair, return_tensors="pt", return_token_type_ids=segments)
    assert ("token_type_ids" in inputs) == segments
    with torch.no_grad():
        found = model(**inputs, output_attentions=True).attentions
    assert len(found) == model.config.num_hidden_layers
    return np.stack([layer[0].double().numpy() for layer in found])


def sink_flags(model: Any, tokenizer: Any, text: str, pair: str | None) -> list[bool]:
    """What the tokenizer adds, and in GPT-2 position 0."""
    mask = tokenizer(text, pair, return_special_tokens_mask=True)["special_tokens_mask"]
    flags = [bool(flag) for flag in mask]
    if model.config.model_type == "gpt2":
        flags[0] = True
    return flags


def word_groups(tokenizer: Any, text: str, pair: str | None) -> list[list[int]]:
    """Token positions of each word, and of each special token alone."""
    encoding = tokenizer(text, pair)
    groups: dict[Any, list[int]] = {}
    for position, word in enumerate(encoding.word_ids()):
        key = ("special", position) if word is None else (encoding.token_to_sequence(position), word)
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def merge(pattern: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """Sum over the pieces attended to, mean over the pieces attending."""
    return np.array([[pattern[np.ix_(queries, keys)].sum(axis=1).mean() for keys in groups] for queries in groups])


def statistics(
    A: np.ndarray, sink: list[bool], causal: bool, window: int = 1, far: int = 4, ids: list[Any] | None = None
) -> dict[str, Any]:
    """Every scalar of one head and its baselines, by the table of definitions; ids say which positions are alike."""
    n = len(A)
    allowed = [[k for k in range(n) if not causal or k <= q] for q in range(n)]
    C = [p for p in range(n) if not sink[p]]
    S = [p for p in range(n) if sink[p]]
    content_mass = sum(A[q, k] for q in C for k in C)
    masks = {
        "previous": lambda q, k: k == q - 1,
        "current": lambda q, k: k == q,
        "next": lambda q, k: k == q + 1,
        "local": lambda q, k: abs(q - k) <= window,
        "long_range": lambda q, k: abs(q - k) >= far,
        "induction": lambda q, k: ids is not None and 0 < k <= q and ids[k - 1] == ids[q],
        "duplicate": lambda q, k: ids is not None and k < q and ids[k] == ids[q],
    }
    found: dict[str, Any] = {
        "entropy": np.mean([-sum(a * np.log(a) for a in A[q] if a > 0) for q in range(n)]),
        "entropy_uniform": np.mean([np.log(len(allowed[q])) for q in range(n)]),
        "distance": np.mean([sum(A[q, k] * abs(q - k) for k in range(n)) for q in range(n)]),
        "confidence": np.mean([max(A[q]) for q in range(n)]),
        "sink": np.mean([sum(A[q, k] for k in S) for q in C]) if C and S else None,
        "baseline": {},
    }
    for name, M in masks.items():
        pairs = [(q, k) for q in C for k in allowed[q] if k in C and M(q, k)]
        if not pairs:
            found[name] = found["baseline"][name] = None
            continue
        found[name] = sum(A[q, k] for q, k in pairs) / content_mass if content_mass else None
        found["baseline"][name] = np.mean(
            [sum((q, k) in pairs for k in C) / len([k for k in allowed[q] if k in C]) for q in C]
        )
    return found


def heads(
    model: Any, tokenizer: Any, text: str, pair: str | None = None, words: bool = False, **distances: int
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(layer, head, statistics) of every head of a model on a text."""
    sink = sink_flags(model, tokenizer, text, pair)
    groups = word_groups(tokenizer, text, pair) if words else [[position] for position in range(len(sink))]
    tokens = tokenizer(text, pair)["input_ids"]
    ids = [[tokens[position] for position in group] for group in groups]
    for layer, patterns in enumerate(attentions(model, tokenizer, text, pair)):
        for head, pattern in enumerate(patterns):
            merged = merge(pattern, groups) if words else pattern
            causal = model.config.model_type == "gpt2"
            yield layer, head, statistics(merged, [sink[group[0]] for group in groups], causal, ids=ids, **distances)


def relations(parser: Any, tokenizer: Any, text: str, pair: str | None = None) -> dict[str, Any]:
    """Words as token positions, and (dependent, head) pairs by relation, by spaCy itself."""
    encoding = tokenizer(text, pair)
    words: list[list[int]] = []
    arcs: dict[str, list[tuple[int, int]]] = {}
    for segment, part in enumerate([text] if pair is None else [text, pair]):
        number = {}
        document = parser(part)
        for word in document:
            characters = set(range(word.idx, word.idx + len(word.text)))
            pieces = [
                position
                for position in range(len(encoding["input_ids"]))
                if encoding.sequence_ids()[position] == segment
                and characters & set(range(*encoding.token_to_chars(position)))
            ]
            if pieces and not word.is_space:
                number[word.i] = len(words)
                words.append(pieces)
        for word in document:
            if word.dep_ not in ("punct", "ROOT", "") and word.i in number and word.head.i in number:
                arcs.setdefault(word.dep_, []).append((number[word.i], number[word.head.i]))
    return {"words": words, "arcs": arcs}


def best_offset_accuracy(arcs: list[tuple[int, int]]) -> float:
    """How often the best fixed offset from the dependent finds the head."""
    offsets = [head - dependent for dependent, head in arcs]
    return max(offsets.count(offset) for offset in offsets) / len(arcs)


def accuracies(merged: np.ndarray, arcs: list[tuple[int, int]]) -> tuple[float, float]:
    """Share of dependents that attend most to their head, and of heads to their dependent, among other words.

    ``merged`` is the pattern between the parser's words, from :func:`merge`.
    """
    hits = {"dependent": 0, "head": 0}
    for dependent, head in arcs:
        for who, source, aim in (("dependent", dependent, head), ("head", head, dependent)):
            others = [word for word in range(len(merged)) if word != source]
            most = max(merged[source, word] for word in others)
            # attention to no other word at all is no guess; of equals the first counts
            hits[who] += most > 0 and next(word for word in others if merged[source, word] == most) == aim
    return hits["dependent"] / len(arcs), hits["head"] / len(arcs)
