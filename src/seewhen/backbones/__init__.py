"""Models: what each must have, how it is loaded, prompted and shown pictures; ports and shapes."""
