"""The five ways to talk: request, broadcast, survey, publish/subscribe, tunnel."""
