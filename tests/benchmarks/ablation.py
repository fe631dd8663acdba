"""Removing each head of a model as wide as BERT-base on 32 sentences, and the forward passes that it stands for."""

import random
import statistics
import time
from itertools import count
from typing import Any

import torch
from transformers import BertConfig, BertModel

import attnviz
from tests.support.models import WORDS, bert_tokenizer

SENTENCES, LAYERS = 32, 4
HEADS = 12 * LAYERS
"""A third of BERT-base's layers take a ninth of its time; what is gained in each layer is the same."""
EVERY = 8


def ablation_seconds(**options: Any) -> tuple[float, str, float]:
    """How long attnviz takes, and, with their name, as many plain passes of a sentence each as it stands for.

    Those are one for the model as it is and one for every set of heads that is removed by a method. A round of plain
    passes over all sentences is timed after every few batches of attnviz's, outside of its own time, so that whatever
    else the machine does slows both down alike; the median round stands for all of them.
    """
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=LAYERS)
    model = BertModel(config).eval()
    plain = BertModel(config).eval()  # with its own attention implementation
    draw = random.Random(0)
    lengths = [max(3, min(60, int(draw.lognormvariate(2.85, 0.6)))) for _ in range(SENTENCES)]  # as in a treebank
    texts = [" ".join(draw.choice(WORDS[:30]) for _ in range(length)) for length in lengths]
    tokenizer = bert_tokenizer()
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]

    def timed_round() -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            for each in inputs:
                plain(**each)
        return time.perf_counter() - begin

    timed_round()  # to warm up
    rounds: list[float] = []
    told = count()

    def tell(*_: Any) -> None:
        if next(told) % EVERY == 0:
            rounds.append(timed_round())

    begin = time.perf_counter()
    found = attnviz.ablate(texts, model, tokenizer=tokenizer, progress=tell, **options)
    seconds = time.perf_counter() - begin - sum(rounds)
    assert (len(found.heads), found.n_texts) == (HEADS, SENTENCES)
    points = () if found.curve is None else found.curve.points
    removed = {(head.id,) for head in found.heads} | {each.heads for each in found.sets}
    removed |= {each.heads for point in points for each in (point.least, point.random)}
    times = 1 + len(removed)
    return seconds, f"{times} × {SENTENCES} forward passes, a sentence each", times * statistics.median(rounds)
