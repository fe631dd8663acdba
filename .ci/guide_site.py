"""Hooks of mkdocs: the site has README, guide and gallery where the repository has them, so that every link leads on.

Its navigation, and llms.txt (llmstxt.org), are made from the index of the guide.
"""

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "examples" / "guide"
GALLERY = ROOT / "examples" / "gallery"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]

_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_ROW = re.compile(r"^\| (?!---)(.+?) \| (.+) \|$", re.M)
_PAGE = re.compile(r"\[([^]]+)\]\((\w[\w-]*\.md)[^)]*\)")


def index() -> dict[str, dict[str, tuple[str, str]]]:
    """The pages of the guide, by section and file name: title and what each is for, as the index says."""
    commands, tasks = dict[str, tuple[str, str]](), dict[str, tuple[str, str]]()
    for first, second in _ROW.findall((GUIDE / "README.md").read_text("utf-8")):
        for title, name in _PAGE.findall(first):
            commands[name] = (title, second)
        for title, name in _PAGE.findall(second):
            if name not in commands:
                tasks.setdefault(name, (title, first))
    return {"Commands": commands, "Guide": tasks}


def llms_txt() -> str:
    """The index for language models: links to the pages' Markdown, which the site has beside the pages."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["description"]
    lines = ["# attnviz", "", f"> {about}", "", "- [README](README.md): what it does, in five recipes"]
    for section, pages in index().items():
        lines += ["", f"## {section}", ""]
        lines += [f"- [{title}](examples/guide/{name}): {purpose}" for name, (title, purpose) in pages.items()]
    return "\n".join([*lines, "- [changelog](examples/guide/changelog.md)", ""])


def _target(page: Path, link: str) -> Path:
    """The file that a link leads to; of a folder the one that says what it has."""
    found = (page.parent / link).resolve()
    if found == GALLERY:
        return GALLERY / "README.md"
    return found / "__init__.py" if found.is_dir() else found


def _linked() -> Iterator[Path]:
    for page in PAGES:
        for link in _LINK.findall(page.read_text("utf-8")):
            yield _target(page, link)


def _gallery_page() -> str:
    """Every folder of the gallery with its pictures; those of single heads stay in their folder."""
    lines = ["# Gallery", "", "The captions of all pictures are in `captions.md`."]
    for folder in sorted(path for path in GALLERY.iterdir() if path.is_dir()):
        lines += ["", f"## {folder.name}", ""]
        for picture in sorted(folder.glob("*.png")):
            lines += [f"![{picture.stem} of {folder.name}]({folder.name}/{picture.name})", ""]
    return "\n".join(lines)


def on_config(config: Any) -> Any:
    """The navigation."""
    sections = {name: [f"examples/guide/{page}" for page in pages] for name, pages in index().items()}
    sections["Commands"] = [{title: f"examples/guide/{page}"} for page, (title, _) in index()["Commands"].items()]
    more = ["examples/guide/changelog.md", "examples/gallery/README.md"]
    config.nav = [{"Start": "README.md"}, {"Index": "examples/guide/README.md"}]
    config.nav += [{name: pages} for name, pages in sections.items()] + [{"More": more}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """The files of the site, at their paths in the repository."""
    from mkdocs.structure.files import File  # noqa: PLC0415 # the index is read without mkdocs, too

    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    pictures = [path for path in GALLERY.rglob("*") if path.suffix in (".png", ".html")]
    for path in dict.fromkeys([*PAGES, *pictures, *_linked()]):
        if path.is_file():
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    files.append(File.generated(config, "examples/gallery/README.md", content=_gallery_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to folders lead to a file in them."""
    here = ROOT / page.file.src_uri

    def led_on(link: re.Match[str]) -> str:
        folder = (here.parent / link[1]).resolve()
        return f"{link[0]}/{_target(here, link[1]).name}" if folder.is_dir() else link[0]

    return _LINK.sub(led_on, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Wide tables scroll; the theme's switch to dark looks for two styles of highlight.js, which would be fetched."""
    styles = '<style id="hljs-light"></style><style id="hljs-dark"></style>'
    styles += "<style>.table { display: block; overflow-x: auto }</style>"
    return output.replace("</head>", f"{styles}</head>")


def on_post_build(config: Any) -> None:
    """Write llms.txt, and the Markdown that it names."""
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(llms_txt(), encoding="utf-8")
    for page in PAGES:
        shutil.copy(page, site / page.relative_to(ROOT))
