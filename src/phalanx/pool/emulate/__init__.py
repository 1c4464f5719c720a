"""A cluster on one machine: hosts as network namespaces with real limits and a real ssh server.

Needs root. Tests and studies use it as an honest uneven cluster; nothing else depends on it.
"""
