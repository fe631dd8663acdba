"""Figures of the attention on one text: plans, and what draws them on a caller's matplotlib Axes.

    look, families -> colours, fonts -> wording -> heatmaps, overviews (plans) -> heatmap_drawing, overview_drawing
      -> palettes, stamps, vectors -> rendering: many pictures at once, as bytes
      -> view_drawing -> view_bars -> statistic_map, means, pair_heatmaps -> pairs
                                      line_rows -> lines -> line_layout -> line_views, line_legend -> line_drawing
      -> captions -> figure_sets: what can be asked for by name

The names below are imported when first asked for: ``from attnviz import figures``.
"""

from typing import TYPE_CHECKING

from attnviz.lazy import lazily

if TYPE_CHECKING:
    from attnviz.figures.heatmap_drawing import draw_heatmap
    from attnviz.figures.heatmaps import heatmap_plans, plan_heatmap
    from attnviz.figures.line_drawing import draw_lines
    from attnviz.figures.line_views import lines_plan
    from attnviz.figures.look import Look
    from attnviz.figures.means import draw_mean, plan_means
    from attnviz.figures.overview_drawing import draw_overview
    from attnviz.figures.overviews import model_overview_plan
    from attnviz.figures.pair_heatmaps import draw_pair_heatmap, pair_segments, plan_pair_heatmap
    from attnviz.figures.pairs import draw_pair, plan_pair
    from attnviz.figures.statistic_map import draw_statistic_map, plan_statistic_map

__all__ = [
    "Look",
    "draw_heatmap",
    "draw_lines",
    "draw_mean",
    "draw_overview",
    "draw_pair",
    "draw_pair_heatmap",
    "draw_statistic_map",
    "heatmap_plans",
    "lines_plan",
    "model_overview_plan",
    "pair_segments",
    "plan_heatmap",
    "plan_means",
    "plan_pair",
    "plan_pair_heatmap",
    "plan_statistic_map",
]

_MODULES = {
    "Look": "attnviz.figures.look",
    "draw_heatmap": "attnviz.figures.heatmap_drawing",
    "draw_lines": "attnviz.figures.line_drawing",
    "draw_mean": "attnviz.figures.means",
    "draw_overview": "attnviz.figures.overview_drawing",
    "draw_pair": "attnviz.figures.pairs",
    "draw_pair_heatmap": "attnviz.figures.pair_heatmaps",
    "draw_statistic_map": "attnviz.figures.statistic_map",
    "heatmap_plans": "attnviz.figures.heatmaps",
    "lines_plan": "attnviz.figures.line_views",
    "model_overview_plan": "attnviz.figures.overviews",
    "pair_segments": "attnviz.figures.pair_heatmaps",
    "plan_heatmap": "attnviz.figures.heatmaps",
    "plan_means": "attnviz.figures.means",
    "plan_pair": "attnviz.figures.pairs",
    "plan_pair_heatmap": "attnviz.figures.pair_heatmaps",
    "plan_statistic_map": "attnviz.figures.statistic_map",
}

if not TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    __getattr__ = lazily(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
