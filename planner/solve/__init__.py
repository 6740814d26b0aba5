"""Where it goes: the chain, its costs, the search, the simulator, the ledger."""
