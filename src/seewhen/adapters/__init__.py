"""seewhen inside other programs."""
