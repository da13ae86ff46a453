"""Adapts the documentation, which is also read in the repository, to the site. Files outside docs/ that a page links to
become part of the site, pages with commands say how these are tested, and the settings page is made from the settings'
definitions."""

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\))")
BLOCK = re.compile(r"^```(?:sh|bash|python)?\n.*?^```", re.DOTALL | re.MULTILINE)
TESTED = re.compile(r"^Tests run the commands and the Python of the pages, .*?(?=\n\n)", re.DOTALL | re.MULTILINE)
ALSO = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/fake_cuda/README.md")  # pages from outside docs/


def on_files(files: Files, config: MkDocsConfig) -> Files:
    sys.path.insert(0, str(ROOT))
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    named = {target for page in [*pages, *(ROOT / name for name in ALSO)] for target in outside(page)}
    for path in sorted({*named, *(ROOT / name for name in ALSO)}):
        if path.is_file():
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    files.append(File.generated(config, "settings.md", content=settings_page()))
    return files


def outside(page: Path) -> set[Path]:
    """Returns the files of the repository outside docs/ that a page links to."""
    found = {(page.parent / match[2]).resolve() for match in LINK.finditer(page.read_text())}
    return {path for path in found if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs")}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links for the site, whose root has the pages of docs/ next to other files of the repository."""
    if page.file.abs_src_path is None:
        return markdown
    folder = Path(page.file.abs_src_path).parent

    def rewrite(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        inside = target.relative_to(ROOT / "docs") if target.is_relative_to(ROOT / "docs") else target.relative_to(ROOT)
        if files.get_file_from_path(str(inside)) is None and target.exists():
            return f"](#{'' if target.is_dir() else match[2]}{match[4]}"  # the site does not show folders
        up = "../" * (len(Path(page.file.src_uri).parts) - 1)
        return f"{match[1]}{up}{inside}{match[3] or ''}{match[4]}"

    text = LINK.sub(rewrite, markdown)
    if not BLOCK.search(text):
        return text
    rule = str(*TESTED.findall((ROOT / "CONTRIBUTING.md").read_text()))
    return text + '\n\n??? note "How this page is tested"\n    ' + rule.replace("\n", "\n    ") + "\n"


def settings_page() -> str:
    """Returns tables of all settings, made from the same definitions as `accel-rl train --help-all`."""
    from accel_rl.config.presets import preset_names
    from accel_rl.settings.names import RUN_GROUPS
    from accel_rl.settings.resolve import find_algo

    lines = ["# Settings", "", "Each is a flag of `accel-rl train`, a name in a `--config` file, and an argument of"]
    lines += ["`accel_rl.train`. Presets (`accel-rl list presets`) replace the defaults here.", ""]
    groups: dict[str, Any] = {f"Settings of {title}": group for title, group in RUN_GROUPS.items()}
    for name in preset_names():
        algo_class, _ = find_algo(name)
        groups.setdefault(f"Settings of `{algo_class.__name__}`", algo_class.Settings)
    for title, group in groups.items():
        lines += [f"## {title}", "", "| setting | default | |", "|---|---|---|"]
        for each in fields(group):
            default = each.default_factory() if callable(each.default_factory) else each.default
            text = str(each.metadata.get("help", "")).replace("|", "\\|")
            lines.append(f"| `{each.name}` | `{default}` | {text} |")
        lines.append("")
    return "\n".join(lines)
