#!/bin/sh
# What operators do with the unit iris@prices, as root.
set -eu

case "${1:-}" in
doctor)
    iris doctor --unit iris@prices
    ;;
restart)
    systemctl restart iris@prices
    ;;
renew) # systemd copies the credential when it starts the unit
    install -m 600 "$2" /etc/iris/prices.json
    systemctl restart iris@prices
    ;;
*)
    echo "usage: runbook.sh doctor | restart | renew CREDENTIAL" >&2
    exit 2
    ;;
esac
