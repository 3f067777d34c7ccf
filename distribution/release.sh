#!/bin/sh
# Writes what is published beside the wheel and the sdist of dist/: SBOMs, checksums, and a signature of these.
#
#     release.sh CYCLONEDX_PY PYTHON     PYTHON is that of an environment in which the wheel is
#
# IRIS_SIGNING_KEY names an SSH key; its public part is in distribution/allowed_signers.  IRIS_IMAGE names the image of
# the container as Syft takes it (oci-archive:iris.tar); without it there is no SBOM of an image.
set -eu
cd "$(dirname "$0")/../dist"
: "${IRIS_SIGNING_KEY:?names the SSH key that signs the checksums}"

for wheel in iris_mesh-*.whl; do release="${wheel%-py3-*}"; done
rm -f -- *.cdx.json SHA256SUMS SHA256SUMS.sig
"$1" environment --output-reproducible --output-format JSON \
    --pyproject ../pyproject.toml --output-file "$release.cdx.json" "$2"
if [ -n "${IRIS_IMAGE:-}" ]; then
    # Without the time and the random number that Syft writes: of the same image comes the same SBOM.
    syft scan --quiet --source-name iris --select-catalogers -file --output cyclonedx-json "$IRIS_IMAGE" | "$2" -c '
import json, sys
made = json.load(sys.stdin)
del made["serialNumber"], made["metadata"]["timestamp"]
json.dump(made, sys.stdout, indent=1)' > "$release-image.cdx.json"
fi
sha256sum -- "$release"* > SHA256SUMS
ssh-keygen -q -Y sign -f "$IRIS_SIGNING_KEY" -n iris-release SHA256SUMS

# What is not verified here is verified by nobody else, either.
ssh-keygen -Y verify -f ../distribution/allowed_signers -I release -n iris-release -s SHA256SUMS.sig < SHA256SUMS || {
    rm SHA256SUMS.sig
    echo "release.sh: distribution/allowed_signers does not name the key $IRIS_SIGNING_KEY: add its public part" >&2
    exit 1
}
