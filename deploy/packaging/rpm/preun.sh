# $1: 0 for a removal, 1 for an upgrade, which leaves the service running.
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now sluicegate.socket sluicegate.service >/dev/null 2>&1 || :
fi
