"""A job on TensorFlow: the strategies of tf.distribute under a training loop of our own.

Keras 3's `fit` fails under both multi-machine strategies; loops like these work. Imports no torch,
so that memory and start-up are TensorFlow's own.
"""
