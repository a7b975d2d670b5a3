"""Measurements: rows of figures side by side, the promises about them, and the page made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bench_launchers import LAUNCHERS, RLAUNCH, Launcher

# A figure, or why there is none.
Cell = float | str
NOT_INSTALLED = "not installed"
NOT_MEASURED = "-"


@dataclass(frozen=True)
class Promise:
    """A promise and its limits for rlaunch's figure, in the row's unit."""

    name: str
    most: float | None = None
    least: float | None = None
    # So many times less than every rival's figure.
    times_less: float | None = None
    # So many times the bare figure at most.
    of_bare: float | None = None

    def __str__(self) -> str:
        limits = []
        if self.most is not None:
            limits.append(f"≤ {self.most:g}")
        if self.least is not None:
            limits.append(f"≥ {self.least:,g}" if self.least < 1e6 else f"≥ {self.least / 1e6:g} million")
        if self.times_less is not None:
            limits.append(f"{self.times_less:g} x less")
        if self.of_bare is not None:
            limits.append(f"≤ {self.of_bare:g} x bare")
        return f"{self.name}: {', '.join(limits)}"


@dataclass(frozen=True)
class Row:
    """One thing measured, of each launcher."""

    section: str
    what: str
    unit: str
    cells: Mapping[str, Cell]
    promise: Promise | None = None
    # The same without any launcher.
    bare: float | None = None

    def broken(self) -> Iterator[str]:
        """Every limit that rlaunch's figure is beyond, in words."""
        if self.promise is None:
            return
        for launcher in LAUNCHERS:
            if launcher.keeps_promises and launcher.name in self.cells:
                yield from self.broken_by(launcher, self.promise)

    def broken_by(self, own: Launcher, promise: Promise) -> Iterator[str]:
        """The same of one of rlaunch's command lines."""
        whose = "" if own is RLAUNCH else f" {own.title}"
        ours, about = self.cells[own.name], f"{promise.name}, {self.section}: {self.what}:{whose}"
        if isinstance(ours, str):
            yield f"{about} {ours}"
            return
        seen, most, least = amount(ours, self.unit), promise.most, promise.least
        if most is not None and ours > most:
            yield f"{about} {seen}, promised at most {amount(most, self.unit)}"
        if least is not None and ours < least:
            yield f"{about} {seen}, promised at least {amount(least, self.unit)}"
        if promise.of_bare is not None and self.bare is not None and ours > self.bare * promise.of_bare:
            yield f"{about} {ours / self.bare:.2f} times bare, promised at most {promise.of_bare:g} times"
        if promise.times_less is not None:
            for launcher in LAUNCHERS:
                theirs = self.cells.get(launcher.name)
                if launcher.is_rival and isinstance(theirs, float) and theirs < ours * promise.times_less:
                    yield (
                        f"{about} {theirs / ours:.1f} times less than {launcher.title}, "
                        f"promised {promise.times_less:g} times"
                    )

    def texts(self) -> list[str]:
        """A text a launcher; those of rivals, and of another commit, with their ratio to ours."""
        ours = self.cells.get(RLAUNCH.name)
        texts = []
        for launcher in LAUNCHERS:
            cell = self.cells.get(launcher.name)
            if cell is None:
                cell = NOT_MEASURED if launcher.version else NOT_INSTALLED
            text = cell if isinstance(cell, str) else amount(cell, self.unit)
            is_other = not launcher.keeps_promises
            if is_other and isinstance(cell, float) and isinstance(ours, float) and ours > 0:
                text += f" ({cell / ours:.3g} x)"
            texts.append(text)
        return texts

    @property
    def promise_text(self) -> str:
        if self.promise is None:
            return ""
        return f"{self.promise} {'BROKEN' if any(self.broken()) else 'kept'}"


def amount(figure: float, unit: str) -> str:
    """A figure in its unit, with no more digits than mean something."""
    whole = figure == int(figure) or abs(figure) >= 1000
    text = f"{figure:.0f}" if whole else f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.2f}"
    return f"{text} {unit}".rstrip()


@dataclass
class Figures:
    """All rows so far. Each is printed as it comes."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        named = [f"{launcher.title} {text}" for launcher, text in zip(LAUNCHERS, row.texts(), strict=True)]
        if row.bare is not None:
            named.append(f"bare {amount(row.bare, row.unit)}")
        head = f"{row.section}: {row.what}"
        print(
            f"{head:<64} {' | '.join(named)}" + (f"   [{row.promise_text}]" if row.promise_text else ""),
            flush=True,
        )

    def broken(self) -> list[str]:
        return [text for row in self.rows for text in row.broken()]

    def tables(self, titles: Mapping[str, str]) -> str:
        """All rows in Markdown, a table a section. `titles`: the text above the table of a section."""
        lines = []
        for section, title in titles.items():
            rows = [row for row in self.rows if row.section == section]
            if not rows:
                continue
            lines += ["", f"## {section}", "", title, ""]
            lines.append(line("", *(launcher.title for launcher in LAUNCHERS), "bare", "promise"))
            lines.append(line("---", *("---:" for _ in LAUNCHERS), "---:", "---"))
            for row in rows:
                bare = "" if row.bare is None else amount(row.bare, row.unit)
                lines.append(line(row.what, *row.texts(), bare, row.promise_text))
        return "\n".join(lines) + "\n"


def line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
