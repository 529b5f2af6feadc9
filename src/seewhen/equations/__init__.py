"""The paper's equations as pure tensor functions: where to look, when to act, how to tilt, what to contrast."""
