"""Export records: timelines for Perfetto, event files for TensorBoard, runs for MLflow.

Reads run directories only. Optional packages are imported when a function needs them.
"""
