"""Files of figures: exact, small, and the same bytes on every run."""

import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image

from attnviz.figures.colours import LEVELS, colour_levels, colour_table
from attnviz.figures.fonts import drawable
from attnviz.figures.heatmap_drawing import heatmap_figure, heatmap_layout
from attnviz.figures.heatmaps import plan_heatmap
from attnviz.figures.look import PLAIN, Look
from attnviz.figures.overview_drawing import overview_figure
from attnviz.figures.overviews import plan_overview
from attnviz.figures.palettes import indexed, palette
from attnviz.figures.rendering import FORMATS, figure_bytes, heatmap_files, heatmap_pixels, overview_file
from attnviz.model.head_ids import HeadId
from tests.test_drawing import ODD_SETTINGS

TITLES = (
    ("L0H0  heterogeneous and a very long title indeed", "nearest: local 0.12 · uniform attention 0.50 · n = 12345"),
    ("L0H1", ""),
    ("L10H11  sink", "sink 0.99 · uniform attention 0.22 · n = 7"),
)


LOOKS = [Look(), Look("dark"), Look(scale="per-head"), Look(scale="log"), Look("dark", "per-head", 3.3), Look(width=6)]


def plans_of(n, titles=TITLES, label="word", look=PLAIN, **more):
    random = np.random.default_rng(n)
    labels = [f"{label}{i}" for i in range(n)]
    quiet = [i in (0, n - 1) for i in range(n)]
    return [
        plan_heatmap(
            random.dirichlet(np.ones(n) / 2, n).astype(np.float32),
            labels,
            quiet=quiet,
            title=title,
            evidence=evidence,
            look=look,
            **more,
        )
        for title, evidence in titles
    ]


SVG = "{http://www.w3.org/2000/svg}"


