"""Sites that reach each other through gateways.

A gateway (``iris.federation.gateway``) is a node that is also linked to gateways of other sites.  Gateways tell each
other what their sites export, and carry the frames of sessions whose ends are nodes of two sites; they hold no key that
opens them.  What every node needs of it is in ``iris.cluster.sites.sites``.
"""
