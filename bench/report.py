"""Markdown of a run, and the comparison of two."""

import statistics

from goals import (
    GOALS,
    geometric_mean,
    name,
    over_best,
    over_torch,
    own_label,
    ratio,
    share_of_peak,
)

NOTABLE = 0.1  # change that a comparison marks
TITLES = {
    "inference": "Inference",
    "training": "Training: forward, and backward to weights, input and initial state",
    "step": "One step from Python, in µs",
    "ragged": "Training on ragged sequences (mean length 0.9 T)",
    "resets": "Training with 5 % resets",
    "variants": "Other dtypes, levels and forms, training",
}


def table(header, lines):
    """A markdown table; columns in which every cell is empty are left out."""
    kept = [i for i in range(len(header)) if any(line[i] for line in lines)]
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row[i] for i in kept) + " |" for row in rows)


def _text(value, pattern="{:.2f}"):
    return "" if value is None else pattern.format(value)


def _time(row, label):
    """Time, how many times ours that is, and among variants the share of its own peak."""
    if label not in row["ms"]:
        return ""
    parts = []
    if label != own_label(row) and label != "frozen":
        parts.append(f"{ratio(row, label):.2f}x")
    if row["work"] == "variants":
        parts.append(_text(share_of_peak(row, label), "{:.0%}"))
    parts = [part for part in parts if part]
    time = row["ms"][label] * (1e3 if row["work"] == "step" else 1)
    return f"{time:.3g}" + (f" ({', '.join(parts)})" if parts else "")


def _means(rows, labels):
    """One line for each cell: geometric means of the ratios."""
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        own = [row for row in rows if row["cell"] == cell]
        means = [
            [value for row in own if (value := function(row)) is not None]
            for function in (over_torch, over_best)
        ]
        texts = [_text(geometric_mean(values) if values else None) for values in means]
        lines.append([cell, "geometric mean", *[""] * len(labels), *texts, "", ""])
    return lines


def times_table(rows):
    """Times of everything that took part, with ratios."""
    labels = list(dict.fromkeys(label for row in rows for label in row["ms"]))
    lines = []
    for row in rows:
        own = row["ms"][own_label(row)]
        lines.append(
            [
                row["cell"],
                name(row),
                *(_time(row, label) for label in labels),
                _text(over_torch(row)),
                _text(over_best(row)),
                f"{1e3 * row['gflop'] / own:.0f}",
                _text(share_of_peak(row), "{:.0%}"),
            ]
        )
    header = ["cell", "T,B,I,H", *labels, "torch/ours", "best/ours", "GFLOP/s", "of peak"]
    comparable = any(over_best(row) is not None for row in rows)
    return table(header, lines + (_means(rows, labels) if comparable and len(rows) > 1 else []))


def phases_table(rows):
    """Milliseconds of each phase, and its share."""
    labels = list(dict.fromkeys(phase for row in rows for phase in row["phases"]))
    lines = []
    for row in rows:
        total = sum(row["phases"].values())
        cells = [
            f"{row['phases'][x]:.3g} ({row['phases'][x] / total:.0%})" if x in row["phases"] else ""
            for x in labels
        ]
        lines.append([row["cell"], name(row), row["of"], *cells])
    return table(["cell", "T,B,I,H", "", *labels], lines)


def odd_table(rows):
    """Time over the time at H rounded up to a multiple of 16, by H and B."""
    batches = sorted({row["shape"][1] for row in rows})
    lines = []
    for cell, hidden in dict.fromkeys((row["cell"], row["shape"][3]) for row in rows):
        found = {
            row["shape"][1]: f"{1 / ratio(row, 'rounded up'):.2f}"
            for row in rows
            if (row["cell"], row["shape"][3]) == (cell, hidden)
        }
        lines.append([cell, str(hidden), *(found.get(b, "") for b in batches)])
    return table(["cell", "H", *(f"B = {b}" for b in batches)], lines)


