"""How long each allocation lived and who made it."""

from tenure.lifetimes.backward import forward_sites
from tenure.lifetimes.categories import ORDER, Category, categorise
from tenure.lifetimes.codes import block_sizes, exact_block_sizes, lifetimes
from tenure.lifetimes.growing_sites import GrowingSite
from tenure.lifetimes.growth import Ending, Growth, find_growth, flat_since
from tenure.lifetimes.overlap import Overlap, find_overlap
from tenure.lifetimes.releases import Order, Release
from tenure.lifetimes.rounds import Rounds, find_rounds
from tenure.lifetimes.sites import NO_FRAMES, Site, Sites, is_library, site_of
from tenure.lifetimes.steps import Steps, find_steps

__all__ = [
    "NO_FRAMES",
    "ORDER",
    "Category",
    "Ending",
    "GrowingSite",
    "Growth",
    "Order",
    "Overlap",
    "Release",
    "Rounds",
    "Site",
    "Sites",
    "Steps",
    "block_sizes",
    "categorise",
    "exact_block_sizes",
    "find_growth",
    "find_overlap",
    "find_rounds",
    "find_steps",
    "flat_since",
    "forward_sites",
    "is_library",
    "lifetimes",
    "site_of",
]
