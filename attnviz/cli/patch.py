"""The command ``attnviz patch``: what each head carries from one prompt into another."""

from pathlib import Path
from typing import Any

from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import decoded, read_text


@command
def patch(run: Run, clean: str, corrupt: str | None, **options: Any) -> Job:
    """Take each head's output from the run of another prompt, and measure how much of the difference it carries.

    Both prompts have as many tokens, and differ in what decides the answer. By default a head's output on the clean
    prompt goes into the corrupt run: 1 says that it restores the whole difference, 0 none of it. A table of pairs gives
    means, intervals, and what a head of an unrelated pair does.

    --site patches queries, keys or values of heads, or what whole layers read or add to the residual stream; --by
    position each position alone. --to patches only what another head's queries, keys or values, or the logits, read of
    a head directly, with other heads between frozen. --self-repair says how much of a head's direct effect later heads
    and networks make good.

    Attention is verified on both prompts. It writes patch.png, captions, patch.json and patch.csv, and prints the heads
    ranked.

    Examples:
        attnviz patch "one two" --corrupt "one one" -m tiny-gpt2
            Which heads carry how the predictions differ.
        attnviz patch pairs.csv -m tiny-gpt2 --at last
            Many pairs with answers and foils, at their last tokens.
        attnviz patch pairs.csv -m tiny-gpt2 --to L1H0.k
            Which earlier heads tell L1H0 where to look.
        attnviz patch pairs.csv -m tiny-gpt2 --site mlp_out
            Which layers' networks carry it.
    """
    from attnviz.inputs.reading import source_kind

    clean = read_text(clean) if clean == "-" else decoded("CLEAN", clean)
    is_text = source_kind(clean) == "text"
    if is_text:
        run.refuse(("limit",), "is about a table of pairs; expected one with it, found one pair")
    model = run.find_model()
    return run.job(
        run.measuring("patch", clean, model, corrupt=corrupt, **options),
        texts=[clean, corrupt] if is_text else (),
        corpora=() if is_text else [Path(clean)],
        rate=True,
    )
