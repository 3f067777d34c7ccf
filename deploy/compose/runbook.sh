#!/bin/sh
# What operators do with the services of compose.yaml.  COMPOSE="docker compose" if that is what you have.
set -eu
cd "$(dirname "$0")"

case "${1:-}" in
doctor)
    ${COMPOSE:-podman compose} exec prices /bin/sh /usr/local/bin/iris-entrypoint iris doctor
    ;;
restart)
    ${COMPOSE:-podman compose} up --detach --build prices
    ;;
renew) # a file that is mounted by itself stays the old one until the container is started again
    install -m 444 "$2" secrets/prices.new
    mv -f secrets/prices.new secrets/prices
    ${COMPOSE:-podman compose} restart prices
    ;;
*)
    echo "usage: runbook.sh doctor | restart | renew CREDENTIAL" >&2
    exit 2
    ;;
esac
