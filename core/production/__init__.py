"""A chosen pair, method and K as configurations that can be pasted into the engines that serve models.

Each engine has a module of its own, which says what differs there and which of its sources that was checked against.
Flags change: a configuration names the day it was checked on, and nothing here is guessed.
"""

from core.production.choice import Choice, choice_from_log, choice_from_request
from core.production.projects import PROJECTS, Configuration, Project, configuration, get_project

__all__ = [
    "PROJECTS",
    "Choice",
    "Configuration",
    "Project",
    "choice_from_log",
    "choice_from_request",
    "configuration",
    "get_project",
]
