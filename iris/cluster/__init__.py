"""Who is here, who is alive, and which member to ask."""
