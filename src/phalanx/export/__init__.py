"""RECORDS → OTHER PROGRAMS: timelines for Perfetto, event files for TensorBoard, runs for MLflow.

Reads run directories only. What needs an optional package imports it when it is called.
"""
