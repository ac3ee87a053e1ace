"""How much the estimate depends on one site: the estimate without it, by one Newton step or exactly."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from textwrap import fill

import numpy as np
from msgspec import Struct

from fedshed._utils.names import printable
from fedshed._utils.notebook import preformatted
from fedshed.inference.records import Numbers, numbers
from fedshed.inference.result import Inference
from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.linalg.solve import unit_diagonal
from fedshed.protocol.conversation import Problem
from fedshed.solve.inspection import Inspected

WIDTH = 80
MOST_NUMBERS = 200_000  # of all sites together that are kept
MOST_WORK = 2e9  # sites times parameters^3: more would take longer than the fit
SINGULAR = 1e-6  # of a diagonal of the Cholesky factor, in units where that of the Hessian is 1


def one_step(problem: Problem, theta: Vector, sites: Mapping[str, Inspected]) -> dict[str, Numbers]:
    """theta - theta_(-i) for each site i, approximated by one Newton step from theta without its rows.

    With W_i the weight of a site, g_i and H_i its gradient and Hessian at theta, and l2 the ridge, it is
    H_(-i)^-1 (g - W_i (g_i + l2 theta)), where g is the gradient of all, nearly 0, and H_(-i) the Hessian of
    all other sites, ridge included (Pregibon 1981, Annals of Statistics 9, 705, for rows).  It is exact for
    least squares.  A site without which the model has no estimate gets no numbers.
    """
    n = problem.n
    if len(sites) < 2 or len(sites) * n > MOST_NUMBERS or len(sites) * n**3 > MOST_WORK:
        return {}
    ridge, zero = np.diag(problem.l2), (np.zeros((n, n)), np.zeros(n))
    own = {
        i: (s.weight * (unpack(s.hessian, n) + ridge), s.weight * (s.gradient + problem.l2 * theta))
        for i, s in sorted(sites.items())
    }
    H = sum((one for one, _ in own.values()), zero[0])
    g = sum((one for _, one in own.values()), zero[1])
    return {i: _solved(H - H_i, g - g_i) for i, (H_i, g_i) in own.items()}


def _solved(H: Matrix, g: Vector) -> Numbers:
    """H^-1 g; nothing if H is singular up to rounding."""
    scale, unit = unit_diagonal(H)
    try:
        factor = np.linalg.cholesky(unit)
    except np.linalg.LinAlgError:
        return ()
    if np.diag(factor).min(initial=1.0) < SINGULAR:
        return ()
    return numbers(scale * np.linalg.solve(unit, scale * g))


def influence_of(it: Inference) -> Influence | None:
    """The influence of the sites of an inference; None if it is not known."""
    if not it.influence or it.model_covariance is None:
        return None
    without = {i: "the others have no unique estimate" for i in it.influence if not it.influence[i]}
    changes = {i: moved for i, moved in it.influence.items() if moved}
    return Influence(it.names, it.coefficients, numbers(it.std_err()), changes, without)


class Influence(Struct, frozen=True):
    """The influence of each site: the estimate from all sites minus the estimate without the site.

    Attributes
    ----------
    names : tuple of str
        The names of the coefficients.
    coefficients, std_err : tuple of float
        The estimate from all sites, and its standard errors.
    changes : dict
        For each site the change of each coefficient that it causes, in the units of the table.
    without : dict
        The sites without which there is no estimate, and the reasons.
    exact : bool
        Whether the model was fitted again without each site; otherwise one Newton step approximates this.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> model = fedshed.fit({"north": north, "south": south}, fedshed.Study(family="linear", target="y"))
    >>> sorted(model.influence().changes)
    ['north', 'south']
    """

    names: tuple[str, ...]
    coefficients: Numbers
    std_err: Numbers
    changes: dict[str, Numbers]
    without: dict[str, str] = {}
    exact: bool = False

    def standardised(self, site: str) -> Vector:
        """The changes by one site, in standard errors of the estimate from all sites.

        Parameters
        ----------
        site : str
            The name of the site.

        Returns
        -------
        ndarray
            One number per coefficient; NaN if the coefficient has no standard error.
        """
        changes, errors = np.array(self.changes[site]), np.array(self.std_err)
        return np.asarray(np.divide(changes, errors, out=np.full(len(errors), np.nan), where=errors > 0))

    def largest(self) -> list[tuple[str, str, float, float]]:
        """For each site the coefficient that it changes most; the most influential site comes first.

        Returns
        -------
        list of tuple
            The site, the coefficient, the change, and the change in standard errors.
        """
        found = []
        for site in self.changes:
            moved = np.nan_to_num(self.standardised(site))
            j = int(np.abs(moved).argmax())
            found.append((site, self.names[j], self.changes[site][j], float(moved[j])))
        return sorted(found, key=lambda each: (-abs(each[3]), each[0]))

    def to_csv(self) -> str:
        """The estimate from all sites, without the site, and the change, per site and coefficient, as CSV."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("site", "coefficient", "estimate", "without_site", "change", "standard_errors"))
        for site in self.changes:
            rows = zip(
                self.names, self.coefficients, self.changes[site], self.standardised(site), strict=True
            )
            for name, estimate, change, moved in rows:
                writer.writerow([site, name, *map(repr, (estimate, estimate - change, change, float(moved)))])
        return file.getvalue()

    def in_words(self) -> str | None:
        """The most influential site, in a sentence."""
        if not self.changes:
            return None
        site, name, _, moved = self.largest()[0]
        way = "smaller" if moved > 0 else "larger"
        return (
            f"Without site {site!r} {name} would be {abs(moved):.2f} standard errors {way}; no other site "
            "changes a coefficient more (one Newton step; model.influence() has all sites)."
        )

    def __str__(self) -> str:
        how = "fitted again without each site" if self.exact else "one Newton step without each site"
        lines = [f"Influence of the sites ({how})".center(WIDTH).rstrip(), "=" * WIDTH]
        lines.append(f"{'site':<24}{'moves most':<24}{'by':>14}{'standard errors':>18}")
        lines.append("-" * WIDTH)
        for site, name, change, moved in self.largest():
            lines.append(f"{printable(site)[:23]:<24}{printable(name)[:23]:<24}{change:>14.6g}{moved:>18.3f}")
        reasons = [f"Site {site!r} cannot be left out: {why}." for site, why in self.without.items()]
        said = (fill(printable(why), WIDTH) for why in reasons)
        return "\n".join([*lines, "=" * WIDTH, *said])

    def _repr_html_(self) -> str:
        return preformatted(str(self))
