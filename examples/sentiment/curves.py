"""Loss curves as a table and as a picture."""

from itertools import cycle

from fitting import Point

COLOURS = [f"C{i}" for i in range(10)]


def matplotlib_figure():
    """The class that draws without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("error: --plot needs matplotlib: pip install matplotlib") from None
    return Figure


def write_curves(path, runs):
    """A line for each validation of each run."""
    with open(path, "w", encoding="utf-8") as file:
        print("run", *Point._fields, sep=",", file=file)
        for run in runs:
            for step, *values in run.curve:
                print(run.label, step, *(f"{value:.5f}" for value in values), sep=",", file=file)


def plot_curves(path, runs, figure_class):
    """Training dashed; validation solid, with a dot where it is least: from there it turns up."""
    figure = figure_class(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for run, colour in zip(runs, cycle(COLOURS)):
        _draw(axes, run, colour)
    axes.set(xlabel="step", ylabel="cross-entropy", title="dashed: training; solid: validation")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)


def _draw(axes, run, colour):
    step, train, validation, _ = zip(*run.curve, strict=True)
    axes.plot(step, train, "--", color=colour, linewidth=1)
    least = run.best
    label = f"{run.label}: validation is least at step {least.step}"
    axes.plot(step, validation, color=colour, label=label)
    axes.plot(least.step, least.validation_loss, "o", color=colour)
