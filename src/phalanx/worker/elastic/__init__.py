"""ELASTIC SYNCHRONOUS WORKERS · orders, units that are redone, the worker itself."""
