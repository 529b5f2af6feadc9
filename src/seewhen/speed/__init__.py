"""What decoding costs: `seewhen bench` and what it measures with."""
