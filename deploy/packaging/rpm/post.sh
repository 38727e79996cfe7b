# $1: 1 for an installation, 2 for an upgrade. An installation starts nothing.
systemd-sysusers sluicegate.conf || :
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || :
    # An upgrade of a running service is a hot restart: no connection is refused and no request fails.
    if [ "$1" -gt 1 ] && systemctl --quiet is-active sluicegate.service; then
        systemctl kill --kill-who=main --signal=USR2 sluicegate.service || :
    fi
fi
