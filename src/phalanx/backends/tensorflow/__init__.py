"""TENSORFLOW BACKEND: the strategies of tf.distribute under our training loop.

Keras 3's `fit` fails under both multi-machine strategies; explicit loops work. Imports no torch, so
that memory and start-up are TensorFlow's.
"""
