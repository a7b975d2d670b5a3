"""Writes the repository's address into what PyPI shows: the links of README.md, and [project.urls].

    python tests/wheels/project_urls.py https://github.com/OWNER/NAME

PyPI has the README alone, so its relative links lead nowhere there. docs/releasing.md says when to run this.
An earlier address is replaced; other absolute links stay as they are.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of Markdown, and of pictures in HTML.
LINK = re.compile(r"""(\]\(|\bsrc(?:set)?=")(?![a-z]+:|#)([^)\s"]+)""")
SECTION = re.compile(r"^\[project\.urls\]\n(?:.+\n)*\n", re.M)
URLS = """[project.urls]
Repository = "{address}"
Documentation = "https://{owner}.github.io/{name}/"
Changelog = "{address}/blob/main/CHANGELOG.md"
Issues = "{address}/issues"

"""


def absolute(text: str, address: str) -> str:
    """The text with links into the repository's main branch."""

    def point(link: re.Match[str]) -> str:
        kind = "raw" if "src" in link[1] else "blob"
        return f"{link[1]}{address}/{kind}/main/{link[2]}"

    return LINK.sub(point, text)


def with_urls(project: str, address: str) -> str:
    """pyproject.toml with the section, before the scripts'."""
    owner, name = address.split("/")[-2:]
    urls = URLS.format(address=address, owner=owner.lower(), name=name)
    head, scripts, rest = SECTION.sub("", project).partition("[project.scripts]\n")
    return f"{head}{urls}{scripts}{rest}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="of the repository at GitHub")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where the two files are")
    given = parser.parse_args()
    if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", given.address):
        parser.error(f"{given.address} is not https://github.com/OWNER/NAME")
    readme, project = given.folder / "README.md", given.folder / "pyproject.toml"
    links = readme.read_text()
    if before := re.search(r'^Repository = "(.+)"$', project.read_text(), re.M):
        links = links.replace(f"{before[1]}/", f"{given.address}/")
    readme.write_text(absolute(links, given.address))
    project.write_text(with_urls(project.read_text(), given.address))


if __name__ == "__main__":
    main()
