# The data folder /var/lib/sluicegate stays: it has events and objects.
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || :
fi
