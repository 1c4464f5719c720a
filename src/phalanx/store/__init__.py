"""CHECKPOINT STORE: checkpoints and server state of a run, each file whole or absent.

`base` is the interface, `local` and `remote` implement it, `server` is the controller's side of
`remote`. Imports no deep-learning framework: tensors come in through a `TensorAdapter`.
"""
