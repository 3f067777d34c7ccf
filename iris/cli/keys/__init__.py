"""``iris keys``: realms, credentials, bundles, revocation lists."""
