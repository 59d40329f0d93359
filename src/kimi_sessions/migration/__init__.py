"""
Sessions from older and other places into a store of ours, and back: plan, apply, verify, report, rollback.

One file per old layout says what lies there (``flat``, ``folder``, ``share``, ``project``, ``flux``); ``plan`` decides
where it goes, ``apply`` copies it, ``verify`` proves the copy, ``report`` tells of it, ``rollback`` takes it away
again. ``relink`` is for stores whose projects moved. Sources are only read.
"""

from __future__ import annotations

from .apply import Progress, apply_plan
from .paths import PathMap, looks_like_windows, parse_pair
from .plan import Batch, Item, Plan, Status, plan_from_flux, plan_from_share, plan_to_share
from .relink import Relink, RelinkStep, apply_relink, plan_relink
from .report import report_of
from .rollback import Rollback, roll_back

__all__ = [
    "Batch",
    "Item",
    "PathMap",
    "Plan",
    "Progress",
    "Relink",
    "RelinkStep",
    "Rollback",
    "Status",
    "apply_plan",
    "apply_relink",
    "looks_like_windows",
    "parse_pair",
    "plan_from_flux",
    "plan_from_share",
    "plan_relink",
    "plan_to_share",
    "report_of",
    "roll_back",
]
