"""The command ``attnviz patch``: what each head carries from one prompt into another."""

from typing import Annotated, Literal

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_source
from attnviz.options import PatchDirection, PatchMetric, PatchSite, PathNetworks


@command(*opt.COMMON, opt.SampleGroup, first="corrupt answer foil site at receiver")
def patch(
    run: Run,
    clean: Annotated[
        str,
        opt.argument(
            "The prompt whose prediction is right; or a table (.csv, .tsv, .jsonl, .json) with the columns clean, "
            "corrupt, answer and foil, or label. Write - to read standard input.",
            metavar="CLEAN|TABLE",
        ),
    ],
    corrupt: Annotated[
        str | None, opt.reading("The other prompt, of as many tokens.", callback=opt.decoded, metavar="TEXT")
    ] = None,
    answer: Annotated[
        opt.Answer, "The token that follows the clean prompt, or stands at BERT's mask; of a classifier a class."
    ] = None,
    foil: Annotated[opt.Foil, "The token or class that the answer, or --label, is compared with."] = None,
    label: Annotated[opt.Label, "Classifiers: the class of the clean prompt, by its name or number."] = None,
    direction: Annotated[
        PatchDirection,
        opt.measuring(
            "denoise: outputs of the clean run go into the corrupt run; noise: those of the corrupt run into the clean "
            "one."
        ),
    ] = "denoise",
    site: Annotated[
        PatchSite,
        opt.measuring(
            "What is patched: z, what a head gives to W_O; its queries q, keys k or values v (of KV heads where heads "
            "share them); or of a layer attn_out, mlp_out (what it adds to the residual stream), resid_pre, resid_mid "
            "or resid_post (the stream before, between and after)."
        ),
    ] = "z",
    by: Annotated[
        Literal["position"] | None,
        opt.measuring(
            "position: patch each position alone, for a map of layer or head × position. Default: all tokens at once."
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        opt.free_text(
            "Patch at these tokens of the clean prompt alone: last, a stretch such as 3:7, or a token (cat, cat#2, "
            "#3). May be given more than once. Default: all.",
            metavar="TOKEN",
        ),
    ] = None,
    spans: Annotated[
        opt.Spans,
        'Patch at a stretch of both prompts alone, of as many tokens in each, as place=" in Paris"; the prompts may '
        "then differ in length. Given twice with one NAME, first for the clean, then for the corrupt prompt. May be "
        "given more than once.",
    ] = None,
    metric: Annotated[
        PatchMetric | None,
        opt.measuring(
            "logit_difference, loss of the answer, or kl: divergence from the prediction after the clean prompt. "
            "Default: the first with a foil, the second with an answer alone, else kl."
        ),
    ] = None,
    select: Annotated[opt.MeasuredHeads, f"Heads to patch, of a site of layers these: {opt.HEADS}"] = None,
    receiver: Annotated[
        str | None,
        opt.measuring(
            "Patch only the direct path to this: L2H1.q, L2H1.k, L2H1.v (queries, keys or values of a head), or "
            "logits; all heads between are frozen.",
            "--to",
            metavar="END",
        ),
    ] = None,
    sender: Annotated[
        list[str] | None,
        opt.measuring(
            "With --to: heads that paths begin at, as for --select. Default: all of earlier layers.",
            "--from",
            metavar="HEADS",
        ),
    ] = None,
    networks: Annotated[
        PathNetworks | None,
        opt.measuring(
            "With --to: whether feed-forward networks between are frozen, too, or run on what the head writes, so that "
            "a path may go through them. Default: frozen."
        ),
    ] = None,
    self_repair: Annotated[
        bool,
        opt.measuring(
            "Also measure how much of each head's direct effect later heads and networks make good, with its corrupt "
            "output in the clean run. Needs --answer and --foil."
        ),
    ] = False,
    limit: Annotated[opt.Limit, "Read only the first N pairs of the table. Default: all."] = None,
    top: opt.Top = None,
    table: opt.Table = None,
) -> None:
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
    source = read_source(clean)
    if isinstance(source, str):
        run.refuse(("limit",), "is about a table of pairs; expected one with it, found one pair")
    run.work(run.bound("patch", clean=source), of=[source, corrupt])
