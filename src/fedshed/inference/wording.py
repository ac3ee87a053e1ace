"""How numbers are written in summaries and in sentences about them."""

from __future__ import annotations


def plain(value: float | None) -> str:
    """A number with five digits, or eight where it is large; n/a where there is none."""
    return "n/a" if value is None else f"{value:.8g}" if abs(value) >= 100 else f"{value:.5g}"


def which_weights(what: str, rows: float, weight: float) -> str:
    """The question for the type of weights that may count rows, with both meanings."""
    return (
        f"the weights ({what}) may be precisions or count rows: they sum to {weight:,.0f} over {rows:,.0f} "
        "rows; say what they mean (weight_type, --weight-type): with 'frequency' a row counts as many times "
        f"as its weight ({weight:,.0f} observations), with 'precision' the variance of a row is divided by "
        f"its weight ({rows:,.0f} observations)"
    )
