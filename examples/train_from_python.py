"""The shortest program: train handwritten digits on two worker processes and read the result."""

import phalanx

summary = phalanx.train({"data": "digits", "model": "cnn", "epochs": 3, "workers": 2})
print(f"test accuracy {summary.test_accuracy:.1%}, {summary.samples_per_s:,.0f} samples/s")
print(f"everything about the run is in {summary.run_dir}")
