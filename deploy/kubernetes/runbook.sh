#!/bin/sh
# What operators do with the members of prices.yaml.
set -eu

case "${1:-}" in
doctor)
    kubectl exec prices-0 -- /bin/sh /usr/local/bin/iris-entrypoint iris doctor
    ;;
restart)
    kubectl rollout restart statefulset/prices
    ;;
renew) # the kubelet renews what is mounted, and the node takes it
    kubectl create secret generic prices --from-file=credential="$2" --dry-run=client --output=yaml |
        kubectl apply --filename=-
    ;;
*)
    echo "usage: runbook.sh doctor | restart | renew CREDENTIAL" >&2
    exit 2
    ;;
esac
