"""Which algorithm to take when none is named: from n, the number of agents, and what their links carry.

Where links carry messages, bytes and exchanges count; where all agents are in one process, seconds do.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.channels import Channel
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.linesearch import Fused
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.newton_seldom import NewtonSeldom
from fedshed.algorithms.pen import Pen
from fedshed.algorithms.qn_shed import QnShed
from fedshed.algorithms.shed import Shed

SMALL = 32  # up to here a packed Hessian is no larger than a few gradients with their envelope
LARGE = 1000  # beyond it n^2 numbers an agent are too many
FAST = 2000  # n^3 of a dense solve: beyond it Newton took longer than qn-shed in one process
MANY_SECANTS = 150  # of L-BFGS where nothing else tells the curvature: they cost no byte
MEMORY = 125_000_000  # numbers the Master may hold of all agents together: 1 GB


def choose(
    n: int, agents: int, channel: Channel | None, stateless: bool = False, one_process: bool = False
) -> tuple[Algorithm[Any], str]:
    """An algorithm, and one line that says which and why; PEN needs agents that remember their frame."""
    if channel is not None:
        why = "links with a budget of their own: each sends the eigenpairs it can"
        return replace(QnShed(), channel=channel), f"qn-shed: {why}"
    if n <= SMALL:
        return Newton(
            line_search=Fused()
        ), f"newton: with n = {n} a packed Hessian costs {4 * n * (n + 1)} bytes"
    if one_process:
        return _fastest(n, agents)
    if stateless:
        return QnShed(), f"qn-shed: with n = {n} agents that forget can still send the next eigenpairs"
    if n <= LARGE and agents * n * n <= MEMORY:
        return Pen(), f"pen: with n = {n} Newton's rounds at a fraction of its bytes, and the Master has room"
    return QnShed(), f"qn-shed: n = {n} and {agents} agents are too many for n^2 numbers an agent"


def choose_composite(n: int, channel: Channel | None = None) -> tuple[Algorithm[Any], str]:
    """An algorithm for a cost with an absolute penalty, and one line that says why."""
    if channel is not None:
        why = "links with a budget of their own, and an absolute penalty (l1) that has a step in SHED"
        return replace(Shed(), channel=channel), f"fib-shed: {why}"
    why = f"an absolute penalty (l1) needs a model of the curvature, with n = {n} the packed Hessian"
    return Newton(line_search=Fused()), f"newton: {why}"


def choose_summable(n: int) -> tuple[Algorithm[Any], str]:
    """An algorithm for protected mode, where only sums over the sites leave, and one line that says why."""
    if n <= SMALL:
        why = f"only sums leave the sites, and with n = {n} a packed Hessian has {n * (n + 1) // 2} numbers"
        return Newton(line_search=Fused()), f"newton: {why}"
    if n <= LARGE:
        why = f"only sums leave the sites, and with n = {n} a packed Hessian is asked for only now and then"
        return NewtonSeldom(line_search=Fused()), f"newton-seldom: {why}"
    why = f"only sums leave the sites, and with n = {n} packed Hessians are too large to be masked"
    return Lbfgs(memory=MANY_SECANTS, line_search=Fused()), f"lbfgs: {why}"


def _fastest(n: int, agents: int) -> tuple[Algorithm[Any], str]:
    """What ends soonest where a message costs nothing."""
    if n <= FAST and agents * n * (n + 1) // 2 <= MEMORY:
        why = f"all sites are in this process, where bytes cost nothing, and with n = {n} it takes least time"
        return Newton(line_search=Fused()), f"newton: {why}"
    why = (
        f"all sites are in this process, but n = {n} and {agents} agents make n x n Hessians slow or too many"
    )
    return QnShed(), f"qn-shed: {why}"
