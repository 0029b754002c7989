"""A recording as one HTML page: charts over time and addresses, findings, stacks."""

from tenure.reports.page.building import page_html
from tenure.reports.page.lives import Lives, lives_of

__all__ = ["Lives", "lives_of", "page_html"]
