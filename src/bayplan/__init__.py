"""bayplan: plan where every layer of a model goes, review the plan, stream the model by it."""
