"""``attnviz circuits`` of a model of GPT-2 small's size: a process that prints time and memory.

The rival is the product of two d_model × d_model matrices for each pair, timed on some pairs.
"""

import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnviz
from attnviz.memory import peak_memory
from tests.support.models import gpt2_tokenizer

PAIRS = 30


def main() -> None:
    """Print seconds, those of full matrices, and bytes: of weights, beyond what was there before, in all."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    before, begin = peak_memory(), time.perf_counter()
    found = attnviz.circuits(model, tokenizer=gpt2_tokenizer())
    seconds, peak = time.perf_counter() - begin, peak_memory()
    one, other = torch.randn(2, 768, 768)
    begin = time.perf_counter()
    for _ in range(PAIRS):
        torch.linalg.norm(one @ other)
    each = (time.perf_counter() - begin) / PAIRS
    print(seconds, each * len(found.pairs()), weights, peak - before + weights)


if __name__ == "__main__":
    main()
