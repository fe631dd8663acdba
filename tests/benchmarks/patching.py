"""Patching all heads of tiny-gpt2 on 50 pairs of prompts, and a plain batched loop of hooks that does the same."""

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attnviz
from attnviz.models.opening import open_checkpoint

PAIRS, HEADS = 50, 16


def patching_calls() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """attnviz's, and a loop that takes each head's output from the own pair and, as a control, from the next one."""
    checkpoint, _ = open_checkpoint("tiny-gpt2")
    model: Any = checkpoint.whole
    tokenizer = checkpoint.tokenizer
    words = sorted(token[1:] for token in tokenizer.get_vocab() if token.startswith("Ġ") and token[1:].isalpha())
    draw = random.Random(0)
    rows = []
    for _ in range(PAIRS):
        *start, answer, foil = draw.sample([word for word in words if word.isascii() and len(word) > 3], 5)
        prompts = (" ".join(["the", *start, *both, *start]) for both in ((answer, foil), (foil, answer)))
        rows.append(
            {**dict(zip(("clean", "corrupt"), prompts, strict=True)), "answer": f" {answer}", "foil": f" {foil}"}
        )
    path = Path(tempfile.mkdtemp()) / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    maps = [block.attn.c_proj for block in model.transformer.h]

    @torch.inference_mode()
    def plain() -> list[float]:
        def column(name: str) -> list[str]:
            return [row[name] for row in rows]

        clean, corrupt = (tokenizer(column(name), return_tensors="pt") for name in ("clean", "corrupt"))
        answers, foils = (torch.tensor(tokenizer(column(name))["input_ids"])[:, 0] for name in ("answer", "foil"))

        def measured(inputs: Any) -> Tensor:
            logits = model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1]
            return logits[range(PAIRS), answers] - logits[range(PAIRS), foils]

        kept: list[Tensor] = []
        hooks = [each.register_forward_pre_hook(lambda _, given: kept.append(given[0])) for each in maps]
        of_clean = measured(clean)
        for hook in hooks:
            hook.remove()
        of_corrupt, effects = measured(corrupt), []
        for values in (kept, [layer.roll(1, 0) for layer in kept]):
            for layer, module in enumerate(maps):
                d_head = values[layer].shape[-1] // model.config.n_head
                for head in range(model.config.n_head):
                    where = slice(head * d_head, (head + 1) * d_head)

                    def patched(_: Any, given: Any, new: Tensor = values[layer], where: slice = where) -> Any:
                        changed = given[0].clone()
                        changed[..., where] = new[..., where]
                        return (changed,)

                    hook = module.register_forward_pre_hook(patched)
                    moved = measured(corrupt) - of_corrupt
                    hook.remove()
                    effects.append(float(moved.mean() / (of_clean - of_corrupt).mean()))
        return effects

    def ours() -> Any:
        return attnviz.patch(path, checkpoint)

    found = {effect.id: effect.effect for effect in ours().heads}
    expected = plain()[:HEADS]
    assert max(abs(found[id] - other) for id, other in zip(sorted(found), expected, strict=True)) < 1e-4
    return ours, plain
