"""One text, by attnviz or by a rival, timed in a process of its own: seconds from tokens to results, and MiB.

python -m tests.benchmarks.long_text WHAT FOLDER TOKENS [OUT]

WHAT is one of: ``analyze`` and ``analyze-parsed`` (attnviz, every head verified and measured, no figures), ``page``
(and its page), ``eager`` and ``sdpa`` (transformers, nothing is kept of a pass), ``attentions`` (all patterns kept),
``bertviz`` and ``circuitsvis`` (and their page). What is written goes to OUT.
"""

import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from tests.benchmarks.measure import peak_memory

WORDS = (
    "the cat that I saw ran away from the old house and a dog who had been on the mat chased it down the road".split()
)


def text_of(n: int, tokenizer: Any) -> str:
    """Words in random order, the same for everybody, that are n tokens."""
    words = random.Random(0)
    text = " ".join(words.choice(WORDS) for _ in range(n))
    return str(tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"][:n]))


def analyzed(what: str, folder: str, text: str, out: Path | None) -> float:
    import attnviz

    stamps: list[float] = []
    analysis = attnviz.analyze(
        text, folder, syntax=what == "analyze-parsed", truncate=True,
        progress=lambda *_: stamps.append(time.perf_counter()),
    )  # fmt: skip
    if out is not None:
        out.write_text(analysis.page(), encoding="utf-8")
    return time.perf_counter() - stamps[0]


def ran(what: str, folder: str, text: str, tokenizer: Any, out: Path | None) -> float:
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa" if what == "sdpa" else "eager").eval()
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=model.config.max_position_embeddings)
    kept = {"output_attentions": True} if what not in ("sdpa", "eager") else {}
    if "use_cache" in model.forward.__code__.co_varnames:
        kept["use_cache"] = False
    begin = time.perf_counter()
    with torch.inference_mode():
        result = model(**inputs, **kept)
    labels = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    page = ""
    if what == "bertviz":
        from bertviz import model_view

        page = model_view(result.attentions, labels, html_action="return").data
    elif what == "circuitsvis":
        from circuitsvis.attention import attention_heads

        page = "".join(str(attention_heads(layer[0].numpy(), labels)) for layer in result.attentions)
    if page and out is not None:
        out.write_text(page, encoding="utf-8")
    return time.perf_counter() - begin


if __name__ == "__main__":
    what, folder, n, *rest = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = text_of(int(n), tokenizer)
    out = Path(rest[0]) if rest else None
    if what.startswith("analyze") or what == "page":
        seconds = analyzed(what, folder, text, out)
    else:
        seconds = ran(what, folder, text, tokenizer, out)
    print(seconds, peak_memory())
