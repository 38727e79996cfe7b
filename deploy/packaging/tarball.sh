#!/bin/sh
# Packs the staged files. Two runs with the same files and SOURCE_DATE_EPOCH write the same bytes.
#   tarball.sh ROOT OUT        writes OUT/sluicegate-VERSION-MACHINE-linux.tar.gz
#   sudo tar -C / --strip-components=1 -xzf FILE       installs it; with --exclude='*/etc' it keeps the settings of an earlier one
set -eu
root=$1 out=$2
version=$("$root/usr/bin/sluicegate" --version | sed -n '1s/^sluicegate //p')
name=sluicegate-$version-$(uname -m)-linux
mkdir -p "$out"
tar --create --directory "$root" --transform "s,^\.,$name," --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
    --mtime="@${SOURCE_DATE_EPOCH:-0}" . | gzip -6n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
