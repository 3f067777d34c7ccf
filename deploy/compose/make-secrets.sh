#!/bin/sh
# Makes a realm, and in secrets/ a credential for each service of compose.yaml; those that are there stay as they are.
#
# The key of the realm issues all credentials, and no service needs it.  It is kept outside of this directory, which may
# well be a repository: in ~/.config/iris/shop.realm, or where IRIS_REALM says.  Take it off this machine.  secrets/ has a
# .gitignore of its own, so "git add -A" takes nothing of it.
#
# Compose mounts each file as it is here, for the user 10001 of the containers.  So the files can be read by all, and the
# directory, which is not mounted, only by you.
set -eu
cd "$(dirname "$0")"
umask 077
realm=${IRIS_REALM:-${XDG_CONFIG_HOME:-$HOME/.config}/iris/shop.realm}
mkdir -p "$(dirname "$realm")" secrets
chmod 700 secrets
if git -C "$(dirname "$realm")" rev-parse --is-inside-work-tree > /dev/null 2>&1 &&
    ! git -C "$(dirname "$realm")" check-ignore --quiet "$realm"; then
    echo "make-secrets.sh: $realm is in a repository of git, which would take the key of the realm: set IRIS_REALM to" \
        "a path outside of it" >&2
    exit 1
fi
echo '*' > secrets/.gitignore
[ -e "$realm" ] || iris keys realm "$realm"
for name in prices orders shoppers bridge report; do
    [ -e "secrets/$name" ] && continue
    iris keys cluster "$realm" "$name" --out "secrets/$name"
    chmod 444 "secrets/$name"
done
