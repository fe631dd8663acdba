"""The numbers of heads.json computed again from the contract's text: transformers, numpy and loops.

Nothing of attnviz is imported here, and its tricks are not repeated: positions are looped over, and
what is special, a word or a sink comes from the tokenizer's own encoding.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

SHARES = ("previous", "current", "next", "local", "long_range")
SCALARS = (
    "entropy", "entropy_uniform", "entropy_non_sink", "distance", "distance_non_sink", "confidence",
    "confidence_non_sink", "sink", *SHARES,
)  # fmt: skip

MINILM_RELATIONS = {
    "det": (1, "L2H8", {150: (0.7687, 0.5680, 294), None: (0.807, 0.591, 1817)}),
    "obj": (-2, "L2H0", {150: (0.7391, 0.3913, 138), None: (0.739, 0.361, 1190)}),
    "case": (1, "L2H8", {150: (0.6720, 0.3569, 311), None: (0.676, 0.379, 1990)}),
    "nsubj": (1, "L2H8", {150: (0.4982, 0.3477, 279), None: (0.555, 0.337, 2108)}),
}
"""Offset and head of a relation; of the first 150 sentences and of all of EWT's development part: accuracy, that of the
offset, n; from transformers' own attentions, numpy and loops."""


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
    """Token positions of each word (of the scripts of these tests), and of each special token alone."""
    encoding = tokenizer(text, pair, return_offsets_mapping=True)
    groups: dict[Any, list[int]] = {}
    for position, (start, _) in enumerate(encoding["offset_mapping"]):
        segment = encoding.token_to_sequence(position)
        key: Any = ("special", position)
        if segment is not None:
            words = re.finditer(r"\w+(?:['-]\w+)*|[^\w\s]", (text, pair)[segment] or "")
            key = segment, next(word.start() for word in words if word.end() > start)
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def merge(pattern: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """Sum over the pieces attended to, mean over the pieces attending."""
    return np.array([[pattern[np.ix_(queries, keys)].sum(axis=1).mean() for keys in groups] for queries in groups])


def mean(values: list[Any]) -> Any:
    return np.mean(values) if values else None


def statistics(
    A: np.ndarray,
    sink: list[bool],
    causal: bool,
    window: int = 1,
    far: int = 4,
    ids: list[Any] | None = None,
    sees: int | None = None,
) -> dict[str, Any]:
    """Every scalar of one head and its baselines, by the table of definitions; ids say which positions are alike.

    A query sees itself and those before it, as many as ``sees``; None for all.
    """
    n = len(A)
    allowed = [[k for k in range(n) if (not causal or k <= q) and (sees is None or q - k < sees)] for q in range(n)]
    C = [p for p in range(n) if not sink[p]]
    content = set(C)
    S = [p for p in range(n) if sink[p]]
    rows = {q: sum(A[q, k] for k in C) for q in C}
    rows = {q: mass for q, mass in rows.items() if mass}
    content_mass = sum(A[q, k] for q in C for k in C)
    masks = {
        "previous": lambda q, k: k == q - 1,
        "current": lambda q, k: k == q,
        "next": lambda q, k: k == q + 1,
        "local": lambda q, k: abs(q - k) <= window,
        "long_range": lambda q, k: abs(q - k) >= far,
        "induction": lambda q, k: ids is not None and 0 < k < q and ids[k - 1] == ids[q],
        "duplicate": lambda q, k: ids is not None and k < q and ids[k] == ids[q],
    }
    found: dict[str, Any] = {
        "entropy": np.mean([-sum(a * np.log(a) for a in A[q] if a > 0) for q in range(n)]),
        "entropy_uniform": np.mean([np.log(len(allowed[q])) for q in range(n)]),
        "entropy_non_sink": mean(
            [-sum(a * np.log(a) for a in (A[q, k] / mass for k in C) if a > 0) for q, mass in rows.items()]
        ),
        "distance": np.mean([sum(A[q, k] * abs(q - k) for k in range(n)) for q in range(n)]),
        "distance_non_sink": mean([sum(A[q, k] * abs(q - k) for k in C) / mass for q, mass in rows.items()]),
        "confidence": np.mean([max(A[q]) for q in range(n)]),
        "confidence_non_sink": mean([max(A[q, k] for k in C) / mass for q, mass in rows.items()]),
        "sink": np.mean([sum(A[q, k] for k in S) for q in C]) if C and S else None,
        "baseline": {},
    }
    for name, M in masks.items():
        pairs = [(q, k) for q in C for k in allowed[q] if k in content and M(q, k)]
        if not pairs:
            found[name] = found["baseline"][name] = None
            continue
        uniform = {q: 1 / max(1, len(content.intersection(allowed[q]))) for q in C}
        least = {q: max(0.1, 5 / len(allowed[q])) if name == "long_range" else 0.0 for q in C}
        chosen = [(q, k) for q, k in pairs if A[q, k] >= least[q]]
        found[name] = sum(A[q, k] for q, k in chosen) / content_mass if content_mass else None
        if name == "long_range":
            found["baseline"][name] = found["long_range_baseline"] = shuffled(A, least, allowed, content, M)
            continue
        meant = [q for q, _ in pairs if uniform[q] >= least[q]]
        found["baseline"][name] = np.mean([meant.count(q) * uniform[q] for q in C])
    return found


def shuffled(A: np.ndarray, least: dict[int, float], allowed: list[list[int]], content: set[int], M: Any) -> Any:
    """The mean of the score over all ways to lay a row's weights on content anew, which is one key as often as any."""
    total, expected = 0.0, 0.0
    for q in content:
        keys = [k for k in allowed[q] if k in content]
        total += sum(A[q, k] for k in keys)
        for weight in (A[q, k] for k in keys if A[q, k] >= least[q]):
            expected += sum(weight for key in keys if M(q, key)) / len(keys)
    return expected / total if total else None


def heads(
    model: Any, tokenizer: Any, text: str, pair: str | None = None, words: bool = False, **distances: int
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(layer, head, statistics) of every head of a model on a text."""
    sink = sink_flags(model, tokenizer, text, pair)
    groups = word_groups(tokenizer, text, pair) if words else [[position] for position in range(len(sink))]
    apart = [[[i for i in group if sink[i] == is_sink] for is_sink in (True, False)] for group in groups]
    groups = [part for parts in apart for part in parts if part]  # a sink is no part of a word
    tokens = tokenizer(text, pair)["input_ids"]
    ids = [[tokens[position] for position in group] for group in groups]
    for layer, patterns in enumerate(attentions(model, tokenizer, text, pair)):
        for head, pattern in enumerate(patterns):
            merged = merge(pattern, groups) if words else pattern
            causal = model.config.model_type == "gpt2"
            yield layer, head, statistics(merged, [sink[group[0]] for group in groups], causal, ids=ids, **distances)


def relations(
    parser: Any, tokenizer: Any, text: str, pair: str | None, sink: list[bool], universal: Any
) -> dict[str, Any]:
    """Words as token positions, and (dependent, head) pairs by relation, by spaCy itself.

    A sink is part of no word, and a word without a token is none. ``universal`` maps (text, part of speech, head,
    label in ClearNLP's terms) of all words to the head and label of each.
    """
    encoding = tokenizer(text, pair)
    words: list[list[int]] = []
    arcs: dict[str, list[tuple[int, int]]] = {}
    for segment, part in enumerate([text] if pair is None else [text, pair]):
        number = {}
        document = parser(part)
        tree = universal([(word.text, word.pos_, word.head.i, word.dep_) for word in document])
        for word in document:
            characters = set(range(word.idx, word.idx + len(word.text)))
            pieces = [
                position
                for position in range(len(encoding["input_ids"]))
                if encoding.sequence_ids()[position] == segment
                and characters & set(range(*encoding.token_to_chars(position)))
                and not sink[position]
            ]
            if pieces and not word.is_space:
                number[word.i] = len(words)
                words.append(pieces)
        for i, (head, label) in enumerate(tree):
            if label not in ("punct", "root", "") and i in number and head in number:
                for name in {label, label.split(":")[0]}:
                    arcs.setdefault(name, []).append((number[i], number[head]))
    return {"words": words, "arcs": arcs}


def best_offset_accuracy(arcs: list[tuple[int, int]]) -> float:
    """How often the best fixed offset from the dependent finds the head."""
    offsets = [head - dependent for dependent, head in arcs]
    return max(offsets.count(offset) for offset in offsets) / len(arcs)


def most_attended(merged: np.ndarray, source: int) -> int | None:
    """The other word that a word attends to most; None where it attends to none. Of equals the first counts.

    ``merged`` is the pattern between the parser's words, from :func:`merge`.
    """
    others = [word for word in range(len(merged)) if word != source]
    most = max((merged[source, word] for word in others), default=0.0)
    return next(word for word in others if merged[source, word] == most) if most > 0 else None


def accuracies(merged: np.ndarray, arcs: list[tuple[int, int]]) -> dict[str, float]:
    """Share of dependents that attend most to their head, and of heads to their dependent, among other words."""
    forward = [most_attended(merged, dependent) == head for dependent, head in arcs]
    backward = [most_attended(merged, head) == dependent for dependent, head in arcs]
    return {"dependent_to_head": sum(forward) / len(arcs), "head_to_dependent": sum(backward) / len(arcs)}


def guesses(
    merged: np.ndarray, words: list[list[int]], arcs: list[tuple[int, int]], causal: bool
) -> dict[str, dict[str, float]]:
    """By direction and name, how often what is guessed without the relation is right.

    ``words`` are the token positions of each word; a causal word sees only those before it.
    """
    found = {}
    most = [most_attended(merged, word) for word in range(len(merged))]
    for direction in ("dependent_to_head", "head_to_dependent"):
        right = {"chance": 0.0, "first word": 0.0, "last word": 0.0, "longest word": 0.0, "other words": 0.0}
        for dependent, head in arcs:
            source, aim = (dependent, head) if direction == "dependent_to_head" else (head, dependent)
            seen = [word for word in range(len(words)) if word != source and (word < source or not causal)]
            if aim in seen:
                longest = max(len(words[word]) for word in seen)
                right["chance"] += 1 / len(seen)
                right["first word"] += aim == seen[0]
                right["last word"] += aim == seen[-1]
                right["longest word"] += aim == next(word for word in seen if len(words[word]) == longest)
            askers = [word for word in range(len(words)) if word not in (source, aim) and (aim < word or not causal)]
            if askers:
                right["other words"] += sum(most[word] == aim for word in askers) / len(askers)
        found[direction] = {name: count / len(arcs) for name, count in right.items()}
        found[direction]["fixed offset"] = best_offset_accuracy(arcs)
    return found
