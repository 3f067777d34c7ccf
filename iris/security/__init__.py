"""Who may speak: credentials, handshakes and sealed sessions."""
