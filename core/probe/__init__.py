"""Whether a draft suits a target, told in seconds: both read a text that is there, and a few forwards are timed.

Nothing is drafted for a text: at each place of one that exists already, both models' laws are compared, which is what
acceptance hangs on (1 - TV, Leviathan et al., 2211.17192, corollary 3.6).
"""
