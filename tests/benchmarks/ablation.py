"""Removing all 144 heads of a BERT-base-sized model on 32 sentences, and the forward passes that it stands for."""

import random
import statistics
import time

import torch
from transformers import BertConfig, BertModel

import attnviz
from tests.models import WORDS, bert_tokenizer

SENTENCES, HEADS = 32, 144
_ROUNDS = 4


def ablation_seconds() -> tuple[float, float, float]:
    """Removing every head alone; the same with curve and gradients; and 144 times 32 forward passes.

    The weights are random, the sentences random words, about as long as those of an English treebank. The passes are
    those of transformers as it comes, one sentence at a time, without gradients and with as many threads. Four
    rounds over all 32 sentences are timed, before, between and after; the median round stands for 144 of them.
    """
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    plain = BertModel(BertConfig()).eval()  # with its own attention implementation
    tokenizer, texts = bert_tokenizer(), _sentences()
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]
    rounds = [_timed_round(plain, inputs) for _ in range(2)]
    del rounds[0]  # to warm up
    begin = time.perf_counter()
    found = attnviz.ablate(texts, model, tokenizer=tokenizer, curve=False, gradient=False)
    alone = time.perf_counter() - begin
    assert len(found.heads) == HEADS
    assert found.n_texts == SENTENCES
    rounds += [_timed_round(plain, inputs) for _ in range((_ROUNDS - 1) // 2 + 1)]
    begin = time.perf_counter()
    attnviz.ablate(texts, model, tokenizer=tokenizer)
    everything = time.perf_counter() - begin
    rounds.append(_timed_round(plain, inputs))
    return alone, everything, HEADS * statistics.median(rounds)


def _timed_round(model: BertModel, inputs: list[dict[str, torch.Tensor]]) -> float:
    begin = time.perf_counter()
    with torch.inference_mode():
        for each in inputs:
            model(**each)
    return time.perf_counter() - begin


def _sentences() -> list[str]:
    """Random words; 4 to 47 of them, 19 on average."""
    draw = random.Random(0)
    lengths = [max(3, min(60, int(draw.lognormvariate(2.85, 0.6)))) for _ in range(SENTENCES)]
    return [" ".join(draw.choice(WORDS[:30]) for _ in range(length)) for length in lengths]
