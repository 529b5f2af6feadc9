"""A small real vision-language model on photographs: its parts, its training, its study. See README.md."""
