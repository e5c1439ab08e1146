"""The truth table of the trigger rules, as produced by Airflow 3.3.2."""

from __future__ import annotations

from aioflow.core.tasks.trigger_rules import Verdict
from aioflow.model.states import TriggerRule

__all__ = ("RULES", "TABLE", "VERDICTS", "column")

RULES = {
    "as": TriggerRule.ALL_SUCCESS,
    "af": TriggerRule.ALL_FAILED,
    "ad": TriggerRule.ALL_DONE,
    "adm": TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
    "os": TriggerRule.ONE_SUCCESS,
    "of": TriggerRule.ONE_FAILED,
    "od": TriggerRule.ONE_DONE,
    "nf": TriggerRule.NONE_FAILED,
    "ns": TriggerRule.NONE_SKIPPED,
    "al": TriggerRule.ALWAYS,
    "nfm": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    "ask": TriggerRule.ALL_SKIPPED,
}
VERDICTS = {
    "R": Verdict.RUN,
    ".": Verdict.WAIT,
    "s": Verdict.SKIP,
    "u": Verdict.UPSTREAM_FAILED,
}

# Parent states: S success, F failed, K skipped, U upstream_failed, p pending.
TABLE = """
      as  af  ad  adm os  of  od  nf  ns  al  nfm ask
S     R   s   R   R   R   s   R   R   R   R   R   s
F     u   R   R   u   u   R   R   u   R   R   u   s
K     s   s   R   s   s   s   s   R   s   R   s   R
U     u   R   R   u   u   R   s   u   R   R   u   s
p     .   .   .   .   .   .   .   .   .   R   .   .
SS    R   s   R   R   R   s   R   R   R   R   R   s
SF    u   s   R   R   R   R   R   u   R   R   u   s
SK    s   s   R   s   R   s   R   R   s   R   R   s
SU    u   s   R   R   R   R   R   u   R   R   u   s
Sp    .   s   .   .   R   .   R   .   .   R   .   s
FF    u   R   R   u   u   R   R   u   R   R   u   s
FK    u   s   R   s   u   R   R   u   s   R   u   s
FU    u   R   R   u   u   R   R   u   R   R   u   s
Fp    u   .   .   .   .   R   R   u   .   R   u   s
KK    s   s   R   s   s   s   s   R   s   R   s   R
KU    u   s   R   s   u   R   s   u   s   R   u   s
Kp    s   s   .   s   .   .   .   .   s   R   .   .
UU    u   R   R   u   u   R   s   u   R   R   u   s
Up    u   .   .   .   .   R   .   u   .   R   u   s
pp    .   .   .   .   .   .   .   .   .   R   .   .
SSS   R   s   R   R   R   s   R   R   R   R   R   s
SSF   u   s   R   R   R   R   R   u   R   R   u   s
SSK   s   s   R   s   R   s   R   R   s   R   R   s
SSU   u   s   R   R   R   R   R   u   R   R   u   s
SSp   .   s   .   .   R   .   R   .   .   R   .   s
SFF   u   s   R   R   R   R   R   u   R   R   u   s
SFK   u   s   R   s   R   R   R   u   s   R   u   s
SFU   u   s   R   R   R   R   R   u   R   R   u   s
SFp   u   s   .   .   R   R   R   u   .   R   u   s
SKK   s   s   R   s   R   s   R   R   s   R   R   s
SKU   u   s   R   s   R   R   R   u   s   R   u   s
SKp   s   s   .   s   R   .   R   .   s   R   .   s
SUU   u   s   R   R   R   R   R   u   R   R   u   s
SUp   u   s   .   .   R   R   R   u   .   R   u   s
Spp   .   s   .   .   R   .   R   .   .   R   .   s
FFF   u   R   R   u   u   R   R   u   R   R   u   s
FFK   u   s   R   s   u   R   R   u   s   R   u   s
FFU   u   R   R   u   u   R   R   u   R   R   u   s
FFp   u   .   .   .   .   R   R   u   .   R   u   s
FKK   u   s   R   s   u   R   R   u   s   R   u   s
FKU   u   s   R   s   u   R   R   u   s   R   u   s
FKp   u   s   .   s   .   R   R   u   s   R   u   s
FUU   u   R   R   u   u   R   R   u   R   R   u   s
FUp   u   .   .   .   .   R   R   u   .   R   u   s
Fpp   u   .   .   .   .   R   R   u   .   R   u   s
KKK   s   s   R   s   s   s   s   R   s   R   s   R
KKU   u   s   R   s   u   R   s   u   s   R   u   s
KKp   s   s   .   s   .   .   .   .   s   R   .   .
KUU   u   s   R   s   u   R   s   u   s   R   u   s
KUp   u   s   .   s   .   R   .   u   s   R   u   s
Kpp   s   s   .   s   .   .   .   .   s   R   .   .
UUU   u   R   R   u   u   R   s   u   R   R   u   s
UUp   u   .   .   .   .   R   .   u   .   R   u   s
Upp   u   .   .   .   .   R   .   u   .   R   u   s
ppp   .   .   .   .   .   .   .   .   .   R   .   .
"""


def column(rule: TriggerRule) -> dict[str, Verdict]:
    """Return the decision of a rule, for each row of parents."""
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    at = [RULES[name] for name in head].index(rule)
    return {parents: VERDICTS[outcomes[at]] for parents, *outcomes in rows}
