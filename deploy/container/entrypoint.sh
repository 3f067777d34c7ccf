#!/bin/sh
# Runs a command as the only process of a container.  Volumes of Kubernetes are open to all users of the container, and
# Iris refuses such directories: it gets private ones below them.  Podman's --read-only covers /run: then sockets are
# below /tmp, which it leaves open.
set -eu
umask 077
[ -w /run/iris ] && sockets=/run/iris || sockets=/tmp/iris
export IRIS_HOME="${IRIS_HOME:-/var/lib/iris/home}"
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-$sockets/user}"
mkdir -p "$IRIS_HOME" "$XDG_RUNTIME_DIR" || {
    echo "iris: mount a tmpfs or a volume at /run/iris, and one at /var/lib/iris, that user $(id -u) may write to" >&2
    exit 1
}
exec "$@"
