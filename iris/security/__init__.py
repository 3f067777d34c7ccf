"""Security: credentials, handshakes and sealed sessions.

It promises that a peer is who its certificate says, and that no frame leaves a node unencrypted.  It opens no
connections and runs no tasks: what comes from the network is handed in by iris.cluster.mesh.
"""
