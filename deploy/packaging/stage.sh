#!/bin/sh
# Lays out all files of a package as they are installed: packages, tarball and image are made from this folder.
#   stage.sh PROGRAMS ROOT     PROGRAMS has sluicegate and sluicegate-adapters; ROOT is written anew
set -eu
programs=$1 root=$2
here=$(cd "$(dirname "$0")/.." && pwd)

rm -rf "$root"
umask 022
mkdir -p "$root/usr/bin" "$root/usr/lib/systemd/system" "$root/usr/lib/sysusers.d" "$root/usr/lib/sysctl.d" \
    "$root/etc/sluicegate" "$root/usr/share/man/man1" "$root/usr/share/doc/sluicegate" \
    "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/site-functions" \
    "$root/usr/share/fish/vendor_completions.d"

for program in sluicegate sluicegate-adapters; do
    # Strips a copy: the build keeps its symbols.
    install -m 755 "$programs/$program" "$root/usr/bin/$program"
    strip --strip-all --remove-section=.comment "$root/usr/bin/$program"
done

install -m 755 "$here/packaging/kubectl-sluicegate" "$root/usr/bin/"

# The program writes its own manual and completions, so they name exactly its flags.
"$root/usr/bin/sluicegate" man "$root/usr/share/man/man1" >/dev/null
# The adapters have no flags; their page is that of the subcommand which runs them.
echo '.so man1/sluicegate-adapter.1' >"$root/usr/share/man/man1/sluicegate-adapters.1"
gzip -9n "$root/usr/share/man/man1"/*.1
"$root/usr/bin/sluicegate" completion bash >"$root/usr/share/bash-completion/completions/sluicegate"
"$root/usr/bin/sluicegate" completion zsh >"$root/usr/share/zsh/site-functions/_sluicegate"
"$root/usr/bin/sluicegate" completion fish >"$root/usr/share/fish/vendor_completions.d/sluicegate.fish"

install -m 644 "$here/systemd/sluicegate.service" "$here/systemd/sluicegate.socket" "$root/usr/lib/systemd/system/"
install -m 644 "$here/sysusers.d/sluicegate.conf" "$root/usr/lib/sysusers.d/"
install -m 644 "$here/sysctl.d/30-sluicegate.conf" "$root/usr/lib/sysctl.d/"
install -m 644 "$here/sluicegate.toml" "$root/etc/sluicegate/"

doc=$root/usr/share/doc/sluicegate
install -m 644 "$here/../README.md" "$here/../CHANGELOG.md" "$here/../SECURITY.md" "$doc/"
install -m 644 "$here/../LICENSE-MIT" "$here/../LICENSE-APACHE" "$doc/"
cp -R "$here/../examples" "$here/grafana" "$here/prometheus" "$doc/"
find "$doc" -type f -exec chmod 644 {} +

# Debian wants a changelog in a form of its own. It is not part of the other packages.
version=$("$root/usr/bin/sluicegate" --version | sed -n '1s/^sluicegate //p')
rm -rf "$root.debian" "$root.debian.lintian"
mkdir -p "$root.debian"
cat >"$root.debian/changelog.Debian" <<END
sluicegate ($version-1) unstable; urgency=medium

  * The changes are in /usr/share/doc/sluicegate/CHANGELOG.md.

 -- The Sluicegate authors <sluicegate@users.noreply.github.com>  $(LC_ALL=C date -u -R -d "@${SOURCE_DATE_EPOCH:-0}")
END
gzip -9n "$root.debian/changelog.Debian"
mkdir "$root.debian.lintian"
install -m 644 "$here/packaging/lintian-overrides" "$root.debian.lintian/sluicegate"
