"""The documents of every command on six families, kept, and compared with what the commands say now.

    python -m tests.kept            compare; exit code 1 where a number or a key differs
    python -m tests.kept --write    keep what the commands say now

A text and a corpus each, on the random checkpoints of the tests. Keys may be added; numbers agree to 1e-6.
"""

import copy
import gzip
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import attnviz
from attnviz.errors import AttnvizError
from attnviz.models.checkpoint import from_loaded
from attnviz.present.documents import json_text
from tests.support.corpora import examples, sentences, treebank
from tests.support.families import TEXT, model_of

FOLDER = Path(__file__).parent
FAMILIES = ("bert", "gpt2", "llama", "gemma2", "mixtral", "t5")
OTHER_TEXT = "the dog that i saw ran away from the cat"
TOLERANCE = 1e-6


def calls(family: str) -> dict[str, Callable[[], Any]]:
    """Of each command a call on a text and on a corpus; the corpora lie in the current folder."""
    model, tokenizer = model_of(family, headed=True, positions=256)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30)  # predictions that differ
    given: dict[str, Any] = {"model": model, "tokenizer": tokenizer}
    checkpoint, other = from_loaded(model, tokenizer), from_loaded(changed(model), tokenizer)
    head, layer = ("E1H1", "E0") if checkpoint.stacks else ("L1H1", "L0")
    write_corpora(head)
    ending = " [MASK]" if family == "bert" else ""
    write_pairs(ending)
    target = {"target": "a dog ran away"} if checkpoint.stacks else {}
    plain: dict[str, Any] = {"syntax": False}

    def analysis(text: str) -> Any:
        return attnviz.analyze(text, **given, **target, **plain)

    return {
        "heads": lambda: analysis(TEXT),
        "heads --each-line": lambda: attnviz.analyze_each("few.txt", **given, **plain),
        "compare": lambda: attnviz.compare(analysis(TEXT), analysis(OTHER_TEXT)),
        "compare --corpus": lambda: attnviz.compare_corpus(checkpoint, other, "texts.txt", **plain, limit=32),
        "outputs": lambda: attnviz.head_outputs(TEXT, **given, **target),
        "explain": lambda: attnviz.explain(TEXT, **given),
        "why": lambda: attnviz.why(TEXT, **given, head=head, depth=2),
        "rollout": lambda: attnviz.rollout(TEXT, **given),
        "circuits": lambda: attnviz.circuits(**given),
        "profile": lambda: attnviz.profile_heads(
            checkpoint, ["trees.conllu", "examples.tsv"], repeats=True, examples=1, limit=40
        ),
        "check": lambda: attnviz.check("claims.toml", checkpoint),
        "card": lambda: attnviz.card(head, TEXT, **given, **target, **plain),
        "ablate": lambda: attnviz.ablate(TEXT, **given, **target, select=layer),
        "ablate corpus": lambda: attnviz.ablate("texts.txt", **given, select=layer, limit=32),
        "patch": lambda: attnviz.patch(f"the cat{ending}", **given, corrupt=f"the dog{ending}", answer=5, foil=16),
        "patch pairs": lambda: attnviz.patch("pairs.jsonl", **given, select=layer),
    }


def changed(model: Any) -> Any:
    """A copy with larger weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.05)
    return other


def write_corpora(head: str) -> None:
    sentences(Path("texts.txt"), 60)
    sentences(Path("few.txt"), 6)
    treebank(Path("trees.conllu"), 60)
    examples(Path("examples.tsv"), 40)
    claims = [f'[[claim]]\nhead = "{head}"\nscore = "{score}"\nat_least = 0.5' for score in ("entropy", "sink")]
    Path("claims.toml").write_text("\n".join([f'text = "{TEXT}"', *claims, ""]))


def write_pairs(ending: str) -> None:
    draw, rows = random.Random(0), []
    for _ in range(60):
        nouns, (answer, foil) = draw.sample("cat dog house tree".split(), 2), draw.sample(range(5, 30), 2)
        clean, corrupt = (f"the {a} saw the {b}{ending}" for a, b in (nouns, nouns[::-1]))
        rows.append({"clean": clean, "corrupt": corrupt, "answer": answer, "foil": foil})
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def documents(family: str) -> dict[str, Any]:
    """By command; where a command refuses the model, the class of its error."""
    said: dict[str, Any] = {}
    for command, call in calls(family).items():
        print(f"{family}: {command}", file=sys.stderr)
        try:
            said[command] = json.loads(json_text(call().document()))
        except AttnvizError as error:
            said[command] = {"refused": type(error).__name__}
    return said


def differences(kept: Any, now: Any, path: str) -> Iterator[str]:
    """A line for every value that differs and every key that is gone."""
    if isinstance(kept, dict) and isinstance(now, dict):
        for key, value in kept.items():
            if key in now:
                yield from differences(value, now[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is gone"
    elif isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        for place, pair in enumerate(zip(kept, now, strict=True)):
            yield from differences(*pair, f"{path}[{place}]")
    elif isinstance(kept, float) and isinstance(now, float | int):
        if not math.isclose(kept, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{path}: {kept} was kept, {now} is said"
    elif kept != now:
        yield f"{path}: {str(kept)[:80]!r} was kept, {str(now)[:80]!r} is said"


def main() -> int:
    torch.set_num_threads(1)
    n_differences = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for family in FAMILIES:
            now, file = documents(family), FOLDER / f"{family}.json.gz"
            if "--write" in sys.argv:
                file.write_bytes(gzip.compress(json.dumps(now).encode(), mtime=0))
                continue
            for line in differences(json.loads(gzip.decompress(file.read_bytes())), now, family):
                print(line)
                n_differences += 1
    return int(n_differences > 0)


if __name__ == "__main__":
    sys.exit(main())
