"""Federation: sites that reach each other through gateways.

A gateway (``iris.federation.gateway``) is a node that is also linked to gateways of other sites.  Gateways advertise to
each other what their sites export, and forward the frames of sessions whose ends are nodes of two sites.

Promises: nothing crosses a border that a policy does not let through; a gateway holds no key that opens a frame; a
frame for a full link is dropped and counted, and never waited for.  Not here: what every node needs for other sites
(iris.cluster.sites).
"""
