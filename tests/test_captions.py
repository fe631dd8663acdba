"""The file that holds a sentence beside the name of each figure."""

from attnviz.results.captions import captions_text, read_captions

HOSTILE = "a*b_c `x` <script> [CLS](u) #1 | \\ **d**: e"


def test_captions_come_back_from_the_file_as_they_were_and_hold_no_markup():
    captions = [("overview.png", "one"), ("heads/L00H00.png", HOSTILE), ("heads/L00H00.svg", HOSTILE)]
    text = captions_text(captions)
    assert text.startswith("# Captions\n\n**overview.png**: one\n\n**heads/L00H00.png, heads/L00H00.svg**: a\\*b\\_c")
    assert "\\<script>" in text.replace("\\>", ">")
    assert read_captions(text) == captions
    assert text.count("\n\n") == 2


def test_files_with_the_same_caption_share_a_line_only_where_they_are_one_figure():
    assert captions_text([("a.png", "x"), ("b.png", "x"), ("a.svg", "y")]).splitlines()[2::2] == [
        "**a.png**: x",
        "**b.png**: x",
        "**a.svg**: y",
    ]


def test_lines_that_are_no_captions_are_passed_over():
    assert read_captions("# Captions\n\nmine\n**: x\n") == []
