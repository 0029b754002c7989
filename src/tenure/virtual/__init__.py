"""A GPU that is not there: run a script, get its trace."""

from tenure.virtual.running import VirtualRun, run_script, virtual_gpu

__all__ = ["VirtualRun", "run_script", "virtual_gpu"]
