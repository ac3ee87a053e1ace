"""Coefficients of several classes against a reference class, or summing to 0 over the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.inference.records import ClassCoding
from fedshed.inference.result import Inference
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.multinomial import contrasts


def per_class(
    inference: Inference, classes: Sequence[Any] | None = None, columns: Sequence[str] | None = None
) -> Inference:
    """The coefficients of all K classes, which sum to 0 over the classes.

    The exponential of such a coefficient compares the odds of a class with the geometric mean of the odds of
    all classes; it is not an odds ratio between two classes.

    Parameters
    ----------
    inference : Inference
        The inference of a fitted multinomial model, or that for the K - 1 contrasts, which `infer` gives.
    classes : sequence, optional
        The K classes; needed for contrasts only.
    columns : sequence of str, optional
        The names of the columns, with the intercept; needed for contrasts only.

    Returns
    -------
    Inference
        The inference for the coefficients of each class.
    """
    coding, B = _known(inference, classes, columns)
    return _coded(inference, coding, B - B.mean(axis=0), None)


def reference_class(
    inference: Inference, classes: Sequence[Any] | None = None, columns: Sequence[str] | None = None,
    reference: Any = None,
) -> Inference:  # fmt: skip
    """The log odds of each class against a reference class, as in R's nnet::multinom and Stata's mlogit.

    Parameters
    ----------
    inference : Inference
        The inference of a fitted multinomial model, or that for the K - 1 contrasts, which `infer` gives.
    classes : sequence, optional
        The K classes; needed for contrasts only.
    columns : sequence of str, optional
        The names of the columns, with the intercept; needed for contrasts only.
    reference : class, optional
        The reference class. Default: the first class.

    Returns
    -------
    Inference
        The inference for the coefficients of the other classes.

    Raises
    ------
    ConfigError
        If the model has no several classes, or the reference class is none of them.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.inference import reference_class
    >>> votes = {"x": [0, 1, 2, 3, 4, 5, 6, 7], "vote": list("NYNAYANY")}
    >>> model = fedshed.fit({"north": votes}, fedshed.Study(family="multinomial", target="vote"))
    >>> model.inference.names
    ('x [N]', 'intercept [N]', 'x [Y]', 'intercept [Y]')
    >>> reference_class(model.inference, reference="Y").names
    ('x [A]', 'intercept [A]', 'x [N]', 'intercept [N]')
    """
    coding, B = _known(inference, classes, columns)
    r = 0 if reference is None else _place(coding, reference)
    return _coded(inference, coding, np.delete(B - B[r], r, axis=0), r)


def coded_as(inference: Inference, reference: Any, sum_to_zero: bool) -> Inference:
    """The inference of a fitted model as it is, against another reference class, or summing to 0."""
    if sum_to_zero and reference is not None:
        raise ConfigError("give reference_class or sum_to_zero, not both")
    if sum_to_zero:
        return per_class(inference)
    return inference if reference is None else reference_class(inference, reference=reference)


def class_coefficients(inference: Inference) -> Matrix:
    """Coefficients of all K classes, one row each, up to a vector that is added to every row."""
    coding, B = _known(inference, None, None)
    return np.asarray(B @ inference.coef.reshape(B.shape[1], len(coding.columns)))


def _known(
    inference: Inference, classes: Sequence[Any] | None, columns: Sequence[str] | None
) -> tuple[ClassCoding, Matrix]:
    """The classes, and B: the coefficients of all classes are B times those of the inference.

    They are so up to a vector that is added to every class, which changes no probability.
    """
    coding = inference.coding
    if coding is None:
        if inference.loss != "multinomial" or classes is None or columns is None:
            raise ConfigError(
                "a reference class needs a fitted multinomial model, or the contrasts with their classes and "
                "columns; family = 'multinomial' fits one"
            )
        return ClassCoding(tuple(classes), tuple(columns), None), contrasts(len(classes))
    if classes is not None and [*map(str, classes)] != [*map(str, coding.classes)]:
        raise ConfigError(
            f"the classes of this model are {', '.join(map(str, coding.classes))}, in this order; leave out "
            "classes"
        )
    one_each = np.eye(len(coding.classes))
    return coding, one_each if coding.reference is None else np.delete(one_each, coding.reference, axis=1)


def _place(coding: ClassCoding, reference: Any) -> int:
    """The place of a class, which is the same as a value and as text."""
    names = [str(label) for label in coding.classes]
    if str(reference) not in names:
        raise ConfigError(f"there is no class {reference!r}{closest(str(reference), names)}")
    return names.index(str(reference))


def _coded(inference: Inference, coding: ClassCoding, C: Matrix, reference: int | None) -> Inference:
    shown = [label for k, label in enumerate(coding.classes) if k != reference]
    names = [f"{column} [{label}]" for label in shown for column in coding.columns]
    A: Matrix = np.kron(C, np.eye(len(coding.columns))).astype(np.float64)
    return replace(inference.transformed(A, names), coding=replace(coding, reference=reference))
