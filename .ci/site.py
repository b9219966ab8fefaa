"""What the site has beside docs/: the README as its start page, the changes, and a page for each folder of deploy/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
BESIDE = ("Dockerfile", "LICENSE")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that are elsewhere in the repository."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=_as_page((ROOT / name).read_text(encoding="utf-8"))))
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for folder in sorted(path for path in (ROOT / "docs" / "deploy").rglob("*") if path.is_dir()):
        name = folder.relative_to(ROOT / "docs")
        files.append(File.generated(config, f"{name}/index.md", content=_files_of(folder)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to files of the repository to their pages."""
    if page.file.src_uri in PAGES.values():
        return markdown
    for name, target in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({target}")
    return re.sub(r"\]\((deploy/[\w/-]+)\)", r"](\1/index.md)", markdown)


def _as_page(text: str) -> str:
    """Return a text of the top of the repository with links as a page has them."""
    text = re.sub(r"\]\((?:\./)?docs/", "](", text)
    text = re.sub(r"\[([^\]]+)\]\(tests/[^)]*\)", r"\1", text)  # which are not on the site
    for name, target in PAGES.items():
        text = text.replace(f"]({name}", f"]({target}")
    return text


def _files_of(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    parts = [f"## {path.relative_to(folder)}\n\n~~~~\n{path.read_text(encoding='utf-8')}\n~~~~" for path in files]
    return "\n\n".join((f"# {folder.name}", *parts))
