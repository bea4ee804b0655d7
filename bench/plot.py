"""Draws a report: `python plot.py report.json out.png`.

Runs in the benchmark's own environment, which has matplotlib and not the product.
"""

import json
import sys
from pathlib import Path

import matplotlib  # type: ignore[import-not-found]

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # type: ignore[import-not-found]

# Paths that are drawn side by side: Longshore's, the database's, and those of the peers for the same work.
PANELS = {
    "enqueue, one per call": ("enqueue_1", "insert_1", "enqueue_single"),
    "enqueue, in bulk": ("enqueue_100", "enqueue_1000", "enqueue_1000_mixed", "enqueue_bulk"),
    "drain, one job per call": ("claim_1_complete_1", "claim_1_carrying", "drain_default"),
    "drain, in batches": ("claim_100_settle_100", "claim_100_carrying", "drain_tuned"),
    "like for like: enqueue, 32 callers": ("like_single",),
    "like for like: drain, 32 callers": ("like_drain",),
}
OURS, LIMIT, POSTGRES, BEYOND = "#1b6ca8", "#7a7a7a", "#e08e45", "#b9b9d6"

Row = dict[str, "str | float | bool"]


def main(source: Path, target: Path) -> None:
    report = json.loads(source.read_text())
    figure, axes = plt.subplots(3, 2, figsize=(15, 14))
    for axis, (title, paths) in zip(axes.flat, PANELS.items(), strict=True):
        rows = sorted((row for row in report["rows"] if row["path"] in paths), key=lambda row: row["rate"])
        draw(axis, title, rows)
    machine = report["machine"]
    figure.suptitle(
        f"Longshore, {report['date']}: jobs per second on {machine['cores']} cores, "
        f"{machine['cpu']}, {machine['memory']}"
    )
    figure.text(
        0.5,
        0.005,
        "median, min to max of all rounds · blue: Longshore over HTTP · grey: the database alone · "
        "orange: Postgres peers · violet: others",
        ha="center",
    )
    figure.tight_layout(rect=(0, 0.015, 1, 0.99))
    figure.savefig(target, dpi=110)


def draw(axis: "matplotlib.axes.Axes", title: str, rows: list[Row]) -> None:
    names = [f"{row['contender']} · {row['path']}: {row['rate']:,.0f}" for row in rows]
    rates = [float(row["rate"]) for row in rows]
    below = [float(row["rate"]) - float(row["least"]) for row in rows]
    above = [float(row["most"]) - float(row["rate"]) for row in rows]
    axis.barh(names, rates, xerr=[below, above], color=[colour(row) for row in rows], capsize=3)
    axis.set_title(title)
    axis.set_xlabel("jobs/s")


def colour(row: Row) -> str:
    name = str(row["contender"])
    if name.startswith("ours-"):
        return OURS
    return LIMIT if name == "database" else POSTGRES if row["postgres"] else BEYOND


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
