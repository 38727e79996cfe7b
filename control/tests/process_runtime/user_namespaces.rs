//! Containers whose users are others than the host's (`hostUsers: false`).

use std::os::unix::fs::MetadataExt;

use sluicegate_control::runtime::limits::USER_ID_MIN;
use sluicegate_control::runtime::volumes::{InstanceMount, InstanceVolume, VolumeContent, VolumeFile, VolumeMedium};
use sluicegate_control::runtime::{ContainerImage, InstanceCredentials};

use super::containers::{container, image, nothing_left};
use super::probes::asks;
use super::*;

fn with_own_users(spec: InstanceSpec) -> InstanceSpec {
    let credentials = InstanceCredentials { has_user_namespace: true, ..spec.credentials };
    InstanceSpec { credentials, ..spec }
}

fn volume(name: &str, content: VolumeContent) -> InstanceVolume {
    InstanceVolume { name: name.into(), content }
}

fn mount(volume: &str, path: &str) -> InstanceMount {
    InstanceMount { volume: volume.into(), path: path.into(), sub_path: None, read_only: false }
}

/// The user of a process of the host whose command line has `text`.
fn host_user_of(text: &str) -> Option<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let found = all.into_iter().find(|entry| {
        fs::read_to_string(entry.path().join("cmdline"))
            .is_ok_and(|line| line.contains(text) && line.starts_with("sleep"))
    })?;
    Some(fs::metadata(found.path()).unwrap().uid())
}

/// Root inside owns the image's files and the volumes', and is a user of the host without any rights.
#[tokio::test]
async fn root_inside_is_no_root_of_the_host() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "own") else { return };
    let layer = &image.layers[0];
    fs::write(layer.join("etc/secret"), "root's").unwrap();
    fs::set_permissions(layer.join("etc/secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let claim = host.dir.path().join("claim");
    fs::create_dir(&claim).unwrap();
    let file = VolumeFile { path: "colour".into(), bytes: b"red".to_vec(), mode: 0o600 };
    let script = "cat /proc/self/uid_map; id -u; cat /etc/secret; echo; cat /etc/settings/colour; echo; \
                  touch /made /empty/made /claim/made && echo wrote; test -O /etc/hosts && test -O /dev/null && test -O /srv/data && echo own; \
                  echo x >/dev/null && echo x >/dev/stdout; sleep 7654321";
    let mut spec = with_own_users(container(&image, script));
    spec.volumes = vec![
        volume("settings", VolumeContent::Files(vec![file])),
        volume("empty", VolumeContent::Empty(VolumeMedium::Disk)),
        volume("claim", VolumeContent::Claim(claim.clone())),
    ];
    spec.mounts = vec![mount("settings", "/etc/settings"), mount("empty", "/empty"), mount("claim", "/claim")];
    spec.mounts.push(mount("empty", "/srv/data"));
    // A command that enters the container is the same user.
    spec.readiness = asks("test $(id -u) = 0 && test -O /etc/secret && test -O /made && cat /etc/secret", 3);
    spec.termination_grace_period = Duration::from_millis(100);
    let mut instance = host.start(1, spec);
    instance.ready().await;
    let log = host.wrote(1, " F x").await;
    let said: Vec<_> = log.lines().filter_map(|line| Some(line.split_once(" F ")?.1.trim())).collect();
    assert_eq!(said[1..], ["0", "root's", "red", "wrote", "own", "x"], "{log}");
    let map: Vec<u32> = said[0].split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(map[0] == 0 && map[1] >= USER_ID_MIN && map[2] == 65_536, "{log}");
    assert_eq!(host_user_of("7654321"), Some(map[1]));
    // On disk, a claim's files are those of the users inside: another container of theirs reads them.
    assert_eq!(fs::metadata(claim.join("made")).unwrap().uid(), 0);
    instance.handle.stop();
    instance.gone().await;
    nothing_left(&host, 1).await;
}

/// The user of the image, and one that the namespace does not have.
#[tokio::test]
async fn user_of_the_image_is_one_of_the_namespace() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "own") else { return };
    let as_app = ContainerImage { user: "app".into(), ..image.clone() };
    let gone = host.start(1, with_own_users(container(&as_app, "id -u; id -g; touch /tmp/x && exit 3"))).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(3), "{}", gone.message);
    let as_far = ContainerImage { user: "100000".into(), ..image };
    let gone = host.start(2, with_own_users(container(&as_far, "echo ran"))).gone().await;
    assert!(gone.message.contains("100000") && gone.message.contains("65536"), "{}", gone.message);
}

#[tokio::test]
async fn process_of_the_host_has_no_users_of_its_own() {
    let host = TestRuntimeHost::new();
    let gone = host.start(1, with_own_users(shell("echo ran"))).gone().await;
    assert!(gone.message.contains("hostUsers: false needs an image"), "{}", gone.message);
}
