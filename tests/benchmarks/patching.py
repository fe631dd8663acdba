"""``attnviz patch`` of all heads of a model of GPT-2 small's size on one pair, and as many plain passes in batches."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnviz
from tests.benchmarks.measure import functions
from tests.support.models import gpt2_tokenizer

CLEAN, CORRUPT = (f"the cat saw the dog and {name} ran to the house of the" for name in ("it", "he"))
HEADS, BATCH = 144, 16


def patching_seconds() -> list[float]:
    """Seconds of attnviz, attention verified on both prompts, and of one pass a head, the last logits alone."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.2)).eval()
    tokenizer = gpt2_tokenizer()
    inputs = {name: value.repeat(BATCH, 1) for name, value in tokenizer(CORRUPT, return_tensors="pt").items()}

    def ours() -> None:
        found = attnviz.patch(CLEAN, model, tokenizer=tokenizer, corrupt=CORRUPT)
        assert len(found.heads) == HEADS

    def plain() -> None:
        with torch.inference_mode():
            for _ in range(HEADS // BATCH):
                model(**inputs, use_cache=False, logits_to_keep=1)

    return functions([ours, plain])
