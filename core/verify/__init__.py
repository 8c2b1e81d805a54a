"""Verification: decides which drafted tokens are accepted, and draws the token that follows.

`rejection` is the rule that everything uses by default, for chains and trees; `other_rules` are the alternatives, and
`device` makes the same decisions without a read in between. A run enters through `core.rounds`; `verify` and
`verify_tree` are for callers outside, and check what they are given.
"""

from core.verify.rejection import residual, verify, verify_block, verify_tree

__all__ = ["residual", "verify", "verify_block", "verify_tree"]
