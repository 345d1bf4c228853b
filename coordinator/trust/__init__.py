"""Who may connect as an agent, and speak for which node: certificates, tokens, refusals."""
