"""Workloads, and how they are built, timed and compared."""
