"""How big a model is: sizes per format, training, inference, and where it fits. Works on structs alone."""
