"""Where a request goes: from a body and a binding to an endpoint, in plain calls."""
