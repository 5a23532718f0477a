#!/usr/bin/env bash
# Run `make fit` and `make test-fast` on the Python of Debian's testing suite, which is newer than that of most machines.
#
#   sudo scripts/debian_testing.sh FOLDER [TARGET]...
#
# FOLDER becomes the root of a minimal Debian (debootstrap, about 0.5 GB) with a clone of this checkout and its environment
# (about 8 GB). A second call uses it again. TARGETs are targets of the Makefile in the place of these two.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
root=${1:?the folder of the new system}
shift
targets=("${@:-fit}")
[ "$#" -gt 0 ] || targets=(fit test-fast)

# the system, once
if [ ! -x "$root/usr/bin/python3" ]; then
    packages=python3,python3-venv,python3-dev,make,git,gcc,g++,cmake,ca-certificates
    debootstrap --variant=minbase --include="$packages" testing "$root"
fi

# the network of the host: name servers, certificates, settings of pip
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
for settings in /etc/pip.conf; do
    [ ! -f "$settings" ] || cp "$settings" "$root$settings"
done

# /proc, /dev and shared memory, which worker processes need; unmounted at the end
mounted=()
leave() {
    for folder in "${mounted[@]}"; do umount "$folder"; done
}
trap leave EXIT
for folder in proc dev dev/shm; do
    if ! mountpoint -q "$root/$folder"; then
        mount --bind "/$folder" "$root/$folder"
        mounted=("$root/$folder" "${mounted[@]}")
    fi
done

# the committed state of this checkout
rm -rf "$root/lightkit.git"
git clone --quiet --bare "$checkout" "$root/lightkit.git"
if [ ! -d "$root/lightkit" ]; then
    git clone --quiet "$root/lightkit.git" "$root/lightkit"
fi
git -C "$root/lightkit" fetch --quiet "$root/lightkit.git" HEAD
git -C "$root/lightkit" checkout --quiet --force --detach FETCH_HEAD

chroot "$root" /usr/bin/env --chdir=/lightkit HOME=/root git config --global --add safe.directory '*'
chroot "$root" python3 --version
for target in "${targets[@]}"; do
    chroot "$root" /usr/bin/env --chdir=/lightkit HOME=/root make "$target"
done
