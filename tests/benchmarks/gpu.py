"""What attnviz costs on a GPU, beside the model's own eager pass in the same process.

python -m tests.benchmarks.gpu [SIZE ...] [--corpus CONLLU] [--baseline]

Random weights of the sizes that people use; the model is open, there is no parser and no figure. Every row can fail:
with ``--baseline`` the limits are not held, to time another version. Without a GPU it says so and ends.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.opening import open_checkpoint
from tests.benchmarks.long_text import text_of
from tests.support.models import bert_tokenizer, gpt2_tokenizer


@dataclass(frozen=True)
class Size:
    """A model, the tokens of its text, and the largest ratio to its eager pass that is fine."""

    model: type[Any]
    config: Any
    tokens: int
    limit: float
    dtype: torch.dtype = torch.float32


LLAMA = LlamaConfig(
    vocab_size=32_000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=8192,
)  # fmt: skip
XL = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
SIZES = {
    "BERT-base": Size(BertModel, BertConfig(), 512, 4.0),
    "GPT-2 small": Size(GPT2LMHeadModel, GPT2Config(), 1024, 2.5),
    "GPT-2 XL": Size(GPT2LMHeadModel, XL, 1024, 2.5),
    "Llama 1B": Size(LlamaForCausalLM, LLAMA, 2048, 2.5, torch.bfloat16),
    "Llama 1B, long": Size(LlamaForCausalLM, LLAMA, 8192, 2.5, torch.bfloat16),
}


def opened(name: str) -> tuple[Any, Any, str]:
    """The model on the GPU, its tokenizer, and a text that fills it."""
    size = SIZES[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = size.model._from_config(size.config, dtype=size.dtype).eval()
    tokenizer = bert_tokenizer() if isinstance(model, BertModel) else gpt2_tokenizer()
    special = len(tokenizer("")["input_ids"])
    return model, tokenizer, text_of(size.tokens - special - 16, tokenizer)


def timed(call: Callable[[], object], runs: int = 5) -> tuple[float, float]:
    """Median seconds and peak GiB on the device, after one run to warm up."""
    call()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = []
    for _ in range(runs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), (torch.cuda.max_memory_allocated() - before) / 2**30


def waits(call: Callable[[], object]) -> int:
    """How often the host waits for the device, by torch's own count."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in caught)


def passes(model: Any, inputs: dict[str, torch.Tensor], implementation: str) -> Callable[[], object]:
    """A pass of the bare model that keeps nothing."""
    base = getattr(model, model.base_model_prefix, model)
    more = {} if isinstance(model, BertModel) else {"use_cache": False}

    def run() -> None:
        base.set_attn_implementation(implementation)
        with torch.inference_mode():
            base(**inputs, **more)

    return run


def holds(what: str, ours: float, rival: str, theirs: float, limit: float) -> bool:
    """A row; ``limit`` is the largest ratio that is fine."""
    ratio = ours / theirs
    print(f"{what}: {ours:.4f} s; {rival}: {theirs:.4f} s; ratio {ratio:.1f} (limit {limit})", flush=True)
    return ratio <= limit


def of_a_text(names: list[str]) -> Iterator[bool]:
    """Two rows for each size, by the implementation of attention that the model is set to."""
    for name in names:
        model, tokenizer, text = opened(name)
        checkpoint, _ = open_checkpoint(model, tokenizer)
        again, _ = timed(lambda model=model, tokenizer=tokenizer: open_checkpoint(model, tokenizer), 1)
        inputs = tokenize(checkpoint, text).model_inputs(checkpoint.device)
        sdpa, _ = timed(passes(model, inputs, "sdpa"))
        eager, eager_peak = timed(passes(model, inputs, "eager"))
        n = inputs["input_ids"].shape[1]
        print(f"{name}, {n} tokens: sdpa {sdpa:.4f} s, eager {eager_peak:.2f} GiB, opened again in {again:.3f} s")

        def analyze(checkpoint: Checkpoint = checkpoint, text: str = text) -> None:
            attnviz.analyze(text, checkpoint, syntax=False)

        for implementation in ("sdpa", "eager"):
            checkpoint.model.set_attn_implementation(implementation)  # type: ignore[operator]
            ours, peak = timed(analyze, 3)
            what = f"analyze, {implementation}, {waits(analyze)} waits, {peak:.2f} GiB"
            yield holds(what, ours, "an eager pass", eager, SIZES[name].limit)
        del model, checkpoint, analyze
        torch.cuda.empty_cache()


def of_a_corpus(corpus: Path) -> Iterator[bool]:
    """``profile`` of 1,000 sentences with BERT-base, beside batched eager passes that return all attentions."""
    model, tokenizer, _ = opened("BERT-base")
    checkpoint, _ = open_checkpoint(model, tokenizer)
    lines = corpus.read_text(encoding="utf-8").splitlines()
    sentences = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")][:1000]
    sentences.sort(key=len)
    batches = [
        tokenizer(sentences[first : first + 32], padding=True, return_tensors="pt").to("cuda")
        for first in range(0, len(sentences), 32)
    ]

    def attentions() -> None:
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            for batch in batches:
                model(**batch, output_attentions=True)

    theirs, _ = timed(attentions, 3)
    model.set_attn_implementation("sdpa")
    for what, limit, options in (("profile", 4.0, {"control": False, "examples": 0}), ("profile, control", 8.0, {})):
        ours, _ = timed(lambda options=options: attnviz.profile_heads(checkpoint, [corpus], limit=1000, **options), 1)
        yield holds(f"{what}, {len(sentences)} sentences", ours, "batched eager passes", theirs, limit)


def of_ablation() -> Iterator[bool]:
    """``ablate`` of all heads of GPT-2 small on one text, beside as many passes as there are heads."""
    model, tokenizer, _ = opened("GPT-2 small")
    checkpoint, _ = open_checkpoint(model, tokenizer)
    text = text_of(126, tokenizer)
    inputs = tokenize(checkpoint, text).model_inputs(checkpoint.device)
    one, _ = timed(passes(model, inputs, "eager"))
    ours, _ = timed(lambda: attnviz.ablate(text, checkpoint), 1)
    heads = checkpoint.n_layers * checkpoint.n_heads
    yield holds(f"ablate, {heads} heads", ours, "so many passes", heads * one, 1.0)


def same_numbers() -> Iterator[bool]:
    """Statistics of a text on the GPU are those on the processor."""
    worst = 0.0
    for name in ("BERT-base", "GPT-2 small"):
        model, tokenizer, text = opened(name)
        found = []
        for device in ("cuda", "cpu"):
            checkpoint, _ = open_checkpoint(model.to(device), tokenizer)
            heads = attnviz.analyze(text[:1200], checkpoint, syntax=False).heads
            found.append([value for head in heads for value in head.statistics.values() if value is not None])
        worst = max(worst, *(abs(a - b) / max(1.0, abs(b)) for a, b in zip(*found, strict=True)))
    print(f"statistics on the GPU and on the processor differ by at most {worst:.1e} (limit 1e-5)", flush=True)
    yield worst <= 1e-5


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--baseline", action="store_true")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: this benchmark needs one")
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    passed = list(same_numbers()) + list(of_a_text(chosen.sizes))
    if chosen.corpus is not None:
        passed += of_a_corpus(chosen.corpus)
    passed += of_ablation()
    print(f"{sum(passed)} of {len(passed)} rows within their limits")
    sys.exit(0 if all(passed) or chosen.baseline else 1)
