"""The errors that Headgate raises, in families by what the caller can do about them.

An error has a sentence (what happened, why, and the next step), a stable `code`, and the facts of
the sentence for a program.
"""

# ruff: noqa: F403  (the modules export all their errors; a list here would repeat them)

from headgate.errors.conflicts import *
from headgate.errors.denied import *
from headgate.errors.failed import *
from headgate.errors.families import *
from headgate.errors.invalid import *
from headgate.errors.not_found import *
from headgate.errors.rows import *
from headgate.errors.unavailable import *
