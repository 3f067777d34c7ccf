#!/bin/sh
# Makes a realm, and in secrets/ a credential for each service of compose.yaml, for the user 10001 of the containers.
# The key of the realm is needed for nothing else but further credentials: take realm.key off this machine.
# As root, or with rootless Podman: podman unshare deploy/compose/make-secrets.sh
set -eu
cd "$(dirname "$0")"
umask 077
mkdir secrets
iris keys realm realm.key
for name in prices orders shoppers bridge report; do
    iris keys cluster realm.key "$name" --out "secrets/$name"
    chmod 400 "secrets/$name"
    chown 10001:10001 "secrets/$name"
done
