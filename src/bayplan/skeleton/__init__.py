"""What planner and executor must agree on about a live module: class, meta build, tensors, ties, names.

Knows neither planner nor executor; of transformers' internals only `transformers_adapter` knows.
"""
