"""Emulate a cluster on one machine: hosts are network namespaces with limits and ssh servers.

Needs root. Tests and studies use it as a heterogeneous cluster; nothing else depends on it.
"""
