"""What there is to place: finding a model, building it on meta, tracing it."""