def goals_table(rows):
    lines = [
        line
        for goal in GOALS
        for threads in sorted({row["threads"] for row in rows})
        if (line := goal.line(rows, threads)) is not None
    ]
    header = ["goal", "threads", "worst", "where", "each", "geometric mean", "bound", "met"]
    return table(header, lines)


def progress(row):
    """One line about a row that has been measured."""
    times = ", ".join(f"{k} {v:.3g}" for k, v in row.get("phases", row["ms"]).items())
    disturbed = f", {row['disturbed']:.0%} disturbed" if row.get("disturbed") else ""
    what = f"{row['work']} {row['cell']} {name(row)} x{row['threads']}"
    return f"{what}: {times} ms{disturbed}"


def _import_text(row):
    return (
        f"Importing takes {row['ms']['rnnkern']:.1f} ms beyond NumPy; "
        f"the installed package has {row['megabytes']:.2f} MB."
    )


def markdown(run):
    """All tables of a run."""
    versions = ", ".join(f"{k} {v or 'not installed'}" for k, v in run["versions"].items())
    variables = [f"{k}={v}" for k, v in run["environment"].items()]
    machine = [run["cpu"], f"{run['cpus']} CPUs", run["level"], *variables]
    parts = [
        f"{', '.join(machine)}; commit {run['commit']}; {run['date']}; {versions}. "
        "Medians in ms, taken in turn; in brackets the time divided by ours."
    ]
    rows = run["rows"]
    disturbed = [row["disturbed"] for row in rows if "disturbed" in row]
    if disturbed and max(disturbed) > NOTABLE:
        parts.append(
            f"The machine was busy: in {statistics.fmean(disturbed):.0%} of the "
            "samples another process took a CPU. Ratios of more than one thread mean little then."
        )
    groups = dict.fromkeys((row["work"], row["threads"]) for row in rows)
    for work, threads in groups:
        found = [row for row in rows if (row["work"], row["threads"]) == (work, threads)]
        count = f"{threads} thread" + "s" * (threads > 1)
        if work == "phases":
            parts += [f"### Time of each phase, {count}", phases_table(found)]
        elif work == "odd":
            parts += [f"### Odd sizes over H rounded up, {count}", odd_table(found)]
        elif work == "import":
            parts.append(_import_text(found[0]))
        else:
            parts += [f"### {TITLES[work]}, {count}", times_table(found)]
    if rows:
        parts += ["### Goals", goals_table(rows)]
    return "\n\n".join(parts)


def _key(row):
    return row["work"], row.get("of", ""), row["cell"], tuple(row["shape"]), row["threads"]


def _normalised(row, label):
    """Milliseconds times the peak measured beside it: a slower clock stretches one, shrinks two."""
    return row["ms"][label] * row.get("peaks", {}).get(label, 1)


def difference(old, new):
    """New time over old for each of rnnkern's times that both runs have, at equal peak."""
    before = {_key(row): row for row in old["rows"]}
    lines = []
    for row in new["rows"]:
        other = before.get(_key(row))
        if other is None or row["work"] in ("phases", "odd"):
            continue
        for label in row["ms"]:
            if label not in other["ms"] or (label not in row["peaks"] and row["peaks"]):
                continue
            change = _normalised(row, label) / _normalised(other, label)
            mark = "" if abs(change - 1) <= NOTABLE else ("**slower**" if change > 1 else "faster")
            times = [f"{r['ms'][label]:.3g}" for r in (other, row)]
            description = [row["work"], row["cell"], name(row), str(row["threads"]), label]
            lines.append([*description, *times, f"{change:.2f}", mark])
    header = ["work", "cell", "T,B,I,H", "threads", "", "old ms", "new ms", "new/old", ""]
    notes = [
        f"{key}: {old[key]} → {new[key]}"
        for key in ("cpu", "level", "commit", "environment", "versions")
        if old[key] != new[key]
    ]
    return "\n\n".join(
        [
            *notes,
            "New time over old, each relative to the FMA peak measured beside it; "
            f"changes over {NOTABLE:.0%} are marked.",
            table(header, lines),
        ]
    )
