"""The small model on drawn scenes: its training, its study, its tables. See README.md."""
