"""The commands, each with its figures in the order of the documentation."""

from dataclasses import replace

from attnviz.present.report import View

_BEST_HEADS = View(
    "roles", "for every role the best head of each model, with intervals and guesses", module="compare_pictures"
)

VIEWS: dict[str, tuple[View, ...]] = {
    "heads": (
        View("overview", "every head of every layer in one picture"),
        View("heads", "one heatmap per head: row = query (attends from), column = key (attended to)"),
        View(
            "lines",
            "one line per weight, from the token that attends to the token attended to",
            default=False,
            module="token_views",
        ),
        View("map", "layers × heads, coloured by a statistic", default=False),
        View("claim", "one head and what it does over a corpus, one column wide", default=False, module="claim_view"),
        View("mean", "mean pattern of each layer's heads and of all", default=False),
        View(
            "relations",
            "the parse as arcs over the text, with what each head finds of its relation",
            default=False,
            module="relations_view",
        ),
        View(
            "text",
            "the text as prose, shaded by the attention that each token receives",
            default=False,
            module="token_views",
        ),
        View("page", "every head to hover over, click and compare, in one HTML file"),
    ),
    "compare": (
        View("overview", "the differences of all heads", module="compare_pictures"),
        View("differences", "the differences of one head, for those that differ most", module="compare_pictures"),
        View(
            "page",
            "every head on A, on B, and their difference, in one HTML file",
            module="compare_pictures",
            default=False,
        ),
    ),
    "compare.corpus": (
        View(
            "distances",
            "all heads by rank with intervals, beside the largest possible distance",
            module="compare_pictures",
        ),
        replace(_BEST_HEADS, default=False),
    ),
    "compare.roles": (_BEST_HEADS,),
    "profile": (
        View("roles", "the clearest role of every head"),
        View("relations", "the best head of each relation beside its largest baseline"),
        View("page", "roles and relations as tables that sort, heads as a scatter, in one HTML file", default=False),
    ),
    "card": (
        View("card", "what the head does, its pattern, three tables, hits and failures; with --all one for each head"),
        View("claim", "one statement on the head, one column wide, for a paper", default=False),
        View("page", "the card as a page, beside all heads on the text; with --all every card", default=False),
    ),
    "rollout": (View("rollout", "the last matrix by each method"),),
    "outputs": (
        View("overview", "norm-weighted attention of all heads", module="outputs_pictures"),
        View(
            "effects",
            "what each head adds to the logit of an answer, a token or a class, minus that of a foil",
            module="outputs_pictures",
        ),
        View("heads", "one head by weight and by norm", module="outputs_pictures"),
    ),
    "why": (View("path", "the path over the text, from head to head to the strongest key's score"),),
    "circuits": (View("composition", "every pair of heads, a picture for queries, keys and values"),),
    "ablate": (
        View("heads", "the most important heads, with intervals", module="ablate_pictures"),
        View("curve", "ever more heads removed", module="ablate_pictures"),
    ),
    "patch": (View("patch", "the effect of every head, layers × heads", module="patch_pictures"),),
    "explain": (
        View("row", "the table of the followed row, to redo its softmax by hand; for a slide"),
        View("page", "the steps as panels; a click on a token or a head changes the numbers"),
    ),
}