def decoded(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def overview():
    patterns = ((HeadId(0, head), "local", np.eye(5, dtype=np.float32)) for head in range(2))
    return overview_figure(plan_overview(patterns, title="model", notes=["“text”"]))


@pytest.mark.parametrize(
    ("n", "look"),
    [*((n, PLAIN) for n in (1, 9, 21, 24, 31, 33, 60, 130)), *((n, look) for n in (3, 9, 40) for look in LOOKS[1:])],
)
def test_the_fast_way_gives_the_pixels_of_drawing_each_figure_anew(n, look):
    plans = plans_of(n, look=look)
    for plan, fast in zip(plans, heatmap_pixels(plans), strict=True):
        slow = np.asarray(decoded(figure_bytes(heatmap_figure(plan, pieced=True), "png", look=look)))
        table = palette(look.theme)
        np.testing.assert_array_equal(table[fast], table[slow])


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("look", [Look(), Look("dark", "per-head", 2.0)])
def test_model_and_text_and_what_was_dropped_are_in_every_file(file_format, look):
    subject, dropped = "minilm · “שלום 12 cat”", "first token dropped, rows renormalised"
    plans = plans_of(3, look=look, subject=subject, dropped=dropped)
    files = list(heatmap_files(plans, file_format))
    assert files == list(heatmap_files(plans, file_format))
    if file_format == "png":
        for plan, fast in zip(plans, heatmap_pixels(plans), strict=True):
            slow = np.asarray(decoded(figure_bytes(heatmap_figure(plan, pieced=True), "png", look=look)))
            np.testing.assert_array_equal(palette(look.theme)[fast], palette(look.theme)[slow])
    elif file_format == "svg":
        for data in files:
            written = " ".join("".join(text.itertext()) for text in ElementTree.fromstring(data).iter(SVG + "text"))
            assert subject in written
            assert dropped in written


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("n", [3, 9, 40, 70])
def test_every_svg_is_that_of_drawing_its_figure_anew(n, look):
    plans = plans_of(n, look=look)
    for plan, fast in zip(plans, heatmap_files(plans, "svg"), strict=True):
        (alone,) = heatmap_files([plan], "svg")
        assert fast == alone


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("n", [3, 9, 40])
def test_an_svg_holds_the_texts_and_cells_that_matplotlib_would_draw(n, look):
    plan = plans_of(n, look=look)[0]
    (data,) = heatmap_files([plan], "svg")
    ours, theirs = (
        ElementTree.fromstring(svg) for svg in (data, figure_bytes(heatmap_figure(plan, vector=True), "svg"))
    )
    kinds = [{"".join(text.itertext()) for text in root.iter(SVG + "text")} - {""} for root in (ours, theirs)]
    assert kinds[0] == kinds[1]
    counts = [len([text for text in root.iter(SVG + "text") if text.text]) for root in (ours, theirs)]
    assert counts[0] == counts[1]
    cells = sum(path.get("d").count("M") for path in ours.iter(SVG + "path") if path.get("stroke-width") == "0.2")
    assert cells == np.count_nonzero(plan.levels)
    assert ours.get("width") == theirs.get("width")


def test_the_file_of_a_width_is_as_wide_in_every_format():
    plan = plans_of(9, look=Look(width=3.3))[0]
    files = {kind: next(heatmap_files([plan], kind)) for kind in FORMATS}
    assert ElementTree.fromstring(files["svg"]).get("width") == "237.6pt"
    assert re.search(rb"/MediaBox \[ 0 0 237\.6 ", files["pdf"])
    image = decoded(files["png"])
    assert image.width == 990
    assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_hostile_titles_are_written_into_an_svg_as_they_are():
    hostile = ["<b>&amp;</b>", "attnviz-text-1-", "]]>", "$\\frac$", "猫 \ue000"]
    plans = plans_of(3, titles=[(title, title) for title in hostile])
    for plan, data in zip(plans, heatmap_files(plans, "svg"), strict=True):
        written = ["".join(text.itertext()) for text in ElementTree.fromstring(data).iter(SVG + "text")]
        assert written.count(drawable(plan.title)) == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_overview_png_shows_patterns_exactly_and_marks_in_their_colours(theme):
    look = Look(theme)
    patterns = ((HeadId(0, head), "sink", np.eye(5, dtype=np.float32)) for head in range(2))
    plan = plan_overview(patterns, title="model", look=look)
    pixels = np.asarray(decoded(overview_file(plan, "png")).convert("RGB"))
    left, top = plan.origin
    for _, _, x, y in plan.cells:
        square = pixels[top + y : top + y + plan.size, left + x : left + x + plan.size]
        np.testing.assert_array_equal(square, plan.image[y : y + plan.size, x : x + plan.size])
    assert pixels[0, 0].tolist() == colour_table(theme)[0].tolist()
    assert (pixels == [0xEE, 0x88, 0x66]).all(-1).sum() > 20  # the colour of sinks


def test_a_palette_with_marks_holds_the_scale_fewer_greys_and_the_families():
    table = palette("dark", marks=True)
    assert table.shape == (256, 3)
    np.testing.assert_array_equal(table[:LEVELS], colour_table("dark"))
    assert [0xEE, 0x88, 0x66] in table.tolist()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("marks", [False, True])
def test_colours_of_the_palette_are_found_again(theme, marks):
    table = palette(theme, marks=marks)
    np.testing.assert_array_equal(table[indexed(table[None], theme, marks=marks)[0]], table)


def test_448_tokens_make_small_pictures():
    assert max(map(len, heatmap_files(plans_of(448)[:1], "png"))) < 250_000


def test_slanted_and_upright_labels_are_both_among_the_cases_above():
    rotations = [heatmap_layout(plans_of(n)[0]).axes.get_xticklabels()[0].get_rotation() for n in (9, 31, 33, 60)]
    assert rotations == [45, 45, 90, 90]


def test_no_ghost_of_an_earlier_title_is_left():
    first, second, _ = plans_of(9)
    after_another = list(heatmap_pixels([first, second]))[1]
    alone = next(heatmap_pixels([second]))
    np.testing.assert_array_equal(after_another, alone)
    assert (next(heatmap_pixels([first])) != alone).any()


def test_pictures_already_handed_out_do_not_change():
    pictures = heatmap_pixels(plans_of(9))
    first = next(pictures)
    kept = first.copy()
    list(pictures)
    np.testing.assert_array_equal(first, kept)


def test_a_png_decodes_to_the_palette_with_every_cell_exact():
    plan = plans_of(9)[0]
    (data,) = heatmap_files([plan], "png")
    image = decoded(data)
    assert (image.format, image.mode) == ("PNG", "P")
    assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
    assert image.info["Software"] == "attnviz"
    assert np.array(image.getpalette()).reshape(-1, 3).tolist() == palette().tolist()
    layout = heatmap_layout(plan)
    assert image.size == tuple((layout.figure.get_size_inches() * 150).round().astype(int))
    cells = np.asarray(image.convert("RGB"))[layout.top :, layout.left :][: plan.size, : plan.size]
    expected = colour_table()[colour_levels(plan.values)].repeat(plan.cell, 0).repeat(plan.cell, 1)
    same = (cells == expected).all(-1).reshape(9, plan.cell, 9, plan.cell)
    assert same[:, : plan.cell // 4].all()  # the numbers stand in the middle
    assert same[..., : plan.cell // 8].all()


def test_the_palette_is_the_scale_and_then_greys_up_to_white():
    table = palette()
    assert table.shape == (256, 3)
    assert table.dtype == np.uint8
    np.testing.assert_array_equal(table[:LEVELS], colour_table())
    greys = table[LEVELS:]
    assert (greys == greys[:, :1]).all()
    assert (greys[0].tolist(), greys[-1].tolist()) == ([0, 0, 0], [255, 255, 255])


def test_indexing_moves_no_pixel_visibly():
    figure = heatmap_figure(plans_of(30)[0])  # without numbers
    indexed = np.asarray(decoded(figure_bytes(figure, "png")).convert("RGB")).astype(int)
    drawn = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    # Only where the frame of the colour bar blends with its colours may a pixel be neither grey nor of the scale.
    assert (np.abs(indexed - drawn).max(-1) > 4).sum() <= 4


def test_an_overview_png_holds_its_squares():
    image = np.asarray(decoded(figure_bytes(overview(), "png")).convert("RGB"))
    assert (image == colour_table()[-1]).all(-1).sum() >= 2 * 5 * 24 * 24


@pytest.mark.parametrize("file_format", FORMATS)
def test_two_runs_give_the_same_bytes_whatever_the_users_settings(file_format):
    def files():
        return [*heatmap_files(plans_of(9), file_format), figure_bytes(overview(), file_format)]

    first = files()
    with matplotlib.rc_context(ODD_SETTINGS):
        second = files()
    assert first == second
    assert len(set(first)) == 4


FINGERPRINTS = """
import hashlib
from tests.test_rendering import FORMATS, heatmap_files, figure_bytes, overview, plans_of
for kind in FORMATS:
    for data in [*heatmap_files(plans_of(9)[:2], kind), figure_bytes(overview(), kind)]:
        print(hashlib.sha256(data).hexdigest())
"""


def test_another_process_with_another_hash_seed_gives_the_same_bytes(request):
    expected = [
        hashlib.sha256(data).hexdigest()
        for kind in FORMATS
        for data in [*heatmap_files(plans_of(9)[:2], kind), figure_bytes(overview(), kind)]
    ]
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINTS],
        capture_output=True,
        text=True,
        check=True,
        cwd=request.config.rootpath,
        env={**os.environ, "PYTHONHASHSEED": "4321", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "0"},
    )
    assert done.stdout.split() == expected


def test_an_svg_keeps_its_text_as_text_and_has_no_date():
    plan = plan_heatmap(
        np.eye(3, dtype=np.float32), ["<b>&", "$x$", "word"], quiet=[False] * 3, title="L0H0  local", evidence="0.5"
    )
    (data,) = heatmap_files([plan], "svg")
    root = ElementTree.fromstring(data)
    written = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("<b>&", "$x$", "word"):
        assert written.count(text) == 2  # row and column
    assert {"L0H0  local", "key", "query"} <= set(written)
    assert b"<dc:date>" not in data


def test_a_vector_heatmap_has_its_cells_where_they_belong():
    values = np.zeros((3, 3), np.float32)
    values[0, 2] = 1.0
    plan = plan_heatmap(values, list("abc"), quiet=[False] * 3, title="t")
    (data,) = heatmap_files([plan], "svg")
    dark = [
        element
        for element in ElementTree.fromstring(data).iter("{http://www.w3.org/2000/svg}path")
        if "fill: #08306b" in element.get("style", "") or element.get("fill") == "#08306b"
    ]
    assert len(dark) >= 1
    path = dark[0].get("d")
    numbers = [float(word) for word in re.findall(r"-?[\d.]+", path)]
    assert path == f"M{numbers[0]:g} {numbers[1]:g}h21.12v21.12h-21.12z"
    layout = heatmap_layout(plan)
    points = 72 / 150
    assert numbers[0] == pytest.approx((layout.left + 2 * plan.cell) * points, abs=1e-3)
    assert numbers[1] == pytest.approx(layout.top * points, abs=1e-3)


def test_a_pdf_has_no_date_and_embeds_its_fonts():
    (data,) = heatmap_files(plans_of(3)[:1], "pdf")
    assert data.startswith(b"%PDF-")
    assert b"CreationDate" not in data
    assert b"ModDate" not in data
    assert b"/FontFile2" in data


def test_files_come_in_the_order_of_their_plans():
    plans = []
    for step in range(12):
        values = np.full((4, 4), step / 11, np.float32)
        plans.append(plan_heatmap(values, list("abcd"), quiet=[False] * 4, title=f"L0H{step}"))
    layout = heatmap_layout(plans[0])
    found = [np.asarray(decoded(data))[layout.top, layout.left] for data in heatmap_files(plans, "png")]
    assert found == [colour_levels(plan.values)[0, 0] for plan in plans]
    assert found == sorted(found)


def test_closing_early_ends_the_threads():
    before = threading.active_count()
    files = heatmap_files(plans_of(9) * 4, "png")
    next(files)
    assert threading.active_count() > before
    files.close()
    assert threading.active_count() == before


def test_an_error_in_a_plan_reaches_the_caller_and_ends_the_threads():
    before = threading.active_count()

    def broken():
        yield plans_of(9)[0]
        raise RuntimeError("no more plans")

    with pytest.raises(RuntimeError, match="no more plans"):
        list(heatmap_files(broken(), "png"))
    assert threading.active_count() == before


@pytest.mark.parametrize("file_format", FORMATS)
def test_no_plans_make_no_files(file_format):
    assert list(heatmap_files([], file_format)) == []


def test_a_heatmap_file_is_small():
    assert max(map(len, heatmap_files(plans_of(9), "png"))) < 32_000
    assert max(map(len, heatmap_files(plans_of(30), "png"))) < 60_000


def test_a_picture_of_a_chosen_width_has_300_pixels_an_inch():
    figures = [overview_figure(plan_overview([(HeadId(0, 0), "local", np.eye(5, dtype=np.float32))], title="m"))] * 2
    sizes = []
    for figure, look in zip(figures, (PLAIN, Look(width=4.0)), strict=True):
        image = Image.open(io.BytesIO(figure_bytes(figure, "png", indexed=False, look=look)))
        sizes.append((image.width / figure.get_figwidth(), round(image.info["dpi"][0])))
    assert sizes == [(pytest.approx(150, abs=0.5), 150), (pytest.approx(300, abs=0.5), 300)]
