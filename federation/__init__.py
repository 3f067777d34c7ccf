"""Sites that reach each other through gateways.

Here come gateways that link sites, a directory of exported clusters and topics with path vectors, and relayed
sessions whose handshake is between the two ends, so that a gateway carries only ciphertext.  Nothing is here yet:
nodes of one realm form one site.
"""
