"""The model for photographs: built once on a user's machine from the weights in this package and a language model
that another package brings.

`seewhen.load("photo")` and `--model photo` use it; `weights/photo/README.md` says what it can and cannot do.
"""
