"""How long each allocation lived and who made it."""

from tenure.lifetimes.categories import ORDER, Category, categorise
from tenure.lifetimes.growth import GrowingSite, Growth, find_growth
from tenure.lifetimes.sites import NO_FRAMES, Site, Sites
from tenure.lifetimes.steps import Steps, find_steps

__all__ = [
    "NO_FRAMES",
    "ORDER",
    "Category",
    "GrowingSite",
    "Growth",
    "Site",
    "Sites",
    "Steps",
    "categorise",
    "find_growth",
    "find_steps",
]
