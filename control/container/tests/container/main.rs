//! Containers from real layers: Debian's static busybox, run by this crate's own program. Skipped with a message without root.
#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod calls;
mod escapes;
mod exec;
mod inside;
mod roots;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use container::ContainerSpec;
use container::namespaces::spawn_first_process;
use container::program::ProtectedProgram;
use serde_json::json;

const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 34] = [
    "sh", "ls", "cat", "id", "ps", "mount", "umount", "env", "pwd", "echo", "touch", "rm", "ln", "mkdir", "readlink",
    "hostname", "stat", "wc", "head", "sleep", "kill", "test", "cp", "chmod", "chroot", "unshare", "dd", "grep",
    "mknod", "tr", "ipcs", "true", "su", "nc",
];

/// An image, and what will be run of it.
struct Container {
    dir: tempfile::TempDir,
    program: ProtectedProgram,
    spec: ContainerSpec,
    variables: Vec<(String, String)>,
}

impl Container {
    /// One layer with a shell and users. `None`: it cannot be run here, and the log says why.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
            eprintln!("skipped: containers need root, and this test {BUSYBOX} (Debian's busybox-static)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let base = dir.path().join("base");
        for folder in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
            fs::create_dir_all(base.join(folder)).unwrap();
        }
        fs::copy(BUSYBOX, base.join("bin/busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", base.join("bin").join(applet)).unwrap();
        }
        fs::set_permissions(base.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(base.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n").unwrap();
        fs::write(base.join("etc/group"), "root:x:0:\napp:x:1001:\nstaff:x:50:app\n").unwrap();
        let spec = ContainerSpec {
            layers: vec![base],
            hostname: "hello-00001".into(),
            capabilities: container::capabilities::DEFAULTS.bits(),
            parent: i32::try_from(std::process::id()).unwrap(),
            ..ContainerSpec::default()
        };
        let program = ProtectedProgram::open(Path::new(env!("CARGO_BIN_EXE_container-run"))).unwrap();
        Some(Self { dir, program, spec, variables: vec![("PATH".into(), "/bin".into())] })
    }

    /// A folder of the host, in addition to the image.
    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// One more layer, on top.
    fn add_layer(&mut self, name: &str) -> PathBuf {
        let folder = self.folder(name);
        self.spec.layers.push(folder.clone());
        folder
    }

    /// A layer with `program` of the host and the libraries that it is linked with; `false`: the host lacks it.
    fn add_program(&mut self, program: &str) -> bool {
        let Ok(listed) = Command::new("ldd").arg(program).output() else { return false };
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let layer = self.folder(&format!("layer-{}", self.spec.layers.len()));
        let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain([program]) {
            let target = layer.join(file.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(file, target).unwrap();
        }
        self.spec.layers.insert(0, layer);
        listed.status.success()
    }

    fn mount(&mut self, source: &Path, target: &str, read_only: bool) {
        self.spec.mounts.push(container::BindMount {
            source: source.into(),
            sub_path: None,
            target: target.into(),
            read_only,
            is_own: false,
        });
    }

    fn start(&self, command: &[&str]) -> Child {
        let mut spec = self.spec.clone();
        spec.scratch = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let mut starting = Command::new(self.program.path());
        starting.arg0("container-run").arg(std::process::id().to_string()).env_clear();
        starting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn_first_process(&mut starting).unwrap();
        let job = json!({ "container": spec, "command": command, "variables": self.variables });
        child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
        child
    }

    fn run(&self, command: &[&str]) -> Output {
        self.start(command).wait_with_output().unwrap()
    }

    /// What a shell in it prints, with its errors.
    fn shell(&self, script: &str) -> String {
        let output = self.run(&["sh", "-c", &format!("exec 2>&1\n{script}")]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text + &String::from_utf8_lossy(&output.stderr)
    }
}
