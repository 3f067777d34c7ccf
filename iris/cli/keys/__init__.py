"""``iris keys``: realms, credentials, bundles, revocation lists.  The mechanisms are in iris.security."""
